"""Lab 02: what nn.DataParallel is made of. One process, N simulated devices, device 0 is the master.

cutting.py   02.scatter, 02.gather      memory.py    02.memory
replicas.py  02.replicate, 02.step      threads.py   02.parallel_apply
"""

from helpers.grading.data_parallel.cutting import GATHER, SCATTER
from helpers.grading.data_parallel.memory import MEMORY
from helpers.grading.data_parallel.replicas import REPLICATE, STEP
from helpers.grading.data_parallel.threads import PARALLEL_APPLY

TASKS = (SCATTER, MEMORY, GATHER, REPLICATE, PARALLEL_APPLY, STEP)
