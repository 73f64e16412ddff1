"""Experiments of chapter 06 on live ranks: each takes ranks and a schedule, and gives numbers or raises.

equal_to_one_process   three steps of ours: losses, gradients, weights and the clipped norm, on every rank
torch_plays            the same proof for PyTorch's runtime, which loads our schedule as CSV
two_ranks_play         two ranks exchange the messages of 1F1B, with blocking sends or without: what came of it
play_row               on a rank: its part of that
peak_microbatches      how many micro-batches' activations each rank keeps at its peak
messages_of_a_step     how many messages leave all ranks in one step
chained                a model that is taken for the chain of its children: what comes out
train_tied             the two copies of a tied matrix, step by step, with and without their exchange
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from helpers.observe.comms import record_comms
from helpers.observe.equality import assert_equal
from helpers.observe.memory import record_memory
from helpers.parallel.pipeline import PipelineStage, partition
from helpers.ranks import RankError, Ranks
from helpers.schedules import Schedule, one_f_one_b
from helpers.workloads import GPT, GPTConfig, SmallResNet, token_loss

Held = dict[str, Tensor]
MAX_NORM = 0.5
ROUNDING = {"*.key.bias*": 1e-9}  # the gradient of this bias is 0 in theory, so only rounding is left of it
ROWS, WIDE = 16, 4096  # of the micro-batches and layers that are watched; beside these, 64 inputs of width 8 are little


def pipeline_example(kind: str) -> tuple[nn.Module, Tensor, Tensor, object]:
    """A model in float64, inputs, targets and loss: "layers" (a chain of 8), "gpt" (a tied matrix) or "cnn"."""
    torch.manual_seed(0)
    tokens, labels = torch.randint(0, 68, (8, 8)), torch.randint(0, 8, (8,))
    if kind == "gpt":
        return GPT(GPTConfig.tiny(context=8, num_layers=3, hidden=16)).double(), tokens, tokens, token_loss
    if kind == "cnn":
        model, x = SmallResNet(width=4, norm=lambda channels: nn.GroupNorm(2, channels)), torch.randn(8, 1, 8, 8)
    else:
        model, x = nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(8)]), torch.randn(8, 8)
    return model.double(), x.double(), labels, nn.functional.cross_entropy


def equal_to_one_process(ranks: Ranks, schedule: Schedule, kind: str = "layers", **options) -> str:
    """One line that says how equal. options: of PipelineStage. Raises AssertionError where a rank differs."""
    by_rank = ranks[: schedule.num_ranks].run(_trained, kind, schedule, **options)
    return _compared(_trained(kind), by_rank)


def torch_plays(ranks: Ranks, schedule: Schedule) -> str:
    """The gradients of torch.distributed.pipelining's runtime, which plays our schedule, against one process."""
    model, x, y, loss_of = pipeline_example("layers")
    loss_of(model(x), y).backward()
    expected = {name: parameter.grad for name, parameter in model.named_parameters()}
    return _compared(expected, ranks[: schedule.num_ranks].run(_torchs_gradients, schedule))


def peak_microbatches(ranks: Ranks, schedule: Schedule, *, recompute: bool = False) -> list[int]:
    """For each rank, in units of what one micro-batch alone keeps of the widest layer; watched from outside."""
    peaks = ranks[: schedule.num_ranks].run(_peak_bytes, schedule, recompute)
    return [round(peak / (4 * ROWS * WIDE)) for peak in peaks]


def messages_of_a_step(ranks: Ranks, schedule: Schedule) -> int:
    """Messages that all ranks send in one step, counted on the wire."""
    return sum(ranks[: schedule.num_ranks].run(_sends, schedule))


def two_ranks_play(ranks: Ranks, send: str) -> str:
    """How many messages each has received, or the report of the ranks that hang. send: as `play_row` takes it."""
    try:
        return f"messages received by ranks 0 and 1: {ranks[:2].run(play_row, send)}"
    except RankError as error:
        return str(error)


def play_row(send: str) -> int:
    """On a rank of two: the messages of 1F1B with two micro-batches, with "send" or "isend". How many were received."""
    rank, works, received = dist.get_rank(), [], 0
    for action in one_f_one_b(2, 2).actions[rank]:
        if (action.kind == "F") == (rank == 0):  # activations go to rank 1, their gradients to rank 0
            works.append(getattr(dist, send)(torch.zeros(8), 1 - rank))
        else:
            dist.recv(torch.zeros(8), 1 - rank)
            received += 1
    for work in filter(None, works):  # isend gives a handle; send has waited already
        work.wait()
    return received


def chained(model: nn.Module, x: Tensor) -> str:
    """What becomes of the output when a model is taken for the chain of its children, in the words of 06.children."""
    try:
        equal = nn.Sequential(*model.children())(x).allclose(model(x))
    except RuntimeError:
        return "an error"
    return "the same output" if equal else "other numbers, and no error"


class Tied(NamedTuple):
    """apart: the largest difference of the two copies, before the first step and after each. losses: of the steps."""

    apart: list[float]
    losses: list[float]


def train_tied(ranks: Ranks, *, exchange: bool, steps: int = 10) -> Tied:
    """A GPT whose tied matrix stands on the first and the last of four ranks, with and without their exchange."""
    (first, _), *_, (last, losses) = ranks[:4].run(_tied_copies, exchange, steps)
    return Tied([(a - b).abs().max().item() for a, b in zip(first, last, strict=True)], losses)


# -- on a rank -----------------------------------------------------------------------------------------------------
def _trained(kind: str, schedule: Schedule | None = None, **options) -> Held:
    """Three steps: losses, norms, gradients and weights by name. Of one process, or of what this rank holds."""
    model, x, y, loss_of = pipeline_example(kind)
    names = {parameter: name for name, parameter in model.named_parameters()}
    part = PipelineStage(model, None, schedule, loss=loss_of, **options) if schedule else model
    optimizer, losses, norms = torch.optim.AdamW(part.parameters(), lr=1e-2, foreach=False), [], []
    for _ in range(3):
        optimizer.zero_grad()
        losses.append(part.step(x, y) if schedule else _whole_step(model, x, y, loss_of))
        clip = part.clip_grad_norm_ if schedule else lambda most: nn.utils.clip_grad_norm_(model.parameters(), most)
        norms.append(clip(MAX_NORM))
        optimizer.step()
    held = {names[q]: q.detach() for q in part.parameters()} | {f"{names[q]}.grad": q.grad for q in part.parameters()}
    held["norms"] = torch.stack(norms).to(torch.float64)
    return held | ({} if losses[0] is None else {"losses": torch.stack(losses)})


def _whole_step(model: nn.Module, x: Tensor, y: Tensor, loss_of) -> Tensor:
    loss = loss_of(model(x), y)
    loss.backward()
    return loss.detach()


def _torchs_gradients(schedule: Schedule) -> Held:
    """One step of PyTorch's runtime with our order; the gradients that this rank holds."""
    from torch.distributed import pipelining
    from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

    model, x, y, loss_of = pipeline_example("layers")
    names = {parameter: name for name, parameter in model.named_parameters()}
    pieces, mine = partition(model, schedule.num_stages), schedule.stages_of(dist.get_rank())
    cpu, last = torch.device("cpu"), schedule.num_stages - 1
    stages = [pipelining.PipelineStage(pieces[s], s, schedule.num_stages, cpu) for s in mine]
    runtime = _PipelineScheduleRuntime(stages, n_microbatches=schedule.num_microbatches, loss_fn=loss_of)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "schedule.csv")
        path.write_text(schedule.to_csv(), encoding="utf-8")
        runtime._load_csv(str(path))
    runtime.step(*((x,) if 0 in mine else ()), **(dict(target=y, losses=[]) if last in mine else {}))
    return {names[q]: q.grad for s in mine for q in pieces[s].parameters()}


def _peak_bytes(schedule: Schedule, recompute: bool) -> int:
    layers = [nn.Sequential(nn.Linear(8, WIDE), nn.Tanh(), nn.Linear(WIDE, 8)) for _ in range(schedule.num_stages)]
    stage = PipelineStage(layers, None, schedule, loss=nn.functional.cross_entropy, recompute=recompute)
    x, y = _rows(ROWS * schedule.num_microbatches)
    stage.step(x, y)  # the first step agrees on shapes
    with record_memory(stage) as recorder:
        stage.step(x, y)
    return recorder.peak.activations


def _sends(schedule: Schedule) -> int:
    layers = [nn.Linear(8, 8) for _ in range(schedule.num_stages)]
    stage = PipelineStage(layers, None, schedule, loss=nn.functional.cross_entropy)
    x, y = _rows(2 * schedule.num_microbatches)
    stage.step(x, y)  # the first step agrees on shapes
    with record_comms() as recorder:
        stage.step(x, y)
    return sum(event.op == "send" for event in recorder.log.events)


def _tied_copies(exchange: bool, steps: int) -> tuple[list[Tensor], list[float]]:
    """This rank's copy of the token embedding, if it has one, before and after each step; the losses on the last."""
    model, x, y, loss_of = pipeline_example("gpt")
    stage = PipelineStage(model, None, one_f_one_b(dist.get_world_size(), 4), loss=loss_of)
    if not exchange:
        stage.tied = []  # the owners forget each other
    own = [parameter for parameter in stage.parameters() if parameter is model.token_embedding.weight]
    optimizer = torch.optim.AdamW(stage.parameters(), lr=1e-2, foreach=False)
    copies, losses = [q.detach().clone() for q in own], []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = stage.step(x, y)
        optimizer.step()
        copies += [q.detach().clone() for q in own]
        losses += [] if loss is None else [loss.item()]
    return copies, losses


# -- parts ---------------------------------------------------------------------------------------------------------
def _rows(count: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(count, 8), torch.zeros(count).long()


def _compared(expected: Held, by_rank: Sequence[Held]) -> str:
    """Each rank by itself, a tied matrix on both of its owners; then that together they hold everything."""
    together: Held = {}
    for held in by_rank:
        assert_equal({name: expected[name] for name in held}, held, atol=ROUNDING)
        together |= held
    return str(assert_equal(expected, together, atol=ROUNDING))
