"""What chapter 08 tries beside a plain step: clipping, resuming on other ranks, devices that are too small."""

from __future__ import annotations

import os
import tempfile

import torch
import torch.distributed as dist
from torch.optim import AdamW

from helpers.observe.equality import assert_equal
from helpers.observe.zero_runs import ADAMW, example, trained, under_stage
from helpers.parallel.memory import Budget, OutOfBudget
from helpers.parallel.zero import Zero1, Zero3, sharded_checkpoint
from helpers.ranks import Ranks
from helpers.workloads import MLP, token_loss

KEY_BIAS = {"*.key.bias": 1e-9}  # its gradient is zero in theory, so it holds rounding noise
WIDE = [64, 256, 256, 256, 256, 32]  # an MLP of 0.9 MB of weights


# ---- the norm of the gradients ----


def norm_of_shards() -> float:
    """On a rank of 4: what torch.nn.utils.clip_grad_norm_ says of the shards that this rank holds."""
    return torch.nn.utils.clip_grad_norm_(list(_after_backward().parameters()), 0.5).item()


def norm_of_all() -> float:
    """On a rank of 4: what Zero3.clip_grad_norm_ says."""
    return _after_backward().clip_grad_norm_(0.5).item()


def norm_in_one_process() -> float:
    model, tokens = example()
    token_loss(model(tokens), tokens).backward()
    return torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5).item()


def _after_backward() -> Zero3:
    model, tokens = example()
    model, rows = Zero3(model), tokens.chunk(dist.get_world_size())[dist.get_rank()]
    token_loss(model(rows), rows).backward()
    return model


# ---- saved by some ranks, resumed by others ----


def five_steps(folder: str, resume: bool) -> dict:
    """On a rank: five steps under stage 3, then saved; or read, then five more. Returns the whole weights."""
    model, tokens = example()
    rows = tokens.chunk(dist.get_world_size())[dist.get_rank()]
    model, optimizer = under_stage(3, model, **ADAMW)
    if resume:
        sharded_checkpoint.load(folder, model, optimizer)
    for _ in range(5):
        optimizer.zero_grad()
        token_loss(model(rows), rows).backward()
        optimizer.step()
    if not resume:
        sharded_checkpoint.save(folder, model, optimizer)
    return model.full_state()


def resumed(writers: Ranks, readers: Ranks) -> tuple[list[str], object]:
    """The files of `writers` after five steps, and the verdict on five more by `readers` against one process."""
    weights = {name: tensor for name, tensor in trained().items() if name != "losses"}
    with tempfile.TemporaryDirectory() as place:
        folder = os.path.join(place, "step_5")
        writers.run(five_steps, folder, False)
        found = readers.run(five_steps, folder, True)
        return sorted(os.listdir(folder)), assert_equal(weights, found, atol=KEY_BIAS)


# ---- devices that are too small ----


def fits(num_bytes: int, on_meta: bool = False, offload: bool = False) -> tuple[str, dict | None]:
    """On a rank: one step of stage 3 on a device of so many bytes: a verdict, and the whole weights if it fits."""
    torch.manual_seed(0)
    budget, failed = Budget(num_bytes), "cannot be built"
    options = dict(offload=budget if offload else None, limit=1, prefetch=0)
    try:
        with budget:
            model = Zero3.build(lambda: MLP(WIDE), **options) if on_meta else Zero3(MLP(WIDE), **options)
            failed = "is built, and cannot be trained"
            optimizer = AdamW(model.parameters(), **ADAMW)
            model(torch.ones(4, 64)).square().mean().backward()
            optimizer.step()
    except OutOfBudget:
        return failed, None
    return "trains", model.full_state()


# ---- an optimizer that looks at more than one number ----


def refused() -> str:
    """On a rank: the beginning of what Zero1 says to Adafactor."""
    try:
        Zero1(MLP([4, 4]).parameters(), torch.optim.Adafactor, lr=0.1)
    except ValueError as error:
        return str(error).partition(":")[0]
    return "taken"
