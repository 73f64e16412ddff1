"""Judges 14.route: which k experts a router chooses for each token, and with which weights their outputs count.

Experts, weights and the gradient of the logits are compared with those of the course's router.

How to read it. A task has three functions, whose names begin with make, run and judge. The first draws the inputs of
one case with the generator `rng`; a case is one choice of dtypes and layouts, numbered `rng.case.number`. The second
calls the learner's answer, `submitted`, and the third compares what it returned with the right values, yielding one
Judgement per comparison. There is one process, so `world.inputs[0]` and `world.outputs[0]` are all there is. `words[…]`
is a text of messages.yaml, in English and Chinese.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from helpers.grading.experts import LAB
from helpers.grading.kit.comparisons import expect, with_rule
from helpers.grading.kit.model_tools import describe_if_detached
from helpers.grading.kit.tensor_comparisons import expect_tensor
from helpers.grading.plain_data import shortened
from helpers.grading.task import JudgedWorld, Judgement, RankContext, Task, Variations, recognise_errors
from helpers.grading.tensor_cases import CaseGenerator
from helpers.parallel.experts import route

words = LAB.messages

BIAS_SIZE = 0.5  # by which biases differ: enough to change choices among scores between 0 and 1


def make_route(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Both kinds of scores, each with a bias and without, and with each of them k is 1, all experts, or between.

    In case 3 there is one token. In case 4 all biases are larger than any score, and in case 5 every sum of score and
    bias is negative. factor: the gradient of the weights with which backward starts.
    """
    number = rng.case.number
    num_experts, tokens = rng.integer(5, 7), 1 if number == 3 else rng.integer(4, 7)
    k = (rng.integer(2, 3), rng.integer(2, 3), 2, 3, 1, num_experts, num_experts, 1)[number]
    logits = rng.tensor(tokens, num_experts)
    # The bias moves tokens to other experts, but not all of them to the same ones.
    bias = BIAS_SIZE * rng.tensor(num_experts).tanh() + {4: 3, 5: -3}.get(number, 0)
    bias = None if number in (2, 3, 6, 7) else bias
    kind = "softmax" if number % 2 == 0 else "sigmoid"
    return [{"logits": logits, "k": k, "kind": kind, "bias": bias, "factor": rng.tensor(tokens, k)}]


def run_route(submitted, inputs: dict[str, Any], context: RankContext) -> Any:
    """Experts, weights and the gradient of the logits. What is no pair is returned as it is."""
    logits = inputs["logits"].clone().requires_grad_()
    bias = None if inputs["bias"] is None else inputs["bias"].clone()
    returned = submitted(logits, inputs["k"], inputs["kind"], bias)
    if not isinstance(returned, tuple | list) or len(returned) != 2:
        return returned
    experts, weights = returned
    if not describe_if_detached(weights) and weights.shape == inputs["factor"].shape:
        (inputs["factor"] * weights).sum().backward()
    return {"experts": experts, "weights": weights, "logits": logits.grad}


def judge_route(world: JudgedWorld) -> Iterator[Judgement]:
    """Judges the choice first, then the weights, and then what comes back to the logits."""
    inputs, got = world.inputs[0], world.outputs[0]
    yield expect(isinstance(got, dict), words["two_tensors"].format(shortened(got)))
    if not isinstance(got, dict):
        return
    logits = inputs["logits"].clone().requires_grad_()
    experts, weights, scores = route(logits, inputs["k"], inputs["kind"], inputs["bias"])
    (inputs["factor"] * weights).sum().backward()
    token = worst_row(experts, got["experts"])
    biased = scores if inputs["bias"] is None else scores + inputs["bias"]
    rule = words["choice_rule"].format(token, digits(scores[token]), digits(biased[token]))
    yield from with_rule(rule, [expect_tensor(words["routed.experts"], experts, got["experts"])])
    token = worst_row(weights.detach(), got["weights"])
    rule = words["weights_rule"].format(token, digits(scores[token, experts[token]]))
    yield from with_rule(rule, [expect_tensor(words["routed.weights"], weights.detach(), got["weights"])])
    if inputs["k"] > 1:  # a single weight is 1, whatever the logits, so its gradient is what rounding leaves
        yield expect_tensor(words["routed.logits"], logits.grad, got["logits"])


def worst_row(right: Tensor, got: Any) -> int:
    """The row of the largest difference, which the sentence names; 0 if the tensors have other shapes."""
    has_rows = isinstance(got, Tensor) and got.shape == right.shape
    return int((got - right).abs().amax(1).argmax()) if has_rows else 0


def digits(values: Tensor) -> list[float]:
    """The values with three digits behind the point."""
    return [round(value, 3) for value in values.tolist()]


ROUTE = Task(
    key="14.route",
    signature="route(logits, k, kind, bias)",
    make_inputs=make_route,
    run_submission=run_route,
    judge=judge_route,
    recognise_failure=recognise_errors({"'NoneType'": "bias_is_none", "inplace operation": "scores_changed"}),
    runs_on="process",
    variations=Variations(dtypes=("float64", "float32"), layouts=("contiguous", "transposed"), min_cases=8),
    must_not_change=("logits", "bias"),
)
