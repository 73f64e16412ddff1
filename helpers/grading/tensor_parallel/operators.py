"""07.identity_all_reduce, 07.all_reduce_identity: Megatron's f and g. One does forward what the other does backward."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from helpers.grading.drawing import Axes, Draw
from helpers.grading.kit.judging import expect_tensor, same
from helpers.grading.task import Finding, Task, Trial, World
from helpers.grading.tensor_parallel import LAB
from helpers.grading.tensor_parallel.phases import (
    BACKWARD,
    FORWARD,
    PHASES,
    Call,
    all_reduce,
    backward,
    drawn,
    expect_follows,
    expect_messages,
    gathers,
    in_turn,
    recognise,
)
from helpers.learner.words import Words

OUTPUT = Words(en="the output", zh="输出")
OF_X = Words(en="the gradient of x in {}(x) + x", zh="{}(x) + x 中 x 的梯度")
X_AFTER = Words(en="x, after the call,", zh="调用之后的 x ")
OF_OTHER = Words(en="the gradient of r in {}(x) + r", zh="{}(x) + r 中 r 的梯度")


def make_f(rng: Draw, world_size: int) -> list[dict[str, Any]]:
    """x is the same on every rank, as the input of a layer is; what comes back differs."""
    x = drawn(rng, *shape_of(rng))
    return [{"x": x, "gradient": drawn(rng, *x.shape)} for _ in range(world_size)]


def make_g(rng: Draw, world_size: int) -> list[dict[str, Any]]:
    """x differs, a part of a sum each."""
    shape = shape_of(rng)
    return [{"x": drawn(rng, *shape), "gradient": drawn(rng, *shape)} for _ in range(world_size)]


def shape_of(rng: Draw) -> list[int]:
    """Of two dimensions, then of three and one."""
    return [rng.integer(2, 6) for _ in range(in_turn(rng, 2, 3, 1))]


def act(submitted, inputs: dict[str, Any], trial: Trial) -> Iterator[None]:
    """submitted(x) + r + x: all get the same gradient tensor, r and x later. x is no leaf, as in a model."""
    leaf, other = (inputs["x"].clone().requires_grad_() for _ in range(2))
    x, r = leaf * 1.0, other * 1.0
    y = submitted(x)
    trial.mark(FORWARD)
    output = y.detach().clone() if isinstance(y, torch.Tensor) else y
    is_right = isinstance(y, torch.Tensor) and y.requires_grad and y.shape == r.shape
    yield
    returned = backward(trial, [y + r + x if is_right else y], [inputs["gradient"].clone()])
    return {"returned": returned, "y": output, "x": x, "leaf": leaf.grad, "other": other.grad}


def judge_f(world: World) -> Iterator[Finding]:
    call = Call(world)
    yield from expect_follows(call, F_NAME)
    if call.returned:
        return
    x, gradients = call.inputs[0]["x"], [one["gradient"] for one in call.inputs]
    total, swapped = sum(gradients), []
    for rank, (gradient, got) in enumerate(zip(gradients, call.outputs, strict=True)):
        wrong = {"forward_reduced": call.size * x}
        wrong_back = {"backward_not_reduced": 2 * gradient, "averaged": total / call.size + gradient}
        swapped.append(same(call.size * x, got["y"]) and same(2 * gradient, got["leaf"]))
        if swapped[-1]:
            wrong, wrong_back = ({"operators_swapped": value} for value in (call.size * x, 2 * gradient))
        yield expect_tensor(OUTPUT, x, got["y"], rank=rank, mistakes=wrong)
        yield expect_tensor(OF_X.format(F_NAME), total + gradient, got["leaf"], rank=rank, mistakes=wrong_back)
        beside = {"gradient_changed": [total, total / call.size]}
        yield expect_tensor(OF_OTHER.format(F_NAME), gradient, got["other"], rank=rank, mistakes=beside)
        yield expect_tensor(X_AFTER, x, got["x"], rank=rank)
    other = ["operators_swapped"] if all(swapped) else []
    known = {frozenset([FORWARD]): other, frozenset(PHASES): ["forward_reduced"]}
    keys = known.get(call.sends, [] if call.sends else ["backward_not_reduced"])
    yield from expect_messages(call, FORWARD, [], known=lambda events: keys)
    yield from expect_messages(call, BACKWARD, [all_reduce(x.nbytes)], known=lambda events: keys)


def judge_g(world: World) -> Iterator[Finding]:
    call = Call(world)
    yield from expect_follows(call, G_NAME)
    if call.returned:
        return
    parts, gradients = ([one[name] for one in call.inputs] for name in ("x", "gradient"))
    total, back, swapped = sum(parts), sum(gradients), []
    for rank, (x, gradient, got) in enumerate(zip(parts, gradients, call.outputs, strict=True)):
        wrong = {"forward_not_reduced": x, "averaged": total / call.size}
        averaged = [gradient / call.size + gradient, back / call.size + gradient]
        wrong_back = {"backward_reduced": back + gradient, "averaged": averaged}
        swapped.append(same(x, got["y"]) and same(back + gradient, got["leaf"]))
        if swapped[-1]:
            wrong, wrong_back = ({"operators_swapped": value} for value in (x, back + gradient))
        yield from judge_joined(call, rank, total, wrong)
        yield expect_tensor(OF_X.format(G_NAME), 2 * gradient, got["leaf"], rank=rank, mistakes=wrong_back)
        yield expect_tensor(OF_OTHER.format(G_NAME), gradient, got["other"], rank=rank)
        yield expect_tensor(X_AFTER, x, got["x"], rank=rank, mistakes={"x_changed": total})
    other = ["operators_swapped"] if all(swapped) else []
    known = {frozenset([BACKWARD]): other, frozenset(PHASES): ["backward_reduced"]}
    keys = known.get(call.sends, [] if call.sends else ["forward_not_reduced"])
    right = [all_reduce(total.nbytes)]
    yield from expect_messages(
        call, FORWARD, right, known=lambda events: ["gathers_the_parts"] if gathers(events) else keys
    )
    yield from expect_messages(call, BACKWARD, [], known=lambda events: keys)


def judge_joined(call: Call, rank: int, total: torch.Tensor, wrong: dict[str, Any]) -> Iterator[Finding]:
    """The sum, and not the parts side by side."""
    parts = [one["x"] for one in call.inputs]
    beside = [torch.cat(parts, dim) for dim in range(parts[0].dim())] + [torch.stack(parts)]
    known = wrong | {"gathers_the_parts": beside}
    yield expect_tensor(OUTPUT, total, call.outputs[rank]["y"], rank=rank, mistakes=known)


AXES = Axes(dtypes=("float64", "float32", "bfloat16"), layouts=("contiguous", "transposed"), values=("normal", "zero"))
F_NAME, G_NAME = "identity_all_reduce", "all_reduce_identity"
IDENTITY_ALL_REDUCE = Task(
    key=f"07.{F_NAME}",
    signature=f"{F_NAME}(x)",
    make=make_f,
    axes=AXES,
    act=act,
    judge=judge_f,
    recognise=recognise,
    hints=LAB.hints(
        "operators_swapped",
        "unknown_to_autograd",
        "no_gradient",
        "forward_reduced",
        "backward_not_reduced",
        "averaged",
        "gradient_changed",
    ),
)
ALL_REDUCE_IDENTITY = Task(
    key=f"07.{G_NAME}",
    signature=f"{G_NAME}(x)",
    make=make_g,
    axes=AXES,
    act=act,
    judge=judge_g,
    recognise=recognise,
    hints=LAB.hints(
        "operators_swapped",
        "unknown_to_autograd",
        "no_gradient",
        "gathers_the_parts",
        "forward_not_reduced",
        "backward_reduced",
        "averaged",
        "x_changed",
    ),
)
