"""The exercises of chapter 00, which has no lab: sums and means of data that is uneven, or that a rank lacks.

uneven_data.py   00.total, 00.mean, 00.layers
"""

from helpers.grading.registry import Lab

LAB = Lab(
    number="00",
    topic="start_here",
    tasks=(),
    in_chapter=("uneven_data.TOTAL", "uneven_data.MEAN", "uneven_data.LAYERS"),
)
