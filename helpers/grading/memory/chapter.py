"""05.evaluate, which chapter 05 alone asks: the mean loss of some batches without dropout, and not one graph.

The leaking loop is in the stub. Judged by the peak: one batch under `no_grad` keeps a layer's output and no more.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from helpers.grading.drawing import CaseGenerator, Variations
from helpers.grading.kit import making
from helpers.grading.kit.judging import expect, expect_tensor
from helpers.grading.kit.meter import MemoryMeter, one_thread
from helpers.grading.memory import LAB
from helpers.grading.memory.accumulate import build as model_of
from helpers.grading.memory.accumulate import cast, loaded
from helpers.grading.task import JudgedWorld, Judgement, RankContext, Task
from helpers.learner.words import Words
from helpers.quantities.units import format_bytes

NUM_BATCHES, ROOM, TWO = 6, 1.5, 2.6  # `item()` alone lets two graphs meet, the last one and the next


def make_inputs(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Batches of one size: the mean of their means is the mean."""
    vocab, hidden, shape = rng.integer(5, 7), rng.integer(14, 16), (rng.integer(9, 12), rng.integer(14, 16))
    batches = [[torch.randint(vocab, shape, generator=rng) for _ in "xy"] for _ in range(NUM_BATCHES)]
    inputs = {"sizes": [vocab, hidden], "tied": False, "frozen": [], "dtype": rng.case.dtypes, "batches": batches}
    model = model_of(inputs)
    return [inputs | {"weights": cast(making.random_weights(rng, model), model)}]


def run_submission(submitted, inputs: dict[str, Any], context: RankContext) -> dict[str, Any]:
    model, batches, modes = loaded(inputs), [(x.clone(), y.clone()) for x, y in inputs["batches"]], []
    model.append(nn.Dropout(0.5)).register_forward_pre_hook(lambda *_: modes.append(model[-1].training))
    with MemoryMeter([*model.parameters(), *(tensor for pair in batches for tensor in pair)]) as meter:
        found = submitted(model, batches)
        peak = meter.peak_bytes
    if isinstance(found, float | Tensor):
        found = torch.as_tensor(found, dtype=getattr(torch, inputs["dtype"])).detach().clone()
    training = all(one.training for one in model.modules())
    return {"loss": found, "peak": peak, "dropout": any(modes), "training": training}


def judge(world: JudgedWorld) -> Iterator[Judgement]:
    inputs, got = world.inputs[0], world.outputs[0]
    peaks, mean = {}, torch.zeros(())
    for grad in (True, False):
        peaks[grad], mean = evaluated(inputs, grad)
    yield expect(
        not got["dropout"],
        "the model drops values while it is evaluated",
        "评估时模型仍在做 dropout",
        mistakes=["dropout_on"],
    )
    yield expect_tensor(MEAN, mean, got["loss"])
    yield expect(
        got["training"],
        "the model is not back in training mode: the next training step has no dropout",
        "模型没有回到训练模式：接下来的训练步就没有 dropout 了",
        mistakes=["left_in_eval"],
    )
    mine, due = format_bytes(got["peak"]), format_bytes(peaks[False])
    yield expect(
        got["peak"] <= ROOM * peaks[False],
        f"it holds {mine} at its peak; one batch without a graph needs {due}",
        f"峰值是 {mine}；不记录计算图时，一个 batch 只需要 {due}",
        mistakes=["graphs_in_a_list" if got["peak"] > TWO * peaks[True] else "graph_recorded"],
    )


@one_thread()
def evaluated(inputs: dict[str, Any], grad: bool) -> tuple[int, Tensor]:
    """Bytes at the peak of the first batch, and the mean over all."""
    model, losses, peak = loaded(inputs), [], 0
    for x, y in inputs["batches"]:
        with MemoryMeter([*model.parameters(), x, y]) as meter, torch.set_grad_enabled(grad):
            losses.append(F.cross_entropy(model(x).flatten(0, 1), y.flatten()).detach())
        peak = peak or meter.peak_bytes
    return peak, torch.stack(losses).mean()


MEAN = Words(en="the mean loss", zh="平均 loss")
EVALUATE = Task(
    key="05.evaluate",
    signature="evaluate(model, batches)",
    make_inputs=make_inputs,
    run_submission=run_submission,
    judge=judge,
    hints=LAB.hints("graphs_in_a_list", "graph_recorded", "dropout_on", "left_in_eval"),
    world_sizes=(1,),
    runs_on="process",
    variations=Variations(dtypes=("float64", "float32"), min_cases=2),
)
