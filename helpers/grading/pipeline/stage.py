"""Judges the tasks of lab 06 about the stages of a pipeline: 06.cut and 06.stage.

06.cut divides layers into stages so that the slowest stage is as fast as possible; the judge tries every cut, in one
process. 06.stage runs the actions of one rank, forward and backward, on 1 to 5 live ranks. There the judge runs all
stages in one process, and compares loss, gradients, the order of actions and the messages. An action is a text such as
"2F0", the forward of stage 2 on micro-batch 0, or "2B0", its backward. Rank r runs stage r; p is the number of stages
and m that of micro-batches.

The grader calls three functions of each task:
  make_…   draws the inputs, one dict per rank; `rng.integer(3, 5)` is a random 3, 4 or 5
  run_…    calls the learner's function, `submitted`, on each rank; what it returns is that rank's output
  judge_…  makes Judgements from the inputs, outputs, logs (the messages) and marks (named times) of a JudgedWorld, each
           a list by rank

A mistake is a wrong solution that learners often write. Its key, such as "not_divided", is that of its hint in
hints.yaml. An `expect…` function that finds a wrong value names keys of its argument `mistakes`: all if it is a list;
if it is a dict, those whose value is the learner's, or is a list that contains it.
`words["…"]` is a sentence of messages.yaml, or what a sentence calls a value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import accumulate, combinations, pairwise
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
from helpers.grading.kit.model_tools import scaled
from helpers.grading.pipeline import LAB
from helpers.grading.pipeline.schedule import action_lists, draw_schedule
from helpers.grading.task import JudgedWorld, Judgement, RankContext, RunFailure, Task
from helpers.schedules import Action

words = LAB.messages

# -- 06.cut ----------------------------------------------------------------------------------------------------------
NUM_MODELS = 5  # cases in which no shortcut finds the best cut
NUM_LAYERS = (9, 12)  # of such a model, at least and at most
Costs = Sequence[float]  # of each layer
Sizes = list[int]  # the number of layers in each stage


def make_cut(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Draws cases (costs, num_stages): some edge cases, and models for which no known shortcut finds the best cut.

    A shortcut is a way to cut without a search, as the three below: equal_counts, greedy_cuts and largest_minimum.
    """
    cases = [[[7, 7, 7, 7], 4], [[3, 1, 2], 1], *draw_edge_cases(rng)]
    num_wanted = len(cases) + NUM_MODELS
    while len(cases) < num_wanted:
        costs = [rng.integer(1, 20) for _ in range(rng.integer(*NUM_LAYERS))]
        num_stages = rng.integer(3, 4)  # with two stages, largest_minimum would find the best cut
        shortcuts = [equal_counts(costs, num_stages), *greedy_cuts(costs, num_stages)]
        shortcuts.append(largest_minimum(costs, num_stages))
        best = best_slowest_stage(costs, num_stages)
        # A search may start with the cost of the largest layer as the limit of a stage, and raise it in steps of 2.
        # It misses every best cost at an odd distance. So cases with an even and with an odd distance alternate.
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
    return [sum(costs[start:end]) for start, end in pairwise([0, *accumulate(sizes)])]


def slowest_stage(costs: Costs, sizes: Sizes) -> float:
    """What the most expensive stage costs."""
    return max(stage_costs(costs, sizes))


def all_cuts(costs: Costs, num_stages: int) -> Iterator[Sizes]:
    """Every way to divide the layers into stages of one layer or more."""
    for ends in combinations(range(1, len(costs)), num_stages - 1):
        yield [end - start for start, end in pairwise([0, *ends, len(costs)])]


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
    # A stage that may not exceed the mean counts the next layer before it takes it. The small number is for rounding,
    # so that layers which cost the mean exactly stay within it.
    limit, num_ahead = (0.0, 0) if can_exceed else (1e-9, 1)
    limit += sum(costs) / num_stages
    sizes, start = [], 0
    for stages_left in range(num_stages - 1, 0, -1):
        end = start + 1
        # Each stage that is left needs a layer.
        while end < len(costs) - stages_left and sum(costs[start : end + num_ahead]) < limit:
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
        mistakes = ["layers_lost"] if sum(sizes) < len(costs) else []
        yield expect(sum(sizes) == len(costs), message, mistakes=mistakes)
        if min(sizes) > 0 and sum(sizes) == len(costs):
            slowest, best = slowest_stage(costs, sizes), best_slowest_stage(costs, num_stages)
            mistakes = [*shortcuts, "not_the_best"]
            yield expect(slowest == best, words["slowest_stage"].format(call, sizes, slowest, best), mistakes=mistakes)


def shortcuts_taken(cases: Sequence[Sequence[Any]], got: Sequence[Any]) -> list[str]:
    """The keys of the shortcuts that give exactly the learner's cuts, in every case.

    largest_minimum has no hint of its own, so the mistake of whoever takes it is "not_the_best".
    """
    cuts_of = {"equal_counts": lambda *case: [equal_counts(*case)], "greedy": greedy_cuts}
    pairs = list(zip(cases, got, strict=True))
    return [key for key, cuts in cuts_of.items() if all(sizes in cuts(*case) for case, sizes in pairs)]


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
    """Draws the inputs of four calls on the same ranks, each with other stages, inputs and lists of actions.

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
    """A schedule whose backwards follow neither the order of the forwards nor that of the micro-batches' numbers.

    `draw_schedule` draws one order for the forwards of all ranks, and another one for their backwards.
    """
    while True:
        actions = draw_schedule(rng, p, m)
        forwards, backwards = microbatches(actions[0], "F"), microbatches(actions[0], "B")
        if backwards not in (forwards, sorted(backwards)):
            return actions


def microbatches(actions: list[str], kind: str) -> list[int]:
    """The micro-batches in the order in which they go forward, "F", or back, "B"."""
    return [Action.parse(action).microbatch for action in actions if kind in action]


def draw_call(rng: CaseGenerator, actions: list[list[str]], more_dims: tuple[int, ...] = ()) -> list[dict[str, Any]]:
    """What each rank gets in one call.

    widths: of its stage's input and output. weights: of its stage. actions: its list, in which each micro-batch stands
    twice, forward and backward. inputs, targets: one tensor per micro-batch; only the first rank gets the inputs, and
    only the last one the targets. shape: of a message between two stages. more_dims: dimensions between the rows and
    the width of all these tensors.
    """
    p, m = len(actions), len(actions[0]) // 2
    num_rows, hidden = rng.integer(3, 6), rng.integer(4, 7)
    in_width, out_width = rng.integer(2, 3), rng.integer(2, 3)
    widths = [in_width, *[hidden] * (p - 1), out_width]
    inputs, targets = ([rng.tensor(num_rows, *more_dims, width) for _ in range(m)] for width in (in_width, out_width))
    calls = []
    for rank in range(p):
        stage_widths = widths[rank : rank + 2]
        weights = model_tools.random_weights(rng, build_stage(stage_widths))
        call = {"widths": stage_widths, "weights": weights, "actions": actions[rank]}
        call |= {"inputs": inputs if rank == 0 else None, "targets": targets if rank == p - 1 else None}
        calls.append(call | {"shape": [num_rows, *more_dims, hidden]})
    return calls


def build_stage(widths: list[int]) -> nn.Sequential:
    """A stage from (rows, widths[0]) to (rows, widths[1]), in float64, with a hidden layer of 5."""
    return nn.Sequential(*model_tools.mlp([widths[0], 5, widths[1]]), nn.Tanh())


class RecordingStage(nn.Module):
    """A stage that records what it does: which micro-batch goes forward, and when its output's gradient comes back.

    order: the micro-batches in the order in which the list of actions sends them forward. inputs: the micro-batches'
    inputs on the first stage, and None on the others. The first stage finds the number of a micro-batch by comparing
    its input with these; the other stages assume the order of the list. done: what was recorded, as a list of actions.
    """

    def __init__(self, stage: nn.Module, rank: int, order: list[int], inputs: list[Tensor] | None):
        super().__init__()
        self.stage, self.rank, self.order, self.inputs = stage, rank, [*order], inputs or []
        self.done: list[str] = []

    def forward(self, x: Tensor) -> Tensor:
        """The stage's output, whose backward is recorded too."""
        next_in_list = self.order.pop(0) if self.order else "?"  # "?" for a forward that is not in the list
        j = next((j for j, candidate in enumerate(self.inputs) if torch.equal(candidate, x)), next_in_list)
        output = self.stage(x)
        self.done.append(f"{self.rank}F{j}")
        if output.requires_grad:
            output.register_hook(lambda _: self.done.append(f"{self.rank}B{j}"))
        return output


def run_call(submitted, inputs: dict[str, Any], context: RankContext) -> dict[str, Any]:
    """One call of the learner's function on this rank: the loss that it returned, what was done, and the gradients."""
    stage = build_stage(inputs["widths"])
    stage.load_state_dict(inputs["weights"])
    recording = RecordingStage(stage, context.rank, microbatches(inputs["actions"], "F"), inputs["inputs"])
    # Copies, so that the learner's function cannot change what the judge computes with. None stays None.
    tensors = [inputs[name] and [tensor.clone() for tensor in inputs[name]] for name in ("inputs", "targets")]
    loss = submitted(recording, list(inputs["actions"]), *tensors, tuple(inputs["shape"]))
    return {"loss": loss, "done": list(recording.done), "gradients": model_tools.gradients_of(stage)}


class PipelineInOneProcess:
    """All stages in one process: the loss of each micro-batch, and the gradients that each of them contributes.

    call: one of the four calls as a JudgedWorld of its own, of which only the inputs are used. losses: one number per
    micro-batch. parts: parts[micro-batch][stage] has the gradients by the names of the stage's parameters.
    """

    def __init__(self, call: JudgedWorld):
        self.stages = [build_stage(inputs["widths"]) for inputs in call.inputs]
        for stage, inputs in zip(self.stages, call.inputs, strict=True):
            stage.load_state_dict(inputs["weights"])
        self.inputs, self.targets = call.inputs[0]["inputs"], call.inputs[-1]["targets"]
        self.m, self.p = len(self.inputs), call.size
        self.losses, self.parts = [], []
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
        """The gradients of a stage that each known mistake gives, by the key of its hint.

        Most mistakes can be made in two ways, with and without the division by m.
        """
        m, num_behind = self.m, self.p - 1 - rank  # the stages behind this one
        last = self.parts[-1][rank]
        # The right gradient has one division by m. It is divided once more on this stage, or on each stage behind it.
        num_divisions = {2, num_behind + 1} if num_behind else {2}
        wrong = {
            "not_divided": [self.gradients(rank, 1.0)],
            "divided_on_every_stage": [self.gradients(rank, 1 / m**n) for n in num_divisions],
            "divided_by_stages": [self.gradients(rank, factor) for factor in (1 / self.p, 1 / m / self.p)],
            "cleared_every_micro_batch": [scaled(last, factor) for factor in (1, 1 / m)],
        }
        if num_behind:
            ones = self.gradients_from_ones(rank)
            wrong["ones_for_the_gradient"] = [scaled(ones, factor) for factor in (1, 1 / m)]
        return wrong


def judge_stage(world: JudgedWorld) -> Iterator[Judgement]:
    """Expects, in every call, the mean loss on the last rank, its gradients, the listed actions and the messages."""
    for call in worlds_of_calls(world):
        pipeline = PipelineInOneProcess(call)
        yield judge_loss(pipeline, call.outputs[-1]["loss"], call.size - 1)
        for rank, output in enumerate(call.outputs):
            actions = call.inputs[rank]["actions"]
            # Each key has the learner's own list as its value, so that expect_equal names it.
            mistakes = {key: output["done"] for key in order_mistakes(actions, output["done"])}
            yield expect_equal(words["actions_of_stage"], actions, output["done"], rank=rank, mistakes=mistakes)
            right, wrong = pipeline.gradients(rank, 1 / pipeline.m), pipeline.wrong_gradients(rank)
            yield from expect_tensors(words["gradient"], right, output["gradients"], rank=rank, mistakes=wrong)
        yield from judge_messages(call, pipeline.m)


def order_mistakes(actions: list[str], done: list[str]) -> list[str]:
    """The mistake of a rank that did every action once, but not in the order of its list; [] if it did others.

    It ignored the numbers of the micro-batches if forwards and backwards alternate as the list says, and otherwise the
    order of the list.
    """
    if sorted(map(str, done)) != sorted(actions):
        return []
    listed, performed = (["F" in action for action in row] for row in (actions, done))
    return ["number_ignored" if listed == performed else "order_ignored"]


def judge_loss(pipeline: PipelineInOneProcess, got: Any, rank: int) -> Judgement:
    """Expects the mean loss of all micro-batches, as a number or as a tensor with one element."""
    got = got.item() if isinstance(got, Tensor) and got.numel() == 1 else got
    total, last = sum(pipeline.losses), pipeline.losses[-1]
    mean = total / pipeline.m
    wrong = {"not_divided": [total], "loss_of_the_last": [last, last / pipeline.m], "loss_missing": [None]}
    mistakes = [key for key, values in wrong.items() if any(is_same_answer(value, got) for value in values)]
    got_text = f"{got:.6g}" if is_number(got) else repr(got)[:60]  # a learner may return anything
    message = words["loss_returned"].format(got_text, f"{mean:.6g}")
    return expect(is_same_answer(mean, got), message, rank=rank, mistakes=mistakes)


def judge_messages(call: JudgedWorld, m: int) -> Iterator[Judgement]:
    """Expects an activation to the next rank and a gradient to the one before, m times, all complete at the end.

    A rank marks RETURNED when the learner's function returns. An event of its log is a send or a receive.
    """
    message_bytes = FLOAT64_BYTES * prod(call.inputs[0]["shape"])
    num_neighbours = [int(rank > 0) + int(rank < call.size - 1) for rank in range(call.size)]
    yield from expect_payload_bytes(call, [message_bytes * m * count for count in num_neighbours], "send")
    for rank, (log, marks) in enumerate(zip(call.logs, call.marks, strict=True)):
        is_late = any(event.end > time for event in log.events for name, time in marks if name == RETURNED)
        yield expect(not is_late, words["returns_early"], rank=rank, mistakes=["not_waited"])


def recognise_stage(failure: RunFailure) -> list[str]:
    """The mistakes that a run without outputs points to.

    A hang is known by the calls in which ranks wait. Other mistakes are known by the text of the error, which comes
    from torch or from the check.
    """
    if failure.kind == "hang":
        # A rank that waits in a send alone, and not in a send and a receive that were started together.
        if re.search(r"\bwaits in send\b(?! and)", failure.text):
            return ["sends_block"]
        return ["nobody_sends"] if failure.is_waiting_in("recv") else []
    # The first rank has no rank before it, and the last none behind it; whoever forgets that sends to itself or nobody.
    if is_to_itself(failure) or "there is no rank" in failure.text:
        return ["ends_forgotten"]
    return [key for key, text in ERRORS.items() if text in failure.text]


ERRORS = {  # key of a hint -> what Python's or torch's error says
    "inputs_everywhere": "'NoneType' object is not subscriptable",  # only the first rank has inputs; others get None
    "only_the_latest_kept": "backward through the graph a second time",  # its graph, used for another micro-batch
    "no_gradient_for_the_input": "got <class 'NoneType'>",  # the input's `.grad` is None, and None cannot be sent
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
