"""Lab 07: tensor parallelism. Two operators, two layers, the cut of attention, and a loss over a cut vocabulary.

operators.py  07.identity_all_reduce, 07.all_reduce_identity   column.py, row.py  07.column, 07.row (layers.py: both)
heads.py      07.heads                                         loss.py            07.cross_entropy
phases.py     what forward and backward send, in order
chapter.py    what the chapter alone asks: 07.mlp, 07.token_loss, 07.norm
"""

from helpers.grading.registry import Lab

LAB = Lab(
    number="07",
    topic="tensor_parallel",
    tasks=(
        "operators.IDENTITY_ALL_REDUCE",
        "operators.ALL_REDUCE_IDENTITY",
        "column.COLUMN",
        "row.ROW",
        "heads.HEADS",
        "loss.CROSS_ENTROPY",
    ),
    in_chapter=("chapter.MLP", "chapter.TOKEN_LOSS", "chapter.NORM_OF_ALL"),
    forbids=(
        "torch.distributed.tensor",
        "torch.distributed._tensor",
        "torch.distributed.nn",
        "torch.distributed._functional_collectives",
    ),
)
