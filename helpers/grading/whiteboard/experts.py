"""Judges wb.experts: a mixture of experts in one process, which routes each token to its k experts and adds the
results.

Output and gradients are compared with those of experts that all see all tokens, weighed by the router; each known
mistake is another way to weigh them. The experts that the answer gets also count the tokens of each call.
`judge_values` compares several values by their names.

How to read it. A task has three functions, whose names begin with make, run and judge. The first draws the inputs of
one case with the generator `rng`; a case is one choice of memory layouts and values, numbered `rng.case.number`. The
second calls the learner's answer, `submitted`, and the third compares what it returned with the right values, yielding
one Judgement per comparison. There is one process, so `world.inputs[0]` and `world.outputs[0]` are all there is. A
mistake is a wrong solution that learners often write, and its name, such as "overwritten", is the key of its hint in
hints.yaml. `words[…]` is a text of messages.yaml, in English and Chinese.
"""

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
from helpers.grading.whiteboard.values import judge_values

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
    """The output, both gradients, and how many tokens each call of each expert got.

    An answer without a gradient or with another shape is returned as a text, under "returned".
    """
    x, logits = (inputs[name].clone().requires_grad_() for name in ("x", "logits"))
    calls: list[list[int]] = [[] for _ in inputs["weights"]]
    with one_thread():
        experts = [counting_expert(weight, counts) for weight, counts in zip(inputs["weights"], calls, strict=True)]
        out = submitted(x, logits, experts, inputs["k"])
        if describe_if_detached(out) or out.shape != x.shape:
            return {"returned": describe_if_detached(out) or f"Tensor{tuple(out.shape)}"}
        (inputs["factor"] * out).sum().backward()
    return {"out": out.detach().clone(), "x": x.grad, "logits": logits.grad, "calls": calls}


def counting_expert(weight: Tensor, counts: list[int]) -> Callable[[Tensor], Tensor]:
    """An expert, which maps (tokens, size) to the same shape and notes in `counts` how many tokens it got."""

    def expert(tokens: Tensor) -> Tensor:
        """tanh(tokens @ weight), one row per token."""
        if tokens.dim() != 2:
            raise ValueError(f"an expert takes (tokens, size) and got the shape {tuple(tokens.shape)}")
        counts.append(len(tokens))
        return torch.tanh(tokens @ weight)

    return expert


def judge(world: JudgedWorld) -> Iterator[Judgement]:
    """Judges the output and both gradients, and then the calls of the experts."""
    inputs, got = world.inputs[0], world.outputs[0]
    if "returned" in got:
        yield Judgement(ok=False, message=words["moe_returns"].format(got["returned"]))
        return
    right = with_router(inputs, chosen_softmax)
    mistakes = {key: with_router(inputs, router) for key, router in WRONG_ROUTERS.items()}
    mistakes["weights_on_input"] = with_router(inputs, chosen_softmax, on_input=True)
    mistakes |= {"router_gets_nothing": {"logits": None}, "x_gets_nothing": {"x": None}}
    judgements = list(judge_values(VALUE_NAMES, right, got, mistakes))
    yield from judgements
    yield from judge_calls(inputs, got["calls"], are_values_right=all(one.ok for one in judgements))


def judge_calls(inputs: dict[str, Any], calls: list[list[int]], are_values_right: bool) -> Iterator[Judgement]:
    """Expects that each expert gets the tokens that choose it, in one call.

    Only where the values are right, more tokens than those show that an expert computes for nothing.
    """
    chosen = inputs["logits"].topk(inputs["k"]).indices
    num_tokens = torch.bincount(chosen.flatten(), minlength=len(calls)).tolist()
    for number, (counts, tokens) in enumerate(zip(calls, num_tokens, strict=True)):
        counts = [count for count in counts if count]  # a call without tokens does no harm
        total = sum(counts)
        if total == tokens:
            mistakes = ["called_often"]
        else:
            mistakes = ["all_to_all_experts"] if total > tokens and are_values_right else []
        message = words["expert_called_with" if tokens else "expert_unchosen"].format(number, counts, tokens)
        yield expect(counts == ([tokens] if tokens else []), message, mistakes=mistakes)


# -- the right router, and those of known mistakes -------------------------------------------------------------------
Router = Callable[[Tensor, int], Tensor]  # logits (tokens, experts) and k -> the weight of each expert


def is_chosen(logits: Tensor, k: int) -> Tensor:
    """True at the k largest logits of each token."""
    return torch.zeros_like(logits, dtype=torch.bool).scatter(1, logits.topk(k).indices, True)


def chosen_softmax(logits: Tensor, k: int) -> Tensor:
    """The right weights: the softmax over the chosen experts, and 0 for the others."""
    return logits.masked_fill(~is_chosen(logits, k), -torch.inf).softmax(1)


def last_chosen(logits: Tensor, k: int) -> Tensor:
    """The weights if each expert overwrites the result of the one before it: only the last of the chosen counts."""
    numbers = torch.arange(logits.shape[1]).where(is_chosen(logits, k), -1)
    return chosen_softmax(logits, k) * (numbers == numbers.amax(1, keepdim=True))


WRONG_ROUTERS: dict[str, Router] = {
    "softmax_over_all": lambda logits, k: logits.softmax(1) * is_chosen(logits, k),
    # 0 * logits gives the logits a gradient of zeros.
    "weights_forgotten": lambda logits, k: is_chosen(logits, k).to(logits.dtype) + 0 * logits,
    "equal_weights": lambda logits, k: is_chosen(logits, k).to(logits.dtype) / k + 0 * logits,
    "smallest_logits": lambda logits, k: logits.masked_fill(~is_chosen(-logits, k), -torch.inf).softmax(1),
    "over_tokens": lambda logits, k: torch.zeros_like(logits).scatter(
        1, logits.topk(k).indices, logits.topk(k).values.softmax(0)
    ),
    "overwritten": last_chosen,
    "first_choice_alone": lambda logits, k: chosen_softmax(logits, k) * is_chosen(logits, 1),
}


@one_thread()
def with_router(inputs: dict[str, Any], router: Router, *, on_input: bool = False) -> dict[str, Tensor | None]:
    """The output and the gradients if all experts see all tokens and this router weighs them.

    on_input: the weights multiply what the experts get instead of what they give.
    """
    x, logits = (inputs[name].clone().requires_grad_() for name in ("x", "logits"))
    products = torch.einsum("th,ehk->tek", x, inputs["weights"])  # of all experts: (tokens, experts, size)
    weights = router(logits, inputs["k"])[..., None]
    out = (torch.tanh(weights * products) if on_input else weights * torch.tanh(products)).sum(1)
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
