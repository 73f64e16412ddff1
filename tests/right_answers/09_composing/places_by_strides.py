"""A stride for each axis: a group begins where the coordinate is 0, and goes on in steps of the stride."""

TASK = "09.places"


def places(rank, dp, pp, tp):
    sizes, strides = {"tp": tp, "dp": dp, "pp": pp}, {"tp": 1, "dp": tp, "pp": tp * dp}

    def coordinate(of, axis):
        return of // strides[axis] % sizes[axis]

    groups = {}
    for axis, size in sizes.items():
        firsts = [one for one in range(dp * pp * tp) if coordinate(one, axis) == 0]
        groups[axis] = [tuple(first + i * strides[axis] for i in range(size)) for first in firsts]
    return {axis: coordinate(rank, axis) for axis in sizes}, groups
