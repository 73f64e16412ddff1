"""One more until rank 0's work covers the round trip; no division."""

TASK = "06.under_way"


def under_way(num_stages, forward, backward, message):
    there, back = 0, 0
    for stage in range(num_stages):
        there += forward + (message if stage else 0)
        back += backward + (message if stage else 0)
    count = 1
    while count * (forward + backward) < there + back:
        count += 1
    return count
