"""Lab 05: where the memory goes. Three tasks count bytes, three keep them down, and those are watched while they run.

counting.py     05.count, 05.states      accumulate.py   05.accumulate      chunked.py   05.chunked
activations.py  05.activations           recompute.py    05.checkpoint     chapter.py   05.evaluate
"""

from helpers.grading.registry import Lab

LAB = Lab(
    number="05",
    topic="memory",
    tasks=(
        "counting.COUNT",
        "counting.STATES",
        "activations.ACTIVATIONS",
        "accumulate.ACCUMULATE",
        "recompute.CHECKPOINT",
        "chunked.CHUNKED",
    ),
    in_chapter=("chapter.EVALUATE",),
    forbids=(
        "torch.utils.checkpoint",
        "torch.autograd.graph.save_on_cpu",
        "torch.distributed._tools",
        "torch.nn.functional.linear_cross_entropy",
        "torch.utils._python_dispatch",
    ),
)
