"""Lab 01: collectives from send and receive. N = ranks.

cost.py      01.cost                 messages.py  what the tasks share: calls, point-to-point only, waited for
pairs.py     01.shift, 01.all_to_all      tree.py  01.broadcast      ring.py  01.reduce_scatter, 01.all_reduce
"""

from helpers.grading.collectives.cost import COST
from helpers.grading.collectives.pairs import ALL_TO_ALL, SHIFT
from helpers.grading.collectives.ring import ALL_REDUCE, REDUCE_SCATTER
from helpers.grading.collectives.tree import BROADCAST

TASKS = (COST, SHIFT, ALL_TO_ALL, BROADCAST, REDUCE_SCATTER, ALL_REDUCE)
