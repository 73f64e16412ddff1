"""Lab 08: ZeRO. One task cuts, three run the stages on live ranks, one resumes, one counts what a stage costs.

cutting.py    08.shard    optimizer.py  08.stage1   gradients.py  08.stage2   parameters.py  08.stage3
resuming.py   08.resume   costs.py      08.cost     parts.py      the right shards, and the wrong ones
"""

from helpers.grading.zero.costs import COST
from helpers.grading.zero.cutting import SHARD
from helpers.grading.zero.gradients import STAGE_2
from helpers.grading.zero.optimizer import STAGE_1
from helpers.grading.zero.parameters import STAGE_3
from helpers.grading.zero.resuming import RESUME

TASKS = (SHARD, STAGE_1, STAGE_2, STAGE_3, RESUME, COST)  # as the lab asks them
