"""A sweep: at each edge something begins or ends, and between two edges it is known how many of each are open."""

TASK = "10.exposed"


def exposed(communication, compute):
    edges = [
        (at, kind, way)
        for kind, spans in enumerate((communication, compute))
        for span in spans
        for at, way in zip(span, (1, -1), strict=True)
    ]
    seconds, before, is_open = 0, 0, [0, 0]
    for at, kind, way in sorted(edges):
        if is_open[0] and not is_open[1]:
            seconds += at - before
        is_open[kind] += way
        before = at
    return seconds
