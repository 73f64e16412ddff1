"""In arrays, and the law's line through all measurements in place of two."""

import numpy as np

TASK = "11.efficiency"


def strong_scaling(gpus, seconds):
    n, t = np.array(gpus), np.array(seconds)
    speedups = n.min() * t[n.argmin()] / t
    b, a = np.polyfit(1 / n, t, 1)
    return speedups, speedups / n, a / (a + b)
