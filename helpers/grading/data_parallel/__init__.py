"""Lab 02: what nn.DataParallel is made of. One process, N simulated devices, device 0 is the master.

cutting.py   02.scatter, 02.gather      memory.py    02.memory
replicas.py  02.replicate               threads.py   02.parallel_apply
step.py      02.step
"""

from helpers.grading.registry import Lab

LAB = Lab(
    number="02",
    topic="data_parallel",
    tasks=(
        "cutting.SCATTER",
        "memory.MEMORY",
        "cutting.GATHER",
        "replicas.REPLICATE",
        "threads.PARALLEL_APPLY",
        "step.STEP",
    ),
    forbids=("torch.nn.DataParallel", "torch.nn.parallel", "torch.cuda.comm"),
)
