"""What chapter 09 runs on its ranks: one model under many plans, beside one process, and what each axis sends.

The functions that `ranks.run` calls are the short ones; those that take `ranks` call them and compare.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace

import torch
from torch import Tensor
from torch.optim import AdamW

from helpers.compose import Plan, Trainer
from helpers.observe.comms import record_comms
from helpers.observe.equality import assert_equal
from helpers.predict.traffic.axes import axis_traffic
from helpers.ranks import Ranks
from helpers.records import AxisTraffic, traffic_by_axis
from helpers.workloads import GPT, GPTConfig, characters, token_loss

CUBE = Plan(dp=2, pp=2, tp=2, num_microbatches=4)
ROWS, TOKENS = 16, 16  # of a global batch
MAX_NORM = 0.5
ADAMW = dict(lr=3e-3, eps=1e-6)
NO_GRADIENT = {"*key.bias": 1e-9}  # zero in theory, so it holds rounding noise
BYTES_MODEL = GPTConfig(vocab_size=68, context=64, num_layers=4, num_heads=4, hidden=128)


def example(step: int) -> tuple[Tensor, Tensor]:
    """The global batch of a step, the same on every rank: tokens and targets, (16, 16) each."""
    return characters().batch(step, ROWS, TOKENS)


def small_gpt() -> GPT:
    """A GPT of four layers in float64, built after the same seed everywhere."""
    torch.manual_seed(0)
    return GPT(GPTConfig.tiny(context=TOKENS, num_layers=4)).double()


# ---- equal to one process ----


def trained_alone(steps: int, *, clip: bool = True) -> dict[str, Tensor]:
    """One process, a plain loop: losses, norms before clipping, and weights."""
    model, losses, norms = small_gpt(), [], []
    optimizer = AdamW(model.parameters(), **ADAMW)
    for step in range(steps):
        tokens, targets = example(step)
        optimizer.zero_grad()
        loss = token_loss(model(tokens), targets)
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM if clip else torch.inf))
        optimizer.step()
        losses.append(loss.detach())
    return _told(losses, norms, model.state_dict())


def trained(plan: Plan, steps: int, *, load: str = "", save: str = "") -> dict[str, Tensor]:
    """On a rank: the same by a plan. load: a folder to go on from. save: one to write to at the end."""
    how = dict(loss=token_loss, optimizer=AdamW, max_norm=MAX_NORM, **ADAMW)
    model = small_gpt()
    trainer = Trainer.load(load, model, plan, **how) if load else Trainer(model, plan, **how)
    losses, norms = [], []
    for step in range(trainer.steps, trainer.steps + steps):
        losses.append(trainer.step(*example(step)))
        norms.append(trainer.grad_norm)
    if save:
        trainer.save(save)
    return _told(losses, norms, trainer.full_state())


def _told(losses: list[Tensor], norms: list[Tensor], state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {"losses": torch.stack(losses), "norms": torch.stack(norms)} | state


def beside_one_process(ranks: Ranks, plan: Plan, steps: int = 8) -> tuple[list[float], list[float], str]:
    """Losses of one process, of the plan on rank 0, and the verdict on losses, norms and weights of every rank."""
    alone, found = trained_alone(steps), ranks.run(trained, plan, steps)
    verdict = assert_equal(alone, found, rtol=1e-10, atol=NO_GRADIENT)
    return alone["losses"].tolist(), found[0]["losses"].tolist(), verdict


# ---- beside torch's own parts ----


def composed(plan: Plan, steps: int, *, by_torch: bool) -> dict[str, Tensor]:
    """On a rank: losses and weights of an untied GPT, by torch's parts or by ours, without clipping."""
    from helpers.observe.composed_by_torch import TorchTrainer  # imports DTensor for seconds, and one cell needs it

    torch.manual_seed(0)
    model = GPT(GPTConfig.tiny(context=TOKENS, tied=False)).double()
    ours = dict(loss=token_loss, optimizer=AdamW)
    trainer = TorchTrainer(model, plan, **ADAMW) if by_torch else Trainer(model, plan, **ours, **ADAMW)
    losses = [trainer.step(*example(step)) for step in range(steps)]
    return {"losses": torch.stack(losses).double()} | trainer.full_state()


def beside_torch(ranks: Ranks, plan: Plan, steps: int = 3) -> str:
    """The verdict on both, on every rank."""
    theirs, ours = (ranks.run(composed, plan, steps, by_torch=by_torch) for by_torch in (True, False))
    return assert_equal(theirs[0], ours, rtol=1e-10, atol=NO_GRADIENT)


# ---- saved under one plan, resumed under another ----


def resumed(before: tuple[Ranks, Plan], after: tuple[Ranks, Plan], steps: int = 4):
    """Losses of one process over twice `steps`, of both plans one after the other, the bytes of the files by name, the
    bytes of one process's file, and the verdict."""
    (writers, old), (readers, new) = before, after
    alone = trained_alone(2 * steps)
    with tempfile.TemporaryDirectory() as place:
        folder, single = (os.path.join(place, name) for name in ("step_4", "alone"))
        first = writers.run(trained, old, steps, save=folder)[0]
        writers[:1].run(trained, Plan(), steps, save=single)
        files = {name: _size(folder, name) for name in sorted(os.listdir(folder)) if name.endswith(".pt")}
        whole = _size(single, "rank_0.pt")
        second = readers.run(trained, new, steps, load=folder)
    late = {name: tensor[steps:] if name in ("losses", "norms") else tensor for name, tensor in alone.items()}
    verdict = assert_equal(late, second, rtol=1e-10, atol=NO_GRADIENT)
    losses = [one["losses"].tolist() for one in (alone, first, second[0])]
    return *losses, files, whole, verdict


def _size(folder: str, name: str) -> int:
    return os.path.getsize(os.path.join(folder, name))


# ---- what each axis sends ----


def step_log(plan: Plan, num_sequences: int) -> AxisTraffic:
    """On a rank: what it sends by axis in the second step of `BYTES_MODEL`, from the wire's log."""
    torch.manual_seed(0)
    trainer = Trainer(GPT(BYTES_MODEL), plan, loss=token_loss, optimizer=torch.optim.SGD, lr=0.1)
    tokens = torch.randint(0, BYTES_MODEL.vocab_size, (num_sequences, BYTES_MODEL.context))
    trainer.step(tokens, tokens)
    with record_comms() as recorder:
        trainer.step(tokens, tokens)
    return traffic_by_axis(recorder.log, trainer.mesh)


def busiest(plan: Plan, num_sequences: int) -> dict[str, float]:
    """Predicted: bytes that a ring makes the rank send that sends most, by axis."""
    found = [predicted(plan, num_sequences, rank) for rank in range(plan.world_size)]
    most = max(found, key=AxisTraffic.sent_bytes)
    return {axis: most.sent_bytes(axis) for axis in ("tp", "dp", "pp") if getattr(plan, axis) > 1}


def predicted(plan: Plan, num_sequences: float, rank: int) -> AxisTraffic:
    rows = num_sequences // (plan.dp * plan.num_microbatches)
    return axis_traffic(BYTES_MODEL.spec, replace(plan, micro_batch=rows), rank, dtype_bytes=4)


def counted(ranks: Ranks, plan: Plan, num_sequences: int) -> float:
    """What the wire logged of the busiest rank. RuntimeError where a rank's log is not the prediction, to the byte."""
    logs = ranks[: plan.world_size].run(step_log, plan, num_sequences)
    for rank, log in enumerate(logs):
        if log != (expected := predicted(plan, num_sequences, rank)):
            raise RuntimeError(f"rank {rank} sent {log}, and {expected} was predicted")
    return max(log.sent_bytes() for log in logs)
