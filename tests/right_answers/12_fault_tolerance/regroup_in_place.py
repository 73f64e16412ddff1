"""A copy of the ranks, in which spares are put where somebody died; what is left empty is taken out."""

TASK = "12.regroup"


def regroup(ranks, spares, dead, min_ranks, generation, restarts):
    gone = set(dead)
    new, left = list(ranks), [name for name in spares if name not in gone]
    for place, name in enumerate(ranks):
        if name in gone:
            new[place] = left.pop(0) if left else None
    new = [name for name in new if name]
    keys = [str(generation + 1) + "/" + name for name in new]
    return [new, left, keys] if len(new) >= min_ranks else None
