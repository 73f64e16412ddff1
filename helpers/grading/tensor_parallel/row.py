"""07.row: each rank has some rows of A, which are columns of nn.Linear's weight, and gives a part of a sum."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from helpers.grading.drawing import Draw
from helpers.grading.kit.judging import expect_tensor
from helpers.grading.task import Finding, Task, Trouble, World
from helpers.grading.tensor_parallel import LAB, phases
from helpers.grading.tensor_parallel.layers import (
    AXES,
    BATCHES,
    GRADIENT,
    OF_X,
    OUTPUT,
    Whole,
    act,
    judge_beside,
    judge_copy,
    judge_moved,
    judge_parameter,
    plain_layer,
    recognised_shapes,
    rows_of,
)
from helpers.grading.tensor_parallel.phases import (
    BACKWARD,
    FORWARD,
    Call,
    all_reduce,
    drawn,
    expect_follows,
    expect_messages,
    gathers,
    in_turn,
)
from helpers.records import CommEvent

PART_WIDTHS = (5, 7)  # of x on a rank: no part of these is one of these


def make(rng: Draw, world_size: int) -> list[dict[str, Any]]:
    """What comes back is the same on every rank. Also with one output."""
    width, out_features = rng.one_of(*PART_WIDTHS), in_turn(rng, 3, 4, 1, rng.integer(2, 4))
    layer, rows = plain_layer(rng, world_size * width, out_features), rows_of(rng)
    gradient = drawn(rng, *rows, out_features)
    return [layer | {"x": drawn(rng, *rows, width), "gradient": gradient} for _ in range(world_size)]


def judge(world: World) -> Iterator[Finding]:
    call = Call(world)
    yield from expect_follows(call, "layer(x)")
    if call.returned:
        return
    inputs = call.inputs[0]
    x = torch.cat([one["x"] for one in call.inputs], dim=-1)
    whole = Whole(x, inputs["weight"], inputs["bias"], inputs["gradient"])
    for rank in range(call.size):
        yield from judge_rank(call, rank, whole)
    one = all_reduce(whole.y[0].nbytes)
    yield from expect_messages(
        call,
        FORWARD,
        [one] * BATCHES,
        known=lambda events: ["gathers_the_input"] if gathers(events) else [] if events else ["forward_not_reduced"],
    )
    yield from expect_messages(
        call,
        BACKWARD,
        [],
        known=lambda events: ["backward_reduced"] if len(events) == BATCHES else of_parameters(events, inputs),
    )


def judge_rank(call: Call, rank: int, whole: Whole) -> Iterator[Finding]:
    inputs, got, size = call.inputs[rank], call.outputs[rank], call.size
    weight, bias = inputs["weight"].chunk(size, dim=1)[rank], inputs["bias"]
    wrong = {
        "not_cut": inputs["weight"],
        "not_parameters": None,
        "same_part_everywhere": inputs["weight"].chunk(size, dim=1)[0],
        "dealt_out": [inputs["weight"][:, other::size] for other in range(size)],
    }
    yield from judge_parameter(call, rank, "weight", weight, wrong)
    if bias is not None:
        alone = "bias_on_one_rank" if rank else "not_parameters"
        yield from judge_parameter(call, rank, "bias", bias, {"bias_shared_out": bias / size, alone: None})
    yield judge_output(call, rank, whole)
    yield from judge_copy(call, rank)
    yield from judge_beside(call, rank)
    yield from judge_moved(call, rank, whole.y)
    part = whole.x.chunk(size, dim=-1)[rank]
    yield expect_tensor(OF_X, part, got["x"], rank=rank, mistakes={"backward_reduced": part * size})
    right = {"weight": whole.gradients["weight"].chunk(size, dim=1)[rank]}
    if bias is not None:
        right["bias"] = whole.gradients["bias"]
    for name in got["gradients"].keys() & right.keys():
        value = right[name]
        wrong = {"backward_reduced": value * size}
        if name == "bias":
            wrong = {
                "bias_shared_out": value / size,
                "bias_on_one_rank": [None, value * 0] if rank else [],
                "gradients_reduced": value * size,
            }
        yield expect_tensor(GRADIENT.format(name), value, got["gradients"][name], rank=rank, mistakes=wrong)


def of_parameters(events: Sequence[CommEvent], inputs: dict[str, Any]) -> list[str]:
    """Whether the messages of backward are as many as there are parameters, for each batch or once."""
    count = 1 if inputs["bias"] is None else 2
    return ["gradients_reduced"] if len(events) in (count, BATCHES * count) else []


def judge_output(call: Call, rank: int, whole: Whole) -> Finding:
    inputs, size = call.inputs[rank], call.size
    bias = 0 if inputs["bias"] is None else inputs["bias"]
    part = inputs["x"] @ inputs["weight"].chunk(size, dim=1)[rank].T
    wrong = {
        "bias_on_every_rank": whole.y + (size - 1) * bias,
        "forward_not_reduced": [part, part + bias, part + bias / size],
        "bias_forgotten": whole.y - bias,
        "averaged": [whole.y / size, (whole.y - bias) / size + bias],
    }
    return expect_tensor(OUTPUT, whole.y, call.outputs[rank]["y"], rank=rank, mistakes=wrong)


def recognise(trouble: Trouble) -> list[str]:
    """By the width of x in the product: the given one, or a part of it."""
    known = {"product": ["cut_across"], "bias": ["bias_cut"], "": []}[recognised_shapes(trouble.text)]
    product = re.search(r"\(\d+x(\d+) and \d+x\d+\)", trouble.text)
    if product and int(product.group(1)) not in PART_WIDTHS:
        known = ["input_cut_again"] if int(product.group(1)) < min(PART_WIDTHS) else []
    return phases.recognise(trouble) + known


ROW = Task(
    key="07.row",
    signature="RowParallelLinear(linear)",
    make=make,
    axes=AXES,
    act=act,
    judge=judge,
    recognise=recognise,
    hints=LAB.hints(
        "unknown_to_autograd",
        "no_gradient",
        "cut_across",
        "input_cut_again",
        "bias_cut",
        "gathers_the_input",
        "bias_on_every_rank",
        "bias_shared_out",
        "bias_on_one_rank",
        "not_parameters",
        "same_part_everywhere",
        "dealt_out",
        "not_cut",
        "view_of_the_whole",
        "forward_not_reduced",
        "bias_forgotten",
        "averaged",
        "backward_reduced",
        "gradients_reduced",
    ),
)
