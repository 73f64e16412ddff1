"""Lab 03: what DDP is made of. N = ranks.

gradients.py   03.start, 03.average, 03.buckets      overlap.py   03.overlap      data.py   03.sampler, 03.accumulate
"""

from helpers.grading.ddp.data import ACCUMULATE, SAMPLER
from helpers.grading.ddp.gradients import AVERAGE, BUCKETS, START
from helpers.grading.ddp.overlap import OVERLAP

TASKS = (START, AVERAGE, BUCKETS, SAMPLER, ACCUMULATE, OVERLAP)  # as the lab asks them
