"""07.column: each rank has some columns of A, which are rows of nn.Linear's weight, and so a part of the output."""

from __future__ import annotations

from collections.abc import Iterator
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


def make(rng: Draw, world_size: int) -> list[dict[str, Any]]:
    """in_features is odd: only the output can be cut. One column a rank, too."""
    in_features, out_features = 2 * rng.integer(2, 4) + 1, world_size * in_turn(rng, 3, 1, 4, rng.integer(2, 5))
    layer, rows = plain_layer(rng, in_features, out_features), rows_of(rng)
    x, gradients = (
        drawn(rng, *rows, in_features),
        [drawn(rng, *rows, out_features // world_size) for _ in range(world_size)],
    )
    return [layer | {"x": x, "gradient": gradient} for gradient in gradients]


def judge(world: World) -> Iterator[Finding]:
    call = Call(world)
    yield from expect_follows(call, "layer(x)")
    if call.returned:
        return
    inputs = call.inputs[0]
    gradient = torch.cat([one["gradient"] for one in call.inputs], dim=-1)
    whole = Whole(inputs["x"], inputs["weight"], inputs["bias"], gradient)
    for rank in range(call.size):
        yield from judge_rank(call, rank, whole)
    one, parameters = all_reduce(inputs["x"][0].nbytes), 2 if inputs["bias"] is None else 3
    yield from expect_messages(
        call, FORWARD, [], known=lambda events: ["gathers_the_output" if gathers(events) else "forward_reduced"]
    )
    yield from expect_messages(
        call,
        BACKWARD,
        [one] * BATCHES,
        known=lambda events: {0: ["backward_not_reduced"], BATCHES * parameters: ["gradients_reduced"]}.get(
            len(events), []
        ),
    )


def judge_rank(call: Call, rank: int, whole: Whole) -> Iterator[Finding]:
    inputs, got, size = call.inputs[rank], call.outputs[rank], call.size
    parts = whole.y.chunk(size, dim=-1)
    bias = 0 if inputs["bias"] is None else inputs["bias"].chunk(size)[rank]
    for name in ("weight", "bias"):
        if inputs[name] is not None:
            yield from judge_parameter(call, rank, name, inputs[name].chunk(size)[rank], wrong_cuts(inputs[name], call))
    wrong = {"bias_forgotten": parts[rank] - bias, "forward_reduced": sum(parts)}
    wrong |= {"gathers_the_output": whole.y} if gathers(call.events[rank][FORWARD]) else {}
    yield expect_tensor(OUTPUT, parts[rank], got["y"], rank=rank, mistakes=wrong)
    yield from judge_copy(call, rank)
    yield from judge_beside(call, rank)
    yield from judge_moved(call, rank, parts[rank])
    own = inputs["gradient"] @ inputs["weight"].chunk(size)[rank]
    wrong = {"backward_not_reduced": own, "averaged": whole.x / size}
    yield expect_tensor(OF_X, whole.x, got["x"], rank=rank, mistakes=wrong)
    for name in got["gradients"].keys() & whole.gradients.keys():
        pieces = whole.gradients[name].chunk(size)
        wrong = {"gradients_reduced": [sum(pieces), sum(pieces) / size]}
        yield expect_tensor(GRADIENT.format(name), pieces[rank], got["gradients"][name], rank=rank, mistakes=wrong)


def wrong_cuts(tensor: torch.Tensor, call: Call) -> dict[str, Any]:
    """By mistake; on which rank does not matter."""
    size = call.size
    dealt = [tensor[rank::size] for rank in range(size)]
    return {
        "not_cut": tensor,
        "not_parameters": None,
        "same_part_everywhere": tensor.chunk(size)[0],
        "dealt_out": dealt,
    }


def recognise(trouble: Trouble) -> list[str]:
    known = {"product": ["cut_across"], "bias": ["bias_not_cut"], "": []}
    return phases.recognise(trouble) + known[recognised_shapes(trouble.text)]


COLUMN = Task(
    key="07.column",
    signature="ColumnParallelLinear(linear)",
    make=make,
    axes=AXES,
    act=act,
    judge=judge,
    recognise=recognise,
    hints=LAB.hints(
        "unknown_to_autograd",
        "no_gradient",
        "cut_across",
        "bias_not_cut",
        "not_parameters",
        "same_part_everywhere",
        "dealt_out",
        "gathers_the_output",
        "not_cut",
        "view_of_the_whole",
        "bias_forgotten",
        "forward_reduced",
        "backward_not_reduced",
        "averaged",
        "gradients_reduced",
    ),
)
