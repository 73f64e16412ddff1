"""Judges wb.experts: a mixture of experts in one process, which routes each token to its k experts and adds the
results.

Output and gradients are compared with those of experts that all see all tokens, weighed by the router. The experts
that the answer gets also count the tokens of each call.

How to read it. A task has three functions, whose names begin with make, run and judge. The first draws the inputs of
one case with the generator `rng`; a case is one choice of memory layouts and values, numbered `rng.case.number`. The
second calls the learner's answer, `submitted`, and the third compares what it returned with the right values, yielding
one Judgement per comparison. There is one process, so `world.inputs[0]` and `world.outputs[0]` are all there is. The
mistakes that learners often make are in mistakes.yaml. `words[…]` is a text of messages.yaml, in English and Chinese.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from helpers.grading.kit.comparisons import expect
from helpers.grading.kit.model_tools import describe_if_detached, one_thread
from helpers.grading.kit.tensor_comparisons import expect_tensor
from helpers.grading.task import JudgedWorld, Judgement, RankContext, Task, Variations
from helpers.grading.tensor_cases import CaseGenerator
from helpers.grading.whiteboard import LAB

words = LAB.messages

UNCHOSEN = 50  # what is subtracted from an expert's logits so that no token chooses it
# The values that are judged: name -> how a sentence calls it. "x" and "logits" stand for their gradients.
VALUE_NAMES = {"out": words["output"], "x": words["gradient_of_x"], "logits": words["gradient_of_logits"]}


def make_inputs(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Two or three experts per token. In the second case no token chooses one of them; the third has one token.

    factor: the gradient of the output with which backward starts.
    """
    number = rng.case.number
    num_experts, tokens, size = rng.integer(5, 6), 1 if number == 2 else rng.integer(8, 12), rng.integer(3, 4)
    logits = rng.tensor(tokens, num_experts)
    if number == 1:
        logits[:, rng.integer(0, num_experts - 1)] -= UNCHOSEN
    x, weights, factor = rng.tensor(tokens, size), rng.normal(num_experts, size, size), rng.normal(tokens, size)
    return [{"x": x, "logits": logits, "weights": weights, "factor": factor, "k": rng.integer(2, 3)}]


def run_submission(submitted, inputs: dict[str, Any], context: RankContext) -> dict[str, Any]:
    """The output and both gradients. For each call of an expert, a mark has its number and how many tokens it got.

    An answer without a gradient or with another shape is returned as a text, under "returned".
    """
    x, logits = (inputs[name].clone().requires_grad_() for name in ("x", "logits"))
    with one_thread():
        experts = [marking_expert(number, weight, context) for number, weight in enumerate(inputs["weights"])]
        out = submitted(x, logits, experts, inputs["k"])
        if describe_if_detached(out) or out.shape != x.shape:
            return {"returned": describe_if_detached(out) or f"Tensor{tuple(out.shape)}"}
        (inputs["factor"] * out).sum().backward()
    return {"out": out.detach().clone(), "x": x.grad, "logits": logits.grad}


def marking_expert(number: int, weight: Tensor, context: RankContext) -> Callable[[Tensor], Tensor]:
    """An expert, which maps (tokens, size) to the same shape and marks its number and how many tokens it got."""

    def expert(tokens: Tensor) -> Tensor:
        """tanh(tokens @ weight), one row per token."""
        if tokens.dim() != 2:
            raise ValueError(f"an expert takes (tokens, size) and got the shape {tuple(tokens.shape)}")
        context.mark(f"{number} {len(tokens)}")
        return torch.tanh(tokens @ weight)

    return expert


def judge(world: JudgedWorld) -> Iterator[Judgement]:
    """Judges the output and both gradients, and then the calls of the experts."""
    inputs, got = world.inputs[0], world.outputs[0]
    if "returned" in got:
        yield Judgement(ok=False, message=words["moe_returns"].format(got["returned"]))
        return
    right = right_values(inputs)
    judgements = [expect_tensor(what, right[name], got[name]) for name, what in VALUE_NAMES.items()]
    yield from judgements
    calls = [tuple(map(int, mark.split())) for mark, _ in world.marks[0]]  # the number of the expert, and of its tokens
    yield from judge_calls(inputs, calls, are_values_right=all(one.ok for one in judgements))


def judge_calls(inputs: dict[str, Any], calls: list[tuple[int, int]], are_values_right: bool) -> Iterator[Judgement]:
    """Expects that each expert gets the tokens that choose it, in one call.

    Two mistakes are named here, since they are known by the calls and not by what they return. Only where the values
    are right, more tokens than those show that an expert computes for nothing.
    """
    chosen = inputs["logits"].topk(inputs["k"]).indices
    num_tokens = torch.bincount(chosen.flatten(), minlength=len(inputs["weights"])).tolist()
    for number, tokens in enumerate(num_tokens):
        counts = [count for expert, count in calls if expert == number and count]  # a call without tokens does no harm
        mistakes = ["called_often"] if sum(counts) == tokens else []
        if sum(counts) > tokens and are_values_right:
            mistakes = ["all_to_all_experts"]
        message = words["expert_called_with" if tokens else "expert_unchosen"].format(number, counts, tokens)
        yield expect(counts == ([tokens] if tokens else []), message, mistakes=mistakes)


@one_thread()
def right_values(inputs: dict[str, Any]) -> dict[str, Tensor]:
    """The output and the gradients: all experts see all tokens, and the router gives those not chosen the weight 0."""
    x, logits = (inputs[name].clone().requires_grad_() for name in ("x", "logits"))
    is_chosen = torch.zeros_like(logits, dtype=torch.bool).scatter(1, logits.topk(inputs["k"]).indices, True)
    weights = logits.masked_fill(~is_chosen, -torch.inf).softmax(1)[..., None]
    products = torch.einsum("th,ehk->tek", x, inputs["weights"])  # of all experts: (tokens, experts, size)
    out = (weights * torch.tanh(products)).sum(1)
    (inputs["factor"] * out).sum().backward()
    return {"out": out.detach(), "x": x.grad, "logits": logits.grad}


EXPERTS = Task(
    key="wb.experts",
    signature="moe(x, logits, experts, k)",
    make_inputs=make_inputs,
    run_submission=run_submission,
    judge=judge,
    runs_on="process",
    variations=Variations(layouts=("contiguous", "transposed"), min_cases=3),
    must_not_change=("x", "logits"),
)
