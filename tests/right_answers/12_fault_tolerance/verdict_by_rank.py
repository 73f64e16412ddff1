"""The beats of each rank by themselves, with the one that counts at the start in front."""

TASK = "12.verdict"


def verdict(beats, ranks, started, now, limits):
    own = [[(0, started)] for _ in range(ranks)]
    for rank, step, _, arrived in beats:
        own[rank].append((step, arrived))
    silent = [now - several[-1][1] for several in own]
    steps = [several[-1][0] for several in own]
    stands = [now - min(at for step, at in several if step == several[-1][0]) for several in own]
    may_hang = max(silent) <= limits["dead"]

    def word(rank):
        if silent[rank] > limits["dead"]:
            return "dead"
        if silent[rank] > limits["late"]:
            return "late"
        is_first = all(steps[rank] <= step for step in steps)
        return "hung" if may_hang and is_first and stands[rank] > limits["hung"] else "alive"

    return [word(rank) for rank in range(ranks)]
