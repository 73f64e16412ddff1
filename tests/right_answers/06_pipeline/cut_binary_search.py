"""The smallest limit that num_stages stages are enough for."""

TASK = "06.cut"


def cut(costs, num_stages):
    def fill(limit):
        sizes, total = [0], 0
        for index, cost in enumerate(costs):
            must_open = len(costs) - index == num_stages - len(sizes)
            if sizes[-1] and (total + cost > limit or must_open):
                sizes.append(0)
                total = 0
            sizes[-1] += 1
            total += cost
        return sizes

    low, high = max(costs), sum(costs)
    while low < high:
        middle = (low + high) // 2
        if len(fill(middle)) <= num_stages:
            high = middle
        else:
            low = middle + 1
    return fill(low)
