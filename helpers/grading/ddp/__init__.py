"""Lab 03: what DDP is made of, and a step made ready for NCCL. N = ranks.

gradients.py   03.start, 03.average      sampler.py      03.sampler       overlap.py     03.overlap
buckets.py     03.buckets                accumulate.py   03.accumulate    rehearsed.py   03.rehearsed
"""

from helpers.grading.registry import Lab

LAB = Lab(
    number="03",
    topic="ddp",
    tasks=(
        "gradients.START",
        "gradients.AVERAGE",
        "buckets.BUCKETS",
        "sampler.SAMPLER",
        "accumulate.ACCUMULATE",
        "overlap.OVERLAP",
        "rehearsed.REHEARSED",
    ),
    forbids=(
        "torch.nn.parallel",
        "torch.nn.DataParallel",
        "torch.utils.data.DistributedSampler",
        "torch.utils.data.distributed",
        "torch.distributed.algorithms",
        "torch.distributed._composable",
        "torch.distributed.fsdp",
    ),
    refuses=("torch.nn.parallel.DistributedDataParallel", "torch.utils.data.DistributedSampler"),
)
