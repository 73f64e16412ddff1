"""Lab 06: the pipeline. Two tasks write orders, two compute with them, and one runs an order on live ranks.

orders.py   06.gpipe, 06.one_f_one_b   playing.py   06.bubble   cutting.py   06.cut   stage.py   06.stage
"""

from helpers.grading.registry import Lab

LAB = Lab(
    number="06",
    topic="pipeline",
    tasks=("orders.GPIPE", "orders.ONE_F_ONE_B", "playing.BUBBLE", "cutting.CUT", "stage.STAGE"),
    forbids=("torch.distributed.pipelining",),
)
