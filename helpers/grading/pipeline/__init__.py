"""Lab 06: the pipeline. Two tasks write orders, two compute with them, and one runs an order on live ranks.

orders.py   06.gpipe, 06.one_f_one_b   playing.py   06.bubble   cutting.py   06.cut   stage.py   06.stage
answers.py  one function asked several questions
"""

from helpers.grading.pipeline.cutting import CUT
from helpers.grading.pipeline.orders import GPIPE, ONE_F_ONE_B
from helpers.grading.pipeline.playing import BUBBLE
from helpers.grading.pipeline.stage import STAGE

TASKS = (GPIPE, ONE_F_ONE_B, BUBBLE, CUT, STAGE)  # as the lab asks them
