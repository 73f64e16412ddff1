"""Judges 06.stage: the learner's function runs the actions of one rank, forward and backward, on 1 to 5 live ranks.

The judge runs all stages in one process, and compares loss, gradients, the order of actions and the messages. An action
is a text such as "2F0", the forward of stage 2 on micro-batch 0, or "2B0", its backward. Rank r runs stage r; p is the
number of stages and m that of micro-batches.

The grader calls three functions:
  make_stage   draws the inputs, one dict per rank; `rng.integer(3, 5)` is a random 3, 4 or 5
  run_call     calls the learner's function, `submitted`, on each rank; what it returns is that rank's output
  judge_stage  makes Judgements from the inputs, outputs, logs (the messages) and marks (named times) of a JudgedWorld,
               each a list by rank

A mistake is a wrong solution that learners often write. The judge names only those for which no edit of the answer can
stand: a wrong order of actions takes many forms, and what is used or returned too early depends on the time.
`words["…"]` is a sentence of messages.yaml, or what a sentence calls a value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from helpers import schedules
from helpers.grading.kit import model_tools
from helpers.grading.kit.answers import is_number, is_same_answer
from helpers.grading.kit.comparisons import expect, expect_equal, with_rule
from helpers.grading.kit.messages import RETURNED, is_to_itself, run_each_call, worlds_of_calls
from helpers.grading.kit.tensor_comparisons import expect_tensor, expect_tensors
from helpers.grading.pipeline import LAB
from helpers.grading.pipeline.schedule import action_lists, draw_schedule
from helpers.grading.task import JudgedWorld, Judgement, RankContext, RunFailure, Task
from helpers.grading.tensor_cases import CaseGenerator
from helpers.schedules import Action

words = LAB.messages
NamedTensors = dict[str, Tensor]
FLOAT64_BYTES = 8


def make_stage(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Draws the inputs of four calls on the same ranks, each with other stages, inputs and lists of actions.

    They are 1F1B, in which neighbours send to each other at the same time; GPipe; a schedule without a name, in which
    micro-batches come back in another order than they went; and a single micro-batch. On 4 ranks, 1F1B has fewer
    micro-batches than stages. On one rank, the schedule without a name has micro-batches whose numbers have two digits.
    `few` is never the number of ranks, so that dividing by the ranks gives a wrong result.
    """
    few, many = (3, 5) if world_size != 3 else (2, 5)
    calls = [
        draw_call(rng, action_lists(schedules.one_f_one_b(world_size, few if world_size == 4 else many))),
        draw_call(rng, action_lists(schedules.gpipe(world_size, few))),
        draw_call(
            rng, draw_mixed_schedule(rng, world_size, 4 if world_size > 1 else 12), more_dims=(rng.integer(2, 3),)
        ),
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
    """A stage that records what it does: which micro-batch goes forward, with what input, and which comes back.

    It also marks each action in the context, with the time. order: the micro-batches in the order in which the list of
    actions sends them forward. inputs: the micro-batches' inputs on the first stage, and None on the others. The first
    stage finds the number of a micro-batch by comparing its input with these; the other stages assume the order of the
    list. done: what was recorded, as a list of actions. received: a copy of the input of each forward.
    """

    def __init__(self, stage: nn.Module, context: RankContext, order: list[int], inputs: list[Tensor] | None):
        super().__init__()
        self.stage, self.context, self.order, self.inputs = stage, context, [*order], inputs or []
        self.done: list[str] = []
        self.received: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        """The stage's output, whose backward is recorded too."""
        next_in_list = self.order.pop(0) if self.order else "?"  # "?" for a forward that is not in the list
        j = next((j for j, candidate in enumerate(self.inputs) if torch.equal(candidate, x)), next_in_list)
        self.received.append(x.detach().clone())
        self._note(f"{self.context.rank}F{j}")
        output = self.stage(x)
        if output.requires_grad:
            output.register_hook(lambda _: self._note(f"{self.context.rank}B{j}"))
        return output

    def _note(self, action: str) -> None:
        self.done.append(action)
        self.context.mark(action)


def run_call(submitted, inputs: dict[str, Any], context: RankContext) -> dict[str, Any]:
    """One call of the learner's function: the records, the gradients, and what the last rank returned as the loss."""
    stage = build_stage(inputs["widths"])
    stage.load_state_dict(inputs["weights"])
    recording = RecordingStage(stage, context, microbatches(inputs["actions"], "F"), inputs["inputs"])
    # Copies, so that the learner's function cannot change what the judge computes with. None stays None.
    tensors = [inputs[name] and [tensor.clone() for tensor in inputs[name]] for name in ("inputs", "targets")]
    loss = submitted(recording, list(inputs["actions"]), *tensors, tuple(inputs["shape"]))
    records = {"done": list(recording.done), "received": list(recording.received)}
    return records | {"loss": loss if inputs["targets"] else None, "gradients": model_tools.gradients_of(stage)}


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
        self.m, self.losses, self.parts = len(self.inputs), [], []
        for x, target in zip(self.inputs, self.targets, strict=True):
            loss = F.mse_loss(nn.Sequential(*self.stages)(x), target)
            self.losses.append(loss.item())
            for stage in self.stages:
                stage.zero_grad()
            loss.backward()
            self.parts.append([model_tools.detached_copies(model_tools.gradients_of(stage)) for stage in self.stages])

    def input_of(self, rank: int, j: int) -> Tensor:
        """What stage `rank` gets as its input of micro-batch j."""
        return nn.Sequential(*self.stages[:rank])(self.inputs[j]).detach()

    def gradients(self, rank: int) -> NamedTensors:
        """The mean of a stage's gradients over all micro-batches."""
        return {name: sum(part[rank][name] for part in self.parts) / self.m for name in self.parts[0][rank]}

    def weights(self, rank: int, got: NamedTensors) -> list[float]:
        """The factors with which the micro-batches' gradients of a stage add up to `got`; [] if they do not."""
        columns = [torch.cat([part[rank][name].flatten() for name in part[rank]]) for part in self.parts]
        parts, target = torch.stack(columns, dim=1), torch.cat([tensor.flatten() for tensor in got.values()])
        if not target.isfinite().all():
            return []  # LAPACK refuses it
        factors = torch.linalg.lstsq(parts, target).solution
        is_sum = torch.allclose(parts @ factors, target, rtol=1e-9, atol=1e-12)
        return [round(factor, 9) + 0.0 for factor in factors.tolist()] if is_sum else []  # + 0.0 turns -0.0 into 0.0


def judge_stage(world: JudgedWorld) -> Iterator[Judgement]:
    """Expects, in every call, the listed actions, the mean loss on the last rank, its gradients, and the messages."""
    is_early = any(is_message_used_early(world, rank) for rank in range(world.size))
    early = ("used_before_arrival",) if is_early else ()
    for call in worlds_of_calls(world):
        pipeline = PipelineInOneProcess(call)
        judgements = [one for rank in range(call.size) for one in judge_actions(pipeline, call, rank)]
        judgements.append(judge_loss(pipeline, call))
        # From the last rank, where backward begins, so that the rank comes first on which a gradient goes wrong.
        judgements += [one for rank in reversed(range(call.size)) for one in judge_gradients(pipeline, call, rank)]
        yield from (one if one.ok else replace(one, mistakes=one.mistakes + early) for one in judgements)
        yield from judge_messages(call, pipeline.m)


def judge_actions(pipeline: PipelineInOneProcess, call: JudgedWorld, rank: int) -> Iterator[Judgement]:
    """Expects that a rank runs the actions of its list, on the inputs that have arrived."""
    output, actions = call.outputs[rank], call.inputs[rank]["actions"]
    judgement = expect_equal(words["actions_of_stage"].format(actions), actions, output["done"], rank=rank)
    yield judgement if judgement.ok else replace(judgement, mistakes=order_mistakes(actions, output["done"]))
    for j, received in zip(microbatches(actions, "F"), output["received"], strict=False) if rank else ():
        what = words["input_of_stage"].format(actions, j, rank - 1)
        yield expect_tensor(what, pipeline.input_of(rank, j), received, rank=rank)


def judge_gradients(pipeline: PipelineInOneProcess, call: JudgedWorld, rank: int) -> Iterator[Judgement]:
    """Expects the gradients of the mean loss; otherwise it says with which weights the micro-batches are in them."""
    got, right = call.outputs[rank]["gradients"], pipeline.gradients(rank)
    what = words["gradient"].format(call.inputs[rank]["actions"], "{}")  # braces for the name of the parameter
    judgements = list(expect_tensors(what, right, got, rank=rank))
    if all(one.compared.is_comparable for one in judgements):
        weights = [f"{one:.4g}" for one in pipeline.weights(rank, got)]
        sentence = words["weights" if weights else "no_weights"].format(m=pipeline.m, weights=weights)
        judgements = with_rule(sentence, judgements)
    yield from judgements


def is_message_used_early(world: JudgedWorld, rank: int) -> bool:
    """Whether a forward or backward of this rank began before the message had arrived that it needs."""
    for kind, neighbour in (("F", rank - 1), ("B", rank + 1)):
        arrivals = sorted(one.end for one in world.logs[rank].events if one.op == "recv" and one.peer == neighbour)
        times = [seconds for action, seconds in world.marks[rank] if kind in action]
        if any(arrival > used for arrival, used in zip(arrivals, times, strict=False)):
            return True
    return False


def order_mistakes(actions: list[str], done: list[str]) -> tuple[str, ...]:
    """The mistake of a rank that did not run its list.

    It ignored the numbers of the micro-batches if forwards and backwards alternate as the list says, or kept only the
    newest micro-batch if the same one went back twice. It ignored the order if it did every action once.
    """
    listed, performed = (["F" in action for action in row] for row in (actions, done))
    if listed == performed:
        forwards_are_listed = microbatches(done, "F") == microbatches(actions, "F")
        is_repeated = len(set(done)) < len(done)
        return ("only_the_latest_kept" if is_repeated and forwards_are_listed else "number_ignored",)
    return ("order_ignored",) if sorted(done) == sorted(actions) else ()


def judge_loss(pipeline: PipelineInOneProcess, call: JudgedWorld) -> Judgement:
    """Expects from the last rank the mean loss of all micro-batches, as a number or as a tensor with one element."""
    got, mean = call.outputs[-1]["loss"], sum(pipeline.losses) / pipeline.m
    got = got.item() if isinstance(got, Tensor) and got.numel() == 1 else got
    got_text = f"{got:.6g}" if is_number(got) else repr(got)[:60]  # a learner may return anything
    losses = ", ".join(f"{loss:.6g}" for loss in pipeline.losses)
    message = words["loss_returned"].format(call.inputs[-1]["actions"], got_text, f"{mean:.6g}", losses)
    return expect(is_same_answer(mean, got), message, rank=call.size - 1)


def judge_messages(call: JudgedWorld, m: int) -> Iterator[Judgement]:
    """Expects an activation to the next rank and a gradient to the one before, m times, all complete at the end.

    A rank marks RETURNED when the learner's function returns. An event of its log is a send or a receive.
    """
    num_bytes = FLOAT64_BYTES * prod(call.inputs[0]["shape"])
    for rank, (log, marks) in enumerate(zip(call.logs, call.marks, strict=True)):
        num_messages, sent = m * (int(rank > 0) + int(rank < call.size - 1)), log.payload_bytes("send")
        message = words["bytes_sent"].format(call.inputs[rank]["actions"], sent, num_messages, num_bytes)
        yield expect(sent == num_messages * num_bytes, message, rank=rank)
        is_late = any(event.end > at for event in log.events for name, at in marks if name == RETURNED)
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
    if failure.kind == "mismatch":
        found = {"gradients_reduced": "calls all_reduce", "messages_do_not_fit": "expects"}
        return [key for key, text in found.items() if text in failure.text]
    # The first rank has no rank before it, and the last none behind it; whoever forgets that sends to itself or nobody.
    if is_to_itself(failure) or "there is no rank" in failure.text:
        return ["ends_forgotten"]
    return [key for key, text in ERRORS.items() if text in failure.text]


ERRORS = {  # key of a hint -> what Python's or torch's error says
    "gradient_not_passed": "grad can be implicitly created only for scalar outputs",  # backward() on an activation
    "graph_cut_off": "does not require grad and does not have a grad_fn",  # what was kept is detached
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
    must_not_change=("actions", "inputs", "targets"),
)
