"""The same model through torch.distributed.pipelining: its own schedules, and ours, loaded through CSV."""

import tempfile
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.distributed import pipelining
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime as TorchRuntime

from helpers.devices import computing_device
from helpers.observe.equality import assert_equal
from helpers.parallel.pipeline import PipelineStage
from helpers.parallel.pipeline.partition import partition
from helpers.schedules import ORDERS, gpipe, interleaved, one_f_one_b

LOSS = nn.functional.cross_entropy
TORCHS = {"gpipe": pipelining.ScheduleGPipe, "one_f_one_b": pipelining.Schedule1F1B}


def model():
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(8)]).double()


def batch():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(8, 8, generator=generator, dtype=torch.float64)
    return x, torch.randint(0, 8, (8,), generator=generator)


def by_name(whole, parameters):
    names = {parameter: name for name, parameter in whole.named_parameters()}
    return {names[parameter]: parameter.grad for parameter in parameters}


def ours(schedule):
    whole = model()
    stage = PipelineStage(whole, None, schedule, loss=LOSS)
    loss = stage.step(*batch())
    return loss, by_name(whole, stage.parameters())


def theirs(schedule, own_schedule):
    """Their stages and their runtime; with own_schedule their own class, otherwise our list of actions."""
    import torch.distributed as dist

    whole, rank, losses = model(), dist.get_rank(), []
    pieces = partition(whole, schedule.num_stages)
    mine = schedule.stages_of(rank)
    stages = [pipelining.PipelineStage(pieces[s], s, schedule.num_stages, computing_device()) for s in mine]
    options = dict(n_microbatches=schedule.num_microbatches, loss_fn=LOSS)
    if own_schedule:
        runtime = TORCHS[schedule.name](stages[0], **options)
    else:
        runtime = TorchRuntime(stages, **options)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "schedule.csv"
            path.write_text(schedule.to_csv())
            runtime._load_csv(str(path))
    x, y = batch()
    first, last = (x,) if 0 in mine else (), {"target": y, "losses": losses}
    runtime.step(*first, **(last if schedule.num_stages - 1 in mine else {}))
    loss = torch.stack(losses).mean() if losses else None
    return loss, by_name(whole, [p for s in mine for p in pieces[s].parameters()])


def check(mine, torchs):
    for (loss, gradients), (its_loss, its_gradients) in zip(mine, torchs, strict=True):
        assert (loss is None) == (its_loss is None)
        if loss is not None:
            torch.testing.assert_close(loss, its_loss.detach(), rtol=1e-12, atol=0)
        assert_equal(its_gradients, gradients)


@pytest.mark.parametrize("num_ranks", [2, 4])
@pytest.mark.parametrize("make", [gpipe, one_f_one_b])
def test_our_runtime_equals_theirs_with_their_own_schedules(ranks, make, num_ranks):
    schedule = make(num_ranks, 4)
    check(ranks[:num_ranks].run(ours, schedule), ranks[:num_ranks].run(theirs, schedule, own_schedule=True))


@pytest.mark.parametrize("name", ORDERS)
def test_their_runtime_plays_our_schedules(ranks, name):
    schedule = interleaved(4, 4, 2) if name == "interleaved" else ORDERS[name](2, 4)
    check(ranks[:2].run(ours, schedule), ranks[:2].run(theirs, schedule, own_schedule=False))
