"""GPipe and 1F1B on one screen train like one process and like torch.distributed.pipelining, and keep what they say."""

from __future__ import annotations

import inspect
import re
import types

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import pipelining

from helpers.chapters.pipeline import Recorder
from helpers.devices import computing_device
from helpers.grading import grade
from helpers.observe.comms import record_comms
from helpers.observe.equality import assert_equal
from helpers.parallel.pipeline import gpipe_and_1f1b
from helpers.parallel.pipeline.gpipe_and_1f1b import MiniPipeline

STEPS, ROWS, WIDTH, LAYERS = 3, 24, 6, 8
SCHEDULES = {"gpipe": pipelining.ScheduleGPipe, "one_f_one_b": pipelining.Schedule1F1B}
LOSS = nn.functional.mse_loss


def layers():
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(LAYERS))).double()


def batches():
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(2, ROWS, WIDTH, generator=generator, dtype=torch.float64) for _ in range(STEPS)]


def trained(model, part, step):
    """Losses where there are some, and weights and gradients of `part` after each step, by their names in the model."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    optimizer, history = torch.optim.AdamW(part.parameters(), lr=1e-2), {}
    for number, (x, y) in enumerate(batches()):
        optimizer.zero_grad()
        loss = step(x, y)
        optimizer.step()
        history |= {} if loss is None else {f"{number} loss": loss.detach()}
        for parameter in part.parameters():
            history[f"{number} {names[id(parameter)]}"] = parameter.detach().clone()
            history[f"{number} {names[id(parameter)]}.grad"] = parameter.grad.clone()
    return history


def one_process():
    model = layers()

    def step(x, y):
        loss = LOSS(model(x), y)
        loss.backward()
        return loss

    return trained(model, model, step)


def this_stage(model):
    return torch.tensor_split(torch.arange(LAYERS), dist.get_world_size())[dist.get_rank()].tolist()


def ours(schedule, num_microbatches):
    model = layers()
    places = this_stage(model)
    stage = model[places[0] : places[-1] + 1]
    pipeline, depths = MiniPipeline(stage, LOSS, (ROWS // num_microbatches, WIDTH)), []
    stage.register_forward_hook(lambda *_: depths.append(len(pipeline.in_flight) + 1))

    def step(x, y):
        return getattr(pipeline, schedule)(x.chunk(num_microbatches), y.chunk(num_microbatches))

    return trained(model, stage, step) | {"in flight": torch.tensor(max(depths))}


def pytorchs(schedule, num_microbatches):
    model, rank, size, losses = layers(), dist.get_rank(), dist.get_world_size(), []
    places = this_stage(model)
    part = model[places[0] : places[-1] + 1]
    stage = pipelining.PipelineStage(part, rank, size, computing_device())
    runtime = SCHEDULES[schedule](stage, n_microbatches=num_microbatches, loss_fn=LOSS)

    def step(x, y):
        losses.clear()
        runtime.step(*([x] if rank == 0 else []), **(dict(target=y, losses=losses) if rank == size - 1 else {}))
        return torch.stack(losses).mean() if losses else None

    return trained(model, part, step)


def without_depth(results):
    return [{name: tensor for name, tensor in result.items() if name != "in flight"} for result in results]


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("num_ranks", "num_microbatches"), [(2, 4), (4, 4), (4, 8), (4, 2), (3, 1), (1, 4)])
def test_every_rank_equals_one_process(ranks, schedule, num_ranks, num_microbatches):
    alone, results = one_process(), ranks[:num_ranks].run(ours, schedule, num_microbatches)
    for result in without_depth(results):
        assert_equal({name: alone[name] for name in result}, result)
    assert alone.keys() == set().union(*without_depth(results))
    depth = [min(num_ranks - r if schedule == "one_f_one_b" else num_microbatches, num_microbatches)
             for r in range(num_ranks)]  # fmt: skip
    assert [result["in flight"].item() for result in results] == depth


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("num_ranks", [2, 4])
def test_it_trains_as_torch_does(ranks, schedule, num_ranks):
    theirs = ranks[:num_ranks].run(pytorchs, schedule, 4)
    for result, their in zip(without_depth(ranks[:num_ranks].run(ours, schedule, 4)), theirs, strict=True):
        assert_equal(their, result)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_each_micro_batch_sends_one_activation_and_one_gradient_per_link(ranks, schedule):
    def messages():
        with record_comms() as recorder:
            ours(schedule, 4)
        return recorder.log.count("send"), recorder.log.payload_bytes("send")

    payload = ROWS // 4 * WIDTH * 8
    ends, middle = 4 * STEPS, 8 * STEPS
    assert ranks.run(messages) == [(n, n * payload) for n in (ends, middle, middle, ends)]


def test_a_gradient_of_another_micro_batch_is_noticed(ranks):
    """Planted: rank 0 runs backward of the newest micro-batch, while the gradient that arrives is of the oldest."""

    def newest_first():
        start = MiniPipeline.start

        def with_stack(self, inputs, targets):
            start(self, inputs, targets)
            self.in_flight = Stack() if self.rank == 0 else self.in_flight

        MiniPipeline.start = with_stack
        try:
            return ours("gpipe", 4)
        finally:
            MiniPipeline.start = start

    alone, result = one_process(), without_depth(ranks[:2].run(newest_first))[0]
    with pytest.raises(AssertionError):
        assert_equal({name: alone[name] for name in result}, result)


class Stack(list):
    popleft = list.pop


ANSWER = """

def row(loop, rank, num_stages, num_microbatches):
    recorder = Recorder(rank, num_stages)
    getattr(recorder, loop)([None] * num_microbatches, [None] * num_microbatches)
    return recorder.row


def gpipe(rank, num_stages, num_microbatches):
    return row("gpipe", rank, num_stages, num_microbatches)


def one_f_one_b(rank, num_stages, num_microbatches):
    return row("one_f_one_b", rank, num_stages, num_microbatches)
"""


@pytest.mark.parametrize("loop", SCHEDULES)
def test_the_loops_copied_alone_into_an_answer_pass_the_lab(loop):
    text = inspect.getsource(gpipe_and_1f1b)
    assert "helpers" not in re.findall(r"^(?:from|import) (\w+)", text, re.MULTILINE)
    module = types.ModuleType("copied")
    exec(compile(text + inspect.getsource(Recorder) + ANSWER, "copied.py", "exec"), module.__dict__)
    assert grade(f"06.{loop}", getattr(module, loop)).passed
