"""GPipe, played in one direction and then in the other; with chunks, only the wait is shorter."""

TASK = "11.bubble"


def pipeline_step(forward, micro_batches, chunks):
    def flow(times):
        free = [0.0] * len(times)
        for _ in range(micro_batches):
            at = 0.0
            for stage, seconds in enumerate(times):
                free[stage] = at = max(at, free[stage]) + seconds
        return free[-1]

    plain = flow(forward) + flow([2 * seconds for seconds in reversed(forward)])
    busiest = 3 * max(forward) * micro_batches
    whole = busiest + (plain - busiest) / chunks
    idle = [whole - 3 * micro_batches * seconds for seconds in forward]
    return whole, sum(idle) / len(forward) / whole
