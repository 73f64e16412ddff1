"""What chapters 01 and 03 run by NCCL's rules: six programs, and a function of a notebook as a script for GPUs."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import torch
import torch.distributed as dist

from helpers.learner.words import book
from helpers.observe import six_programs
from helpers.ranks import RankError, Ranks

RUNS, STANDS = "runs", "stands still"
ON_NCCL = {
    "hangs above the buffer": f"{STANDS} with a large x",
    "hangs": STANDS,
    "can hang": "can stand still",
    "unnoticed": "runs, x and y exchanged",
}
# Behind the function, so that a report names the lines of the cell.
_START = """

import os

import torch
import torch.distributed as dist

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
{name}(torch.device("cuda", torch.cuda.current_device()))
dist.destroy_process_group()
"""


def outcomes() -> dict[str, tuple[str, str]]:
    """Each of the six programs: what it does on gloo, and what it would do on NCCL."""
    found = {}
    with Ranks(2, device="cpu", rules="nccl", quiet=True) as ranks:
        for name in "abcdef":
            found[name] = RUNS, RUNS
            try:
                ranks.run(_with_tensors, name)
            except RankError as error:
                found[name] = STANDS if error.kind == "hang" else RUNS, _on_nccl(error)
    return found


def _with_tensors(name: str) -> None:
    getattr(six_programs, name)(dist.get_rank(), torch.ones(4), torch.zeros(4))


def _on_nccl(error: RankError) -> str:
    says = book("nccl")
    return next(told for kind, told in ON_NCCL.items() if says[f"kind.{kind}"].en in error.words.en)


def script_of(function: Callable[[torch.device], object]) -> str:
    """A script for torchrun and NCCL that calls a function of a notebook with its GPU; the function comes first."""
    return inspect.getsource(function).rstrip() + _START.format(name=function.__name__)
