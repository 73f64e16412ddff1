"""Judges the tasks of lab 06 about the stages of a pipeline: 06.cut and 06.stage.

06.cut divides layers into stages so that the slowest stage is as fast as possible; the judge tries every cut, in one
process. 06.stage runs the actions of one rank, forward and backward, on 1 to 5 live ranks. There the judge runs all
stages in one process, and compares loss, gradients, the order of actions and the messages. A mistake is named by the
values that it gives, or by what the ranks were waiting for when the run was ended.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from helpers import schedules
from helpers.grading.cases import CaseGenerator
from helpers.grading.kit import model_tools
from helpers.grading.kit.answers import is_number, is_same_answer, run_questions, shortened, simplified
from helpers.grading.kit.comparisons import expect, expect_equal, expect_payload_bytes, expect_tensors
from helpers.grading.kit.messages import RETURNED, is_to_itself, run_each_call, worlds_of_calls
from helpers.grading.pipeline import LAB
from helpers.grading.pipeline.schedule import action_lists, draw_schedule
from helpers.grading.task import JudgedWorld, Judgement, RankContext, RunFailure, Task
from helpers.schedules import Action

words = LAB.messages

# -- 06.cut ----------------------------------------------------------------------------------------------------------
NUM_LAYERS = (9, 12)  # at least and at most, where no shortcut may be best
Costs = Sequence[float]  # of each layer
Sizes = list[int]  # the number of layers in each stage


def make_cut(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Draws cases (costs, num_stages): some edge cases, and models for which no known shortcut finds the best cut."""
    cases = [[[7, 7, 7, 7], 4], [[3, 1, 2], 1], *draw_edge_cases(rng)]
    num_edges = len(cases)
    while len(cases) < num_edges + 5:
        costs = [rng.integer(1, 20) for _ in range(rng.integer(*NUM_LAYERS))]
        num_stages = rng.integer(3, 4)  # with two stages, the last shortcut would find the best cut
        shortcuts = [equal_counts(costs, num_stages), *greedy_cuts(costs, num_stages)]
        shortcuts.append(largest_minimum(costs, num_stages))
        best = best_slowest_stage(costs, num_stages)
        # Whoever raises a limit by 2 at a time, starting at the largest cost, misses every best value at an odd
        # distance. So cases with an even and with an odd distance alternate.
        has_wanted_parity = (best - max(costs)) % 2 == len(cases) % 2
        if has_wanted_parity and all(slowest_stage(costs, sizes) > best for sizes in shortcuts):
            cases.append([costs, num_stages])
    return [{"cases": cases}]


def draw_edge_cases(rng: CaseGenerator) -> list[list[Any]]:
    """Models in which one layer outweighs all others, some layers cost nothing, or all layers cost nothing."""
    cases = []
    for num_layers in (4, rng.integer(5, 8)):
        small = [rng.integer(1, 3) for _ in range(num_layers - 1)]
        index = rng.integer(0, num_layers - 1)
        cases.append([[*small[:index], sum(small) + rng.integer(1, 9), *small[index:]], 4])
    some_free = [0 if i % 2 else rng.integer(1, 9) for i in range(rng.integer(5, 9))]
    return [*cases, [some_free, 3], [[0] * rng.integer(3, 6), 2]]


def stage_costs(costs: Costs, sizes: Sizes) -> list[float]:
    """What each stage costs."""
    ends = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
    return [sum(costs[a:b]) for a, b in pairwise(ends)]


def slowest_stage(costs: Costs, sizes: Sizes) -> float:
    """What the most expensive stage costs."""
    return max(stage_costs(costs, sizes))


def all_cuts(costs: Costs, num_stages: int) -> Iterator[Sizes]:
    """Every way to divide the layers into stages of one layer or more."""
    n = len(costs)
    for ends in combinations(range(1, n), num_stages - 1):
        yield [b - a for a, b in pairwise([0, *ends, n])]


def best_slowest_stage(costs: Costs, num_stages: int) -> float:
    """What the slowest stage costs in the best of all cuts."""
    return min(slowest_stage(costs, sizes) for sizes in all_cuts(costs, num_stages))


def largest_minimum(costs: Costs, num_stages: int) -> Sizes:
    """A shortcut: the cut whose cheapest stage costs most."""
    return max(all_cuts(costs, num_stages), key=lambda sizes: min(stage_costs(costs, sizes)))


def equal_counts(costs: Costs, num_stages: int) -> Sizes:
    """A shortcut: equally many layers in each stage, and one more in the first ones where there is a rest."""
    each, rest = divmod(len(costs), num_stages)
    return [each + (stage < rest) for stage in range(num_stages)]


def greedy_cuts(costs: Costs, num_stages: int) -> list[Sizes]:
    """A shortcut in two forms: fill one stage after the other up to the mean cost, with or without exceeding it."""
    return [greedy_cut(costs, num_stages, can_exceed=can_exceed) for can_exceed in (True, False)]


def greedy_cut(costs: Costs, num_stages: int, *, can_exceed: bool) -> Sizes:
    """Each stage takes a first layer and then more, up to the mean cost of a stage; the last stage takes the rest.

    can_exceed: a stage takes layers until it has reached the mean; otherwise as long as they stay within the mean.
    """
    share = sum(costs) / num_stages
    rounding = 1e-9  # so that layers which cost the mean exactly stay within it
    sizes, start = [], 0
    for stages_left in range(num_stages - 1, 0, -1):
        end = start + 1
        while end < len(costs) - stages_left:
            is_full = sum(costs[start:end]) >= share if can_exceed else sum(costs[start : end + 1]) >= share + rounding
            if is_full:
                break
            end += 1
        sizes.append(end - start)
        start = end
    return [*sizes, len(costs) - start]


def judge_cut(world: JudgedWorld) -> Iterator[Judgement]:
    """Expects sizes of at least one layer which together hold all layers, and whose slowest stage no cut can beat."""
    got = [simplified(answer) for answer in world.outputs[0]]
    cases = world.inputs[0]["cases"]
    shortcuts = shortcuts_taken(cases, got)
    for (costs, num_stages), sizes in zip(cases, got, strict=True):
        call = f"cut({shortened(costs)}, {num_stages})"
        is_list = isinstance(sizes, list) and all(type(size) is int for size in sizes) and len(sizes) == num_stages
        yield expect(is_list, words["no_list_of_stages"].format(call, shortened(sizes), num_stages))
        if not is_list:
            return
        yield expect(min(sizes) > 0, words["stage_without_layer"].format(call, sizes), mistakes=["empty_stage"])
        message = words["layers_together"].format(call, sizes, sum(sizes), len(costs))
        yield expect(sum(sizes) == len(costs), message, mistakes=["layers_lost"] if sum(sizes) < len(costs) else [])
        if min(sizes) > 0 and sum(sizes) == len(costs):
            slowest, best = slowest_stage(costs, sizes), best_slowest_stage(costs, num_stages)
            mistakes = [*shortcuts, "not_the_best"]
            yield expect(slowest == best, words["slowest_stage"].format(call, sizes, slowest, best), mistakes=mistakes)


def shortcuts_taken(cases: Sequence[Sequence[Any]], got: Sequence[Any]) -> list[str]:
    """The shortcuts that give exactly these cuts."""
    known = {"equal_counts": [[equal_counts(*case)] for case in cases]}
    known["greedy"] = [greedy_cuts(*case) for case in cases]
    return [key for key, cuts in known.items() if all(sizes in ways for sizes, ways in zip(got, cuts, strict=True))]


CUT = Task(
    key="06.cut",
    signature="cut(costs, num_stages)",
    make_inputs=make_cut,
    run_submission=run_questions,
    judge=judge_cut,
    hints=LAB.hints("equal_counts greedy empty_stage layers_lost not_the_best"),
    runs_on="process",
    must_not_change=("costs",),
)


# -- 06.stage --------------------------------------------------------------------------------------------------------
NamedTensors = dict[str, Tensor]
FLOAT64_BYTES = 8


def make_stage(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Draws four calls with other stages, inputs and lists of actions.

    They are 1F1B, in which neighbours send to each other at the same time; GPipe; a schedule without a name, in which
    micro-batches come back in another order than they went; and a single micro-batch. On 4 ranks, 1F1B has fewer
    micro-batches than stages. `few` is never the number of ranks, so that dividing by the ranks gives a wrong result.
    """
    few, many = (3, 5) if world_size != 3 else (2, 5)
    calls = [
        draw_call(rng, action_lists(schedules.one_f_one_b(world_size, few if world_size == 4 else many))),
        draw_call(rng, action_lists(schedules.gpipe(world_size, few))),
        draw_call(rng, draw_mixed_schedule(rng, world_size, 4), more_dims=(rng.integer(2, 3),)),
        draw_call(rng, action_lists(schedules.one_f_one_b(world_size, 1))),
    ]
    return [{"calls": list(of_rank)} for of_rank in zip(*calls, strict=True)]


def draw_mixed_schedule(rng: CaseGenerator, p: int, m: int) -> list[list[str]]:
    """A schedule whose backwards follow neither the order of the forwards nor that of the micro-batches' numbers."""
    while True:
        actions = draw_schedule(rng, p, m)
        if microbatches(actions[0], "F") != microbatches(actions[0], "B") != sorted(microbatches(actions[0], "B")):
            return actions


def microbatches(actions: list[str], kind: str) -> list[int]:
    """The micro-batches in the order in which they go forward, "F", or back, "B"."""
    return [Action.parse(action).microbatch for action in actions if kind in action]


def draw_call(rng: CaseGenerator, actions: list[list[str]], more_dims: tuple[int, ...] = ()) -> list[dict[str, Any]]:
    """What each rank gets: widths and weights of its stage, its actions, and the shape of what travels between stages.

    The first rank also gets the inputs, and the last one the targets. more_dims are dimensions between rows and width.
    """
    p, m = len(actions), len(actions[0]) // 2
    num_rows, hidden, first, last = (rng.integer(*limits) for limits in ((3, 6), (4, 7), (2, 3), (2, 3)))
    widths = [first, *[hidden] * (p - 1), last]
    inputs, targets = ([rng.tensor(num_rows, *more_dims, width) for _ in range(m)] for width in (first, last))
    calls = []
    for rank in range(p):
        in_out = widths[rank : rank + 2]
        weights = model_tools.random_weights(rng, build_stage(in_out))
        call = {"widths": in_out, "weights": weights, "actions": actions[rank]}
        call |= {"inputs": inputs if rank == 0 else None, "targets": targets if rank == p - 1 else None}
        calls.append(call | {"shape": [num_rows, *more_dims, hidden]})
    return calls


def build_stage(in_out: list[int]) -> nn.Sequential:
    """A stage from (rows, in_out[0]) to (rows, in_out[1]), in float64."""
    return nn.Sequential(*model_tools.mlp([in_out[0], 5, in_out[1]]), nn.Tanh())


class RecordingStage(nn.Module):
    """A stage that records which micro-batch goes forward, and when the gradient of its output comes back.

    order: the micro-batches in the order of the list. inputs: those of the first stage, which recognises by them the
    micro-batch that it is given; other stages assume the order of the list.
    """

    def __init__(self, stage: nn.Module, rank: int, order: list[int], inputs: list[Tensor] | None):
        super().__init__()
        self.stage, self.rank, self.order, self.inputs = stage, rank, [*order], inputs or []
        self.done: list[str] = []

    def forward(self, x: Tensor) -> Tensor:
        """The stage's output, whose backward is recorded too."""
        listed = self.order.pop(0) if self.order else "?"
        j = next((j for j, given in enumerate(self.inputs) if torch.equal(given, x)), listed)
        output = self.stage(x)
        self.done.append(f"{self.rank}F{j}")
        if output.requires_grad:
            output.register_hook(lambda _: self.done.append(f"{self.rank}B{j}"))
        return output


def run_call(submitted, inputs: dict[str, Any], context: RankContext) -> dict[str, Any]:
    """One call of the answer on this rank."""
    stage = build_stage(inputs["widths"])
    stage.load_state_dict(inputs["weights"])
    recording = RecordingStage(stage, context.rank, microbatches(inputs["actions"], "F"), inputs["inputs"])
    tensors = [inputs[name] and [tensor.clone() for tensor in inputs[name]] for name in ("inputs", "targets")]
    loss = submitted(recording, list(inputs["actions"]), *tensors, tuple(inputs["shape"]))
    return {"loss": loss, "done": list(recording.done), "gradients": model_tools.gradients_of(stage)}


class PipelineInOneProcess:
    """All stages in one process: the loss of each micro-batch, and the gradients that each of them contributes."""

    def __init__(self, call: JudgedWorld):
        self.stages = [build_stage(inputs["widths"]) for inputs in call.inputs]
        for stage, inputs in zip(self.stages, call.inputs, strict=True):
            stage.load_state_dict(inputs["weights"])
        self.inputs, self.targets = call.inputs[0]["inputs"], call.inputs[-1]["targets"]
        self.m, self.p = len(self.inputs), call.size
        self.losses, self.parts = [], []  # parts[micro-batch][stage]
        for x, target in zip(self.inputs, self.targets, strict=True):
            loss = F.mse_loss(nn.Sequential(*self.stages)(x), target)
            self.losses.append(loss.item())
            self.parts.append(self._gradients_from(loss))

    def _gradients_from(self, loss: Tensor) -> list[NamedTensors]:
        for stage in self.stages:
            stage.zero_grad()
        loss.backward()
        return [model_tools.detached_copies(model_tools.gradients_of(stage)) for stage in self.stages]

    def gradients(self, rank: int, factor: float) -> NamedTensors:
        """The sum of a stage's gradients over all micro-batches, times a factor."""
        return {name: factor * sum(part[rank][name] for part in self.parts) for name in self.parts[0][rank]}

    def gradients_from_ones(self, rank: int) -> NamedTensors:
        """The gradients of a stage that goes back from ones, and not from the gradient that arrived."""
        until = nn.Sequential(*self.stages[: rank + 1])
        return self._gradients_from(sum(until(x).sum() for x in self.inputs))[rank]

    def wrong_gradients(self, rank: int) -> dict[str, list[NamedTensors]]:
        """The gradients of a stage that each known mistake gives, by the key of its hint."""
        m, num_behind = self.m, self.p - 1 - rank
        last = self.parts[-1][rank]
        wrong = {
            "not_divided": [self.gradients(rank, 1.0)],
            # Once more on this stage, or on each stage behind it.
            "divided_on_every_stage": [self.gradients(rank, m ** -(n + 1.0)) for n in {1, num_behind} if n],
            "divided_by_stages": [self.gradients(rank, factor) for factor in (1 / self.p, 1 / m / self.p)],
            "cleared_every_micro_batch": [{n: value * factor for n, value in last.items()} for factor in (1, 1 / m)],
        }
        if num_behind:
            ones = self.gradients_from_ones(rank)
            wrong["ones_for_the_gradient"] = [{n: value * factor for n, value in ones.items()} for factor in (1, 1 / m)]
        return wrong


def judge_stage(world: JudgedWorld) -> Iterator[Judgement]:
    """Expects, in every call, the mean loss on the last rank, its gradients, the listed actions and the messages."""
    for call in worlds_of_calls(world):
        pipeline = PipelineInOneProcess(call)
        yield judge_loss(pipeline, call.outputs[-1]["loss"], call.size - 1)
        for rank, output in enumerate(call.outputs):
            actions = call.inputs[rank]["actions"]
            mistakes = {key: output["done"] for key in order_mistakes(actions, output["done"])}
            yield expect_equal(words["actions_of_stage"], actions, output["done"], rank=rank, mistakes=mistakes)
            right, wrong = pipeline.gradients(rank, 1 / pipeline.m), pipeline.wrong_gradients(rank)
            yield from expect_tensors(words["gradient"], right, output["gradients"], rank=rank, mistakes=wrong)
        yield from judge_messages(call, pipeline.m)


def order_mistakes(actions: list[str], done: list[str]) -> list[str]:
    """The mistake of a rank that did every action once, but not in the order of its list."""
    if sorted(map(str, done)) != sorted(actions):
        return []
    kinds = ["".join("F" if "F" in action else "B" for action in row) for row in (actions, done)]
    return ["number_ignored" if kinds[0] == kinds[1] else "order_ignored"]


def judge_loss(pipeline: PipelineInOneProcess, got: Any, rank: int) -> Judgement:
    """Expects the mean loss of all micro-batches, as a number or as a tensor with one element."""
    got = got.item() if isinstance(got, Tensor) and got.numel() == 1 else got
    total, last = sum(pipeline.losses), pipeline.losses[-1]
    mean = total / pipeline.m
    wrong = {"not_divided": [total], "loss_of_the_last": [last, last / pipeline.m]}
    mistakes = [key for key, values in wrong.items() if any(is_same_answer(value, got) for value in values)]
    texts = [f"{value:.6g}" if is_number(value) else repr(value)[:60] for value in (got, mean)]
    message = words["loss_returned"].format(texts[0], texts[1])
    return expect(is_same_answer(mean, got), message, rank=rank, mistakes=["loss_missing"] if got is None else mistakes)


def judge_messages(call: JudgedWorld, m: int) -> Iterator[Judgement]:
    """Expects an activation to the next rank and a gradient to the one before, m times, all complete at the end."""
    message_bytes = FLOAT64_BYTES * prod(call.inputs[0]["shape"])
    num_neighbours = [(rank > 0) + (rank < call.size - 1) for rank in range(call.size)]
    yield from expect_payload_bytes(call, [message_bytes * m * count for count in num_neighbours], "send")
    for rank, (log, marks) in enumerate(zip(call.logs, call.marks, strict=True)):
        is_late = any(event.end > time for event in log.events for name, time in marks if name == RETURNED)
        yield expect(not is_late, words["returns_early"], rank=rank, mistakes=["not_waited"])


def recognise_stage(failure: RunFailure) -> list[str]:
    """A hang is known by the calls in which ranks wait, and some mistakes by the words of torch's or our errors."""
    if failure.kind == "hang":
        is_send_waiting = re.search(r"\bwaits in send\b(?! and)", failure.text)
        return ["sends_block"] if is_send_waiting else ["nobody_sends"] if failure.is_waiting_in("recv") else []
    if is_to_itself(failure) or "there is no rank" in failure.text:
        return ["ends_forgotten"]
    return [key for key, text in ERRORS.items() if text in failure.text]


ERRORS = {
    "inputs_everywhere": "'NoneType' object is not subscriptable",
    "only_the_latest_kept": "backward through the graph a second time",
    "no_gradient_for_the_input": "got <class 'NoneType'>",
}
STAGE = Task(
    key="06.stage",
    signature="run_stage(stage, actions, inputs, targets, shape)",
    make_inputs=make_stage,
    run_submission=run_each_call(run_call),
    judge=judge_stage,
    recognise_failure=recognise_stage,
    hints=LAB.hints(
        "sends_block ends_forgotten nobody_sends",
        *ERRORS,
        "order_ignored number_ignored loss_missing loss_of_the_last not_divided divided_on_every_stage",
        "divided_by_stages cleared_every_micro_batch ones_for_the_gradient not_waited",
    ),
    must_not_change=("actions", "targets"),
)
