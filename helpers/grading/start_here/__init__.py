"""Chapter 00 has no lab. These exercises stand in the chapter alone.

counting.py    00.total, 00.mean: of data that is uneven, or that a rank lacks
layers.py      00.layers: the same collectives on every rank, in the same order
"""

from helpers.grading.registry import Lab

LAB = Lab(
    number="00",
    topic="start_here",
    tasks=(),
    in_chapter=("counting.TOTAL", "counting.MEAN", "layers.LAYERS"),
)
