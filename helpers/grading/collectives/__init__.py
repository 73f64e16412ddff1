"""Lab 01: collectives from send and receive. N = ranks.

cost.py    01.cost         pairs.py   01.shift, 01.all_to_all
tree.py    01.broadcast    ring.py    01.reduce_scatter, 01.all_reduce
"""

from helpers.grading.registry import Lab

LAB = Lab(
    number="01",
    topic="collectives",
    tasks=("cost.COST", "pairs.SHIFT", "pairs.ALL_TO_ALL", "tree.BROADCAST", "ring.REDUCE_SCATTER", "ring.ALL_REDUCE"),
)
