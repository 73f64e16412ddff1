"""wb.merge: the attention over two blocks of keys from that over each, as every hop of ring attention needs it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from helpers.grading.cases import CaseGenerator, Variations
from helpers.grading.kit.model_tools import one_thread
from helpers.grading.task import JudgedWorld, Judgement, RankContext, Task
from helpers.grading.whiteboard import LAB
from helpers.grading.whiteboard.values import judged
from helpers.learner.words import Words

NAMES = {"out": Words(en="the output", zh="输出"), "lse": Words(en="the log of the sum", zh="指数和的对数 lse")}
LARGE = 1e3


def make_inputs(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """From the second case on, a row sees nothing of the one block, and another row nothing of the other."""
    rows, size, of_block = rng.integer(5, 9), rng.integer(2, 4), rng.integer(2, 6)
    inputs: dict[str, Any] = {}
    for number, name in enumerate("ab"):
        scores = drawn(rng, rows, of_block) * (LARGE if rng.case.values == "large" else 1)
        out, lse = scores.softmax(1) @ drawn(rng, of_block, size), scores.logsumexp(1)
        if rng.case.number:
            out[number], lse[number] = 0.0, -torch.inf
        inputs |= {f"out_{name}": out, f"lse_{name}": lse}
    return [inputs]


def drawn(rng: CaseGenerator, *shape: int) -> Tensor:
    values = rng.tensor(*shape)
    return values / 1e6 if rng.case.values == "large" else values


def run_submission(submitted, inputs: dict[str, Any], context: RankContext) -> dict[str, Any]:
    with one_thread():
        result = submitted(*(inputs[name].clone() for name in ("out_a", "lse_a", "out_b", "lse_b")))
    pair = result if isinstance(result, tuple | list) and len(result) == 2 else (result, None)
    return {name: one.clone() if isinstance(one, Tensor) else None for name, one in zip(NAMES, pair, strict=True)}


def judge(world: JudgedWorld) -> Iterator[Judgement]:
    inputs = world.inputs[0]
    (a, lse_a), (b, lse_b) = ((inputs[f"out_{name}"], inputs[f"lse_{name}"]) for name in "ab")
    lse = torch.logaddexp(lse_a, lse_b)
    own, other = (lse_a - lse).exp()[:, None], (lse_b - lse).exp()[:, None]
    right = {"out": own * a + other * b, "lse": lse}
    yield from judged(
        NAMES,
        right,
        world.outputs[0],
        mistaken(a, lse_a, b, lse_b)
        | {
            "weights_exchanged": {"out": other * a + own * b},
            "added": {"out": a + b},
            "mean_of_both": {"out": (a + b) / 2},
        },
    )


def mistaken(a: Tensor, lse_a: Tensor, b: Tensor, lse_b: Tensor) -> dict[str, dict[str, Tensor]]:
    top = torch.maximum(lse_a, lse_b)
    exp_a, exp_b = lse_a.exp(), lse_b.exp()
    shifted = (lse_a - top).exp()[:, None] * a + (lse_b - top).exp()[:, None] * b
    bare = (exp_a[:, None] * a + exp_b[:, None] * b) / (exp_a + exp_b)[:, None]
    plain = (lse_a[:, None] * a + lse_b[:, None] * b) / (lse_a + lse_b)[:, None]
    return {
        "overflows": {"out": bare, "lse": (exp_a + exp_b).log()},
        "weights_without_exp": {"out": plain},
        "not_divided": {"out": shifted},
        "larger_lse": {"lse": top},
        "lse_added": {"lse": lse_a + lse_b},
    }


MERGE = Task(
    key="wb.merge",
    signature="merge(out_a, lse_a, out_b, lse_b)",
    make_inputs=make_inputs,
    run_submission=run_submission,
    judge=judge,
    hints=LAB.hints(
        "overflows",
        "weights_without_exp",
        "weights_exchanged",
        "mean_of_both",
        "added",
        "not_divided",
        "larger_lse",
        "lse_added",
    ),
    world_sizes=(1,),
    runs_on="process",
    variations=Variations(layouts=("contiguous", "transposed"), values=("normal", "large"), min_cases=3),
    must_not_change=("out_a", "lse_a", "out_b", "lse_b"),
)
