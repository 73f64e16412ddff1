"""Lab 02, what nn.DataParallel is made of: its tasks, and the files that judge them.

All tasks run in one process with N simulated devices, of which device 0 is the master.

scatter_gather.py   02.scatter, 02.gather        a batch is split, and the outputs are joined again
memory.py           02.memory                    the bytes of each device
replicate_step.py   02.replicate, 02.step        replicas of a model, and a whole training step on them
parallel_apply.py   02.parallel_apply            one thread per replica
"""

from helpers.grading.registry import Lab

LAB = Lab(
    number="02",
    topic="data_parallel",
    tasks=(
        "scatter_gather.SCATTER",
        "memory.MEMORY",
        "scatter_gather.GATHER",
        "replicate_step.REPLICATE",
        "parallel_apply.PARALLEL_APPLY",
        "replicate_step.STEP",
    ),
    forbids=("torch.nn.DataParallel", "torch.nn.parallel", "torch.cuda.comm"),
)
