"""Lab 07: tensor parallelism. Two operators, two layers, the cut of attention, and a loss over a cut vocabulary.

operators.py  07.identity_all_reduce, 07.all_reduce_identity   column.py, row.py  07.column, 07.row (layers.py: both)
heads.py      07.heads                                         loss.py            07.cross_entropy
phases.py     what forward and backward send, in order
"""

from helpers.grading.tensor_parallel.column import COLUMN
from helpers.grading.tensor_parallel.heads import HEADS
from helpers.grading.tensor_parallel.loss import CROSS_ENTROPY
from helpers.grading.tensor_parallel.operators import ALL_REDUCE_IDENTITY, IDENTITY_ALL_REDUCE
from helpers.grading.tensor_parallel.row import ROW

TASKS = (IDENTITY_ALL_REDUCE, ALL_REDUCE_IDENTITY, COLUMN, ROW, HEADS, CROSS_ENTROPY)  # as the lab asks them
