"""Lab 06: the pipeline. Two tasks write orders, two compute with them, and one runs an order on live ranks.

orders.py   06.gpipe, 06.one_f_one_b   playing.py   06.bubble   cutting.py   06.cut   stage.py   06.stage
chapter.py  what the chapter alone asks: 06.under_way
"""

from helpers.grading.registry import Lab

LAB = Lab(
    number="06",
    topic="pipeline",
    tasks=("orders.GPIPE", "orders.ONE_F_ONE_B", "playing.BUBBLE", "cutting.CUT", "stage.STAGE"),
    in_chapter=("chapter.UNDER_WAY",),
    forbids=("torch.distributed.pipelining",),
)
