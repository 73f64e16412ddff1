"""Lab 01, collectives from send and receive: its tasks, and the files that judge them.

cost.py          01.cost                              bytes and seconds of two all-reduces, by formulas
send_receive.py  01.shift, 01.all_to_all, 01.broadcast   messages between pairs of ranks, and along a tree
ring.py          01.reduce_scatter, 01.all_reduce     chunks that travel around a ring
"""

from helpers.grading.registry import Lab

LAB = Lab(
    number="01",
    topic="collectives",
    tasks=(
        "cost.COST",
        "send_receive.SHIFT",
        "send_receive.ALL_TO_ALL",
        "send_receive.BROADCAST",
        "ring.REDUCE_SCATTER",
        "ring.ALL_REDUCE",
    ),
)
