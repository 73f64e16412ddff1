"""Young's sum for one number of steps after the other, until it grows."""

TASK = "12.interval"


def best_interval(nodes, node_mtbf, save, repair, step):
    every = node_mtbf / nodes + repair

    def lost(seconds):
        return save / seconds + seconds / 2 / every

    best = min(range(1, 5_000), key=lambda steps: lost(steps * step))
    return best
