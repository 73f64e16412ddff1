"""Lab 08: ZeRO. One task cuts, three run the stages on live ranks, one resumes, one counts what a stage costs.

cutting.py    08.shard    optimizer.py  08.stage1   gradients.py  08.stage2   parameters.py  08.stage3
chapter.py    what the chapter alone asks: 08.zero1_step, 08.stage3_forward, 08.global_norm
resuming.py   08.resume   costs.py      08.cost     parts.py      the right shards, and the wrong ones
"""

from helpers.grading.registry import Lab

LAB = Lab(
    number="08",
    topic="zero",
    tasks=(
        "cutting.SHARD",
        "optimizer.STAGE_1",
        "gradients.STAGE_2",
        "parameters.STAGE_3",
        "resuming.RESUME",
        "costs.COST",
    ),
    in_chapter=("chapter.ZERO1_STEP", "chapter.STAGE3_FORWARD", "chapter.GLOBAL_NORM"),
    forbids=(
        "torch.distributed.fsdp",
        "torch.distributed._composable",
        "torch.distributed.optim",
        "torch.distributed.tensor",
        "torch.distributed._tensor",
        "torch.distributed.algorithms",
        "torch.nn.parallel",
    ),
)
