"""wb.experts: a mixture of experts in one process: choose, send each token to its experts, add up what comes back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from helpers.grading.cases import CaseGenerator, Variations
from helpers.grading.kit.comparisons import expect
from helpers.grading.kit.model_tools import describe_if_detached, one_thread
from helpers.grading.task import JudgedWorld, Judgement, RankContext, Task
from helpers.grading.whiteboard import LAB
from helpers.grading.whiteboard.values import judged
from helpers.learner.words import Words

NAMES = {
    "out": Words(en="the output", zh="输出"),
    "x": Words(en="the gradient of x", zh="x 的梯度"),
    "logits": Words(en="the gradient of logits", zh="logits 的梯度"),
}


def make_inputs(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Two or three experts a token. In the second case nobody chooses one of them, in the third there is one token."""
    number = rng.case.number
    count, tokens, size = rng.integer(5, 6), 1 if number == 2 else rng.integer(8, 12), rng.integer(3, 4)
    logits = rng.tensor(tokens, count)
    if number == 1:
        logits[:, rng.integer(0, count - 1)] -= 50
    x, weights, factor = rng.tensor(tokens, size), rng.normal(count, size, size), rng.normal(tokens, size)
    return [{"x": x, "logits": logits, "weights": weights, "factor": factor, "k": rng.integer(2, 3)}]


def run_submission(submitted, inputs: dict[str, Any], context: RankContext) -> dict[str, Any]:
    """Output, both gradients, and how many tokens came in each call of each expert."""
    x, logits = (inputs[name].clone().requires_grad_() for name in ("x", "logits"))
    calls: list[list[int]] = [[] for _ in inputs["weights"]]
    with one_thread():
        experts = [counted(weight, given) for weight, given in zip(inputs["weights"], calls, strict=True)]
        out = submitted(x, logits, experts, inputs["k"])
        if describe_if_detached(out) or out.shape != x.shape:
            return {"returned": describe_if_detached(out) or f"Tensor{tuple(out.shape)}"}
        (inputs["factor"] * out).sum().backward()
    return {"out": out.detach().clone(), "x": x.grad, "logits": logits.grad, "calls": calls}


def counted(weight: Tensor, given: list[int]) -> Callable[[Tensor], Tensor]:
    """An expert: (tokens, size) to the same shape. It notes how many tokens it was given."""

    def expert(tokens: Tensor) -> Tensor:
        if tokens.dim() != 2:
            raise ValueError(f"an expert takes (tokens, size) and got the shape {tuple(tokens.shape)}")
        given.append(len(tokens))
        return torch.tanh(tokens @ weight)

    return expert


def judge(world: JudgedWorld) -> Iterator[Judgement]:
    inputs, got = world.inputs[0], world.outputs[0]
    if "returned" in got:
        yield Judgement(ok=False, message=RETURNED.format(got["returned"]))
        return
    right, mistakes = combined(inputs, weigh), {key: combined(inputs, way) for key, way in WAYS.items()}
    mistakes["router_gets_nothing"] = {"logits": None}
    yield from judged(NAMES, right, got, mistakes)
    yield from judge_calls(inputs, got["calls"])


def judge_calls(inputs: dict[str, Any], calls: list[list[int]]) -> Iterator[Judgement]:
    chosen = inputs["logits"].topk(inputs["k"]).indices
    wanted = torch.bincount(chosen.flatten(), minlength=len(calls)).tolist()
    for number, (given, tokens) in enumerate(zip(calls, wanted, strict=True)):
        full = [count for count in given if count]
        known = ["all_to_all_experts"] if sum(full) > tokens else ["called_often"] if sum(full) == tokens else []
        yield expect(
            full == [tokens] * bool(tokens),
            f"expert {number} is called with {full} tokens, expected {tokens} in one call",
            f"专家 {number} 被调用时拿到的 token 数是 {full}，应为一次 {tokens} 个",
            mistakes=known,
        )


# -- what is right, and what known mistakes give ---------------------------------------------------------------------
Weigh = Callable[[Tensor, int], Tensor]


def chosen_only(logits: Tensor, k: int) -> Tensor:
    """True at the k largest of each token."""
    return torch.zeros_like(logits, dtype=torch.bool).scatter(1, logits.topk(k).indices, True)


def weigh(logits: Tensor, k: int) -> Tensor:
    """(tokens, experts): the softmax over the chosen ones, 0 for the others."""
    return logits.masked_fill(~chosen_only(logits, k), -torch.inf).softmax(1)


def last_one(logits: Tensor, k: int) -> Tensor:
    """Where each expert writes over what stands there, the last of the chosen is left."""
    places = torch.arange(logits.shape[1]).where(chosen_only(logits, k), -1)
    return weigh(logits, k) * (places == places.amax(1, keepdim=True))


WAYS: dict[str, Weigh] = {
    "softmax_over_all": lambda logits, k: logits.softmax(1) * chosen_only(logits, k),
    "weights_forgotten": lambda logits, k: chosen_only(logits, k).to(logits.dtype) + 0 * logits,
    "overwritten": last_one,
    "first_choice_alone": lambda logits, k: weigh(logits, k) * chosen_only(logits, 1),
}


@one_thread()
def combined(inputs: dict[str, Any], way: Weigh) -> dict[str, Tensor | None]:
    """Output and gradients where all experts see all tokens and are weighed in this way."""
    x, logits = (inputs[name].clone().requires_grad_() for name in ("x", "logits"))
    every = torch.tanh(torch.einsum("th,ehk->tek", x, inputs["weights"]))  # (tokens, experts, size)
    out = (way(logits, inputs["k"])[..., None] * every).sum(1)
    (inputs["factor"] * out).sum().backward()
    return {"out": out.detach(), "x": x.grad, "logits": logits.grad}


RETURNED = Words(
    en="moe returns {}, expected a tensor of the shape of x that follows gradients",
    zh="moe 返回的是 {}，应为形状与 x 相同、带梯度的张量",
)
EXPERTS = Task(
    key="wb.experts",
    signature="moe(x, logits, experts, k)",
    make_inputs=make_inputs,
    run_submission=run_submission,
    judge=judge,
    hints=LAB.hints(
        "softmax_over_all",
        "weights_forgotten",
        "overwritten",
        "first_choice_alone",
        "router_gets_nothing",
        "all_to_all_experts",
        "called_often",
    ),
    world_sizes=(1,),
    runs_on="process",
    variations=Variations(layouts=("contiguous", "transposed"), min_cases=3),
    must_not_change=("x", "logits"),
)
