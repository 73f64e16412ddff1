"""Lab 11: scaling. Six small computations with which a training run on many GPUs is planned and judged.

measuring.py   11.efficiency, 11.fit: what measurements on some numbers of GPUs say
timing.py      11.exposed, 11.bubble: what a step loses to the network and to its pipeline
planning.py    11.plans, 11.days: which plan is allowed and the fastest, and how long the run takes
"""

from helpers.grading.registry import Lab

LAB = Lab(
    number="11",
    topic="scaling",
    tasks=tuple("measuring.EFFICIENCY timing.EXPOSED timing.BUBBLE planning.PLANS planning.DAYS measuring.FIT".split()),
)
