"""Judges 14.dispatch and 14.combine: rows of tokens go to the ranks of their experts, and the outputs come back.

Both run on live ranks, each with its own tokens and an equal part of the experts. What a rank returns is compared with
what the inputs of all ranks say, and the communication log tells how many messages there were and how large they are.

How to read it. A task has three functions, whose names begin with make, run and judge. The first draws the inputs of
each rank with the generator `rng`; a case is one choice of sizes and dtypes, numbered `rng.case.number`. The second
calls the learner's answer, `submitted`, and the third compares what each rank returned with the right values, yielding
one Judgement per comparison. `words[…]` is a text of messages.yaml, in English and Chinese.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from helpers.grading.experts import LAB
from helpers.grading.kit.comparisons import expect, expect_equal, expect_only_ops
from helpers.grading.kit.model_tools import describe_if_detached
from helpers.grading.kit.tensor_comparisons import expect_tensor
from helpers.grading.task import JudgedWorld, Judgement, RankContext, RunFailure, Task, Variations
from helpers.grading.tensor_cases import CaseGenerator
from helpers.learner.words import Words
from helpers.quantities.units import format_bytes

words = LAB.messages

COUNT_BYTES = 8  # of one count, an int64
NOWHERE = -1  # the expert of a choice that was dropped
Inputs = Sequence[Mapping[str, Any]]  # of each rank


# -- 14.dispatch -----------------------------------------------------------------------------------------------------
def make_dispatch(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Every rank has another number of tokens. In case 0 every choice has an expert, and in the cases

    1  some choices go nowhere, such as all of the last token, and the last of a rank's three experts gets no row
    2  every token goes to the last expert alone
    3  rank 0 has one token, which goes nowhere
    4  each token chooses a single expert
    5  each token chooses all experts
    6  a rank has no row to send and gets none. It is the last case, so that a rank that skips a call there leaves the
       others waiting for it, and does not meet them with the first call of another case.
    """
    number, per_rank, idle = rng.case.number, rng.integer(2, 3), rng.integer(0, world_size - 1)
    per_rank = 3 if number == 1 else per_rank  # of two, counts without the last are one number, which broadcasts
    num_experts, width = world_size * per_rank, rng.integer(2, 5)
    k = {4: 1, 5: num_experts}.get(number) or rng.integer(2, min(num_experts, 4))
    lengths = [rng.integer(3, 7) for _ in range(world_size)]
    lengths[0] = 1 if number == 3 else lengths[0]
    inputs = []
    for rank, length in enumerate(lengths):
        experts = torch.tensor([rng.permutation(num_experts)[:k] for _ in range(length)])  # (T, k)
        if number == 1:
            experts[0, 0], experts[-1], experts[experts == num_experts - 1] = NOWHERE, NOWHERE, NOWHERE
        elif number == 2:
            experts.fill_(NOWHERE)[:, -1] = num_experts - 1
        elif (number, rank) in ((3, 0), (6, idle)):
            experts.fill_(NOWHERE)
        elif number == 6:
            experts[experts // per_rank == idle] = NOWHERE
        inputs.append({"x": rng.tensor(length, width), "experts": experts, "num_experts": num_experts})
    return inputs


def run_dispatch(submitted, inputs: dict[str, Any], context: RankContext) -> Any:
    """What the learner's function returns."""
    return submitted(inputs["x"].clone(), inputs["experts"].clone(), inputs["num_experts"])


def sent_rows(experts: Tensor, num_experts: int) -> tuple[Tensor, Tensor]:
    """Which choices (m) a rank sends, by expert and then by token, and how many of them each expert gets (E)."""
    choice = experts.flatten()
    order = choice.argsort(stable=True)
    order = order[choice[order] >= 0]
    return order, torch.bincount(choice[order], minlength=num_experts)


def right_rows(inputs: Inputs, rank: int) -> list[tuple[int, int, int]]:
    """The rows that a rank gets, in the right order, each as its expert, the rank that it comes from, and its token."""
    per_rank = inputs[0]["num_experts"] // len(inputs)
    rows = []
    for source, one in enumerate(inputs):
        tokens, choices = (one["experts"] // per_rank == rank).nonzero(as_tuple=True)
        found = one["experts"][tokens, choices].tolist()
        rows += [(expert, source, token) for expert, token in zip(found, tokens.tolist(), strict=True) if expert >= 0]
    return sorted(rows)


def right_dispatch(inputs: Inputs, rank: int) -> list[Tensor]:
    """What dispatch returns on this rank: rows, order, sent and received."""
    size, own = len(inputs), inputs[rank]
    counts = [sent_rows(one["experts"], one["num_experts"])[1].view(size, -1) for one in inputs]
    rows = [inputs[source]["x"][token] for _, source, token in right_rows(inputs, rank)]
    order, _ = sent_rows(own["experts"], own["num_experts"])
    received = torch.stack([one[rank] for one in counts])
    return [torch.stack(rows) if rows else own["x"].new_empty(0, own["x"].shape[1]), order, counts[rank], received]


def judge_dispatch(world: JudgedWorld) -> Iterator[Judgement]:
    """Every rank returns its rows and what combine needs. It sends the counts and then a row per choice."""
    for rank, got in enumerate(world.outputs):
        is_list = isinstance(got, list) and len(got) == 4
        num_values = len(got) if isinstance(got, list) else 1
        yield expect(is_list, words["four_tensors"].format(num_values), rank=rank)
        if not is_list:
            continue
        right = right_dispatch(world.inputs, rank)
        yield name_wrong_row(world.inputs, rank, expect_tensor(words["rows"], right[0], got[0], rank=rank), got[0])
        for name, due, one in zip(("order", "sent", "received"), right[1:], got[1:], strict=True):
            yield expect_tensor(words[name], due, one, rank=rank)
    num_bytes = [sent_bytes(one) for one in world.inputs]
    counts = COUNT_BYTES * world.inputs[0]["num_experts"]
    yield from expect_all_to_alls(world, words["messages_of_dispatch"], [[counts, one] for one in num_bytes])


def sent_bytes(inputs: Mapping[str, Any]) -> int:
    """The bytes of the rows that a rank sends in dispatch: one row per choice that has an expert."""
    num_rows = int((inputs["experts"] >= 0).sum())
    return num_rows * inputs["x"].shape[1] * inputs["x"].element_size()


def expect_all_to_alls(world: JudgedWorld, what: Words, expected: Sequence[Sequence[int]]) -> Iterator[Judgement]:
    """Expects that each rank issues all-to-alls with these payloads in bytes, in this order, and no other message.

    One rank alone need not send anything. An all-gather is named here, because those who gather go on in more ways than
    edits could stand for.
    """
    if world.size == 1:
        return
    yield from expect_only_ops(world, ["all_to_all"], mistake_of_op={"all_gather": "gathers_everything"})
    for rank, (log, payloads) in enumerate(zip(world.logs, expected, strict=True)):
        got = [format_bytes(event.payload_bytes) for event in log.events]
        yield expect_equal(what, [format_bytes(num_bytes) for num_bytes in payloads], got, rank=rank)


def name_wrong_row(inputs: Inputs, rank: int, judgement: Judgement, got: Any) -> Judgement:
    """The judgement of a rank's rows; where the first wrong row is another token, the sentence says which one."""
    due, x = right_rows(inputs, rank), inputs[rank]["x"]
    if judgement.ok or not isinstance(got, Tensor) or got.dtype != x.dtype or got.shape != (len(due), x.shape[1]):
        return judgement
    place = next(i for i, (_, source, token) in enumerate(due) if not torch.equal(got[i], inputs[source]["x"][token]))
    expert, *right = due[place]
    for source, one in enumerate(inputs):
        for token, row in enumerate(one["x"]):
            if torch.equal(row, got[place]):
                return replace(judgement, message=words["wrong_row"].format(place, source, token, *right, expert))
    return judgement


def recognise_exchange(failure: RunFailure) -> list[str]:
    """The hints for a run that ended early, by the text in which the engine or torch describes the failure.

    Of the keys, those count that the task has a hint for. Of several texts, the first one decides.
    """
    if failure.kind == "hang" and failure.is_waiting_in("all_to_all"):
        return ["call_skipped", "call_skipped_in_combine"]
    # The engine's texts about rows are "rank 0 sends 2 rows, …" and "rank 0 sends itself 2 rows, but expects 3 rows".
    keys_of_text = {
        "bincount only supports": ["bincount_of_dropped"],
        "is invalid for input of size": ["dropped_forgotten", "minlength_missing"],
        "returned an invalid gradient": ["gradient_not_sent"],
        "splits not equal to group size": ["splits_over_experts"],
        "Split sizes doesn't match": ["splits_do_not_add_up", "splits_of_forward"],
        "of rows int64": ["minlength_missing"],  # the counts of two ranks have other shapes
        # repeat_interleave on one rank with 3 experts, of which the last has no count
        "repeats.size(0) = 2 and input.size(0) = 3": ["minlength_missing"],
        " rows": ["splits_wrong", "splits_of_forward"],
    }
    return next((keys for text, keys in keys_of_text.items() if text in failure.text), [])


DISPATCH = Task(
    key="14.dispatch",
    signature="dispatch(x, experts, num_experts)",
    make_inputs=make_dispatch,
    run_submission=run_dispatch,
    judge=judge_dispatch,
    recognise_failure=recognise_exchange,
    variations=Variations(dtypes=("float64", "float32"), layouts=("contiguous", "transposed"), min_cases=7),
    must_not_change=("x", "experts"),
)


# -- 14.combine ------------------------------------------------------------------------------------------------------
ARGUMENTS = ("outputs", "weights", "order", "sent", "received")  # what combine gets, in this order


def make_combine(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """The choices of a case of dispatch, and outputs and weights for them. factor: the gradient of the result.

    About half of the weights are negative, and in case 4 one is 0, because an answer may not tell by a weight whether
    its choice goes somewhere.
    """
    inputs = make_dispatch(rng, world_size)
    for rank, one in enumerate(inputs):
        rows, one["order"], one["sent"], one["received"] = right_dispatch(inputs, rank)
        one["outputs"], one["weights"] = rng.tensor(*rows.shape), rng.tensor(*one["experts"].shape)
        if rng.case.number == 4:
            one["weights"][0] = 0
        one["factor"] = rng.tensor(*one["x"].shape)
    return inputs


def run_combine(submitted, inputs: dict[str, Any], context: RankContext) -> dict[str, Any]:
    """The result and the gradients of outputs and weights.

    An answer without a gradient or with another shape is returned as a text, under "returned".
    """
    outputs, weights = (inputs[name].clone().requires_grad_() for name in ("outputs", "weights"))
    result = submitted(outputs, weights, *(inputs[name].clone() for name in ARGUMENTS[2:]))
    if describe_if_detached(result) or result.shape != inputs["factor"].shape:
        return {"returned": describe_if_detached(result) or f"Tensor{tuple(result.shape)}"}
    (inputs["factor"] * result).sum().backward()
    of_outputs = outputs.grad if len(outputs) else torch.zeros_like(outputs)  # without outputs, None is as good
    return {"result": result.detach().clone(), "outputs": of_outputs, "weights": weights.grad}


def right_combine(inputs: Inputs) -> list[dict[str, Tensor]]:
    """What every rank has in the end: row by row, each weighted output is added to the result of its token."""
    zeros = {"result": "factor", "outputs": "outputs", "weights": "weights"}
    right = [{name: torch.zeros_like(one[like]) for name, like in zeros.items()} for one in inputs]
    for rank, one in enumerate(inputs):
        for place, (expert, source, token) in enumerate(right_rows(inputs, rank)):
            row, owner, of_owner = one["outputs"][place], inputs[source], right[source]
            choice = owner["experts"][token].tolist().index(expert)
            of_owner["result"][token] += owner["weights"][token, choice] * row
            of_owner["weights"][token, choice] = row @ owner["factor"][token]
            right[rank]["outputs"][place] = owner["weights"][token, choice] * owner["factor"][token]
    return right


def judge_combine(world: JudgedWorld) -> Iterator[Judgement]:
    """Every rank has the result and both gradients. Outputs go back in forward, and their gradients in backward."""
    instead = next((got["returned"] for got in world.outputs if "returned" in got), "")
    yield expect(not instead, words["combine_returns"].format(instead), mistakes=["no_gradient"])
    if instead:
        return
    for rank, (right, got) in enumerate(zip(right_combine(world.inputs), world.outputs, strict=True)):
        for name, due in right.items():
            yield expect_tensor(words[f"combined.{name}"], due, got[name], rank=rank)
    messages = [[one["outputs"].nbytes, sent_bytes(one)] for one in world.inputs]
    yield from expect_all_to_alls(world, words["messages_of_combine"], messages)


COMBINE = replace(
    DISPATCH,
    key="14.combine",
    signature=f"combine({', '.join(ARGUMENTS)})",
    make_inputs=make_combine,
    run_submission=run_combine,
    judge=judge_combine,
    must_not_change=ARGUMENTS,
)
