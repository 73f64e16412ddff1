"""06.stage: one rank of a pipeline plays its list of actions on live ranks, forward and backward.

Four calls: 1F1B, where neighbours send to each other at the same time; GPipe; an order of no name, in which the
micro-batches come back in another order than they went; a single micro-batch. With 4 ranks 1F1B has fewer than stages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from helpers import schedules
from helpers.grading.cases import CaseGenerator
from helpers.grading.kit import model_tools
from helpers.grading.kit.answers import is_number, is_same_answer
from helpers.grading.kit.comparisons import expect, expect_equal, expect_payload, expect_tensors
from helpers.grading.kit.messages import RETURNED, calls_of, each_call, is_to_itself
from helpers.grading.pipeline import LAB
from helpers.grading.pipeline.playing import any_order, rows
from helpers.grading.task import JudgedWorld, Judgement, RankContext, RunFailure, Task
from helpers.learner.words import Words
from helpers.schedules import Action

Named = dict[str, Tensor]
FLOAT = 8  # bytes


def make_inputs(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Of each call what each rank gets."""
    few, many = (3, 5) if world_size != 3 else (2, 5)
    calls = [
        drawn_call(rng, rows(schedules.one_f_one_b(world_size, few if world_size == 4 else many))),
        drawn_call(rng, rows(schedules.gpipe(world_size, few))),
        drawn_call(rng, turned(rng, world_size, 4), more=(rng.integer(2, 3),)),
        drawn_call(rng, rows(schedules.one_f_one_b(world_size, 1))),
    ]
    return [{"calls": list(of_rank)} for of_rank in zip(*calls, strict=True)]


def turned(rng: CaseGenerator, p: int, m: int) -> list[list[str]]:
    """An order in which no rank's backwards follow the order of its forwards."""
    while True:
        actions = any_order(rng, p, m)
        if numbers_of(actions[0], "F") != numbers_of(actions[0], "B") != sorted(numbers_of(actions[0], "B")):
            return actions


def numbers_of(actions: list[str], kind: str) -> list[int]:
    """Of the micro-batches, in the order in which they go forward, "F", or back, "B"."""
    return [Action.parse(action).microbatch for action in actions if kind in action]


def drawn_call(rng: CaseGenerator, actions: list[list[str]], more: tuple[int, ...] = ()) -> list[dict[str, Any]]:
    """Each rank gets its stage's widths and weights, and its actions; the first the inputs, the last the targets."""
    p, m = len(actions), len(actions[0]) // 2
    num_rows, hidden, first, last = (rng.integer(*span) for span in ((3, 6), (4, 7), (2, 3), (2, 3)))
    widths = [first, *[hidden] * (p - 1), last]
    inputs, targets = ([rng.tensor(num_rows, *more, width) for _ in range(m)] for width in (first, last))
    calls = []
    for rank in range(p):
        ends = widths[rank : rank + 2]
        call = {"widths": ends, "weights": model_tools.random_weights(rng, build(ends)), "actions": actions[rank]}
        call |= {"inputs": inputs if rank == 0 else None, "targets": targets if rank == p - 1 else None}
        calls.append(call | {"shape": [num_rows, *more, hidden]})
    return calls


def build(ends: list[int]) -> nn.Sequential:
    """A stage: (rows, ends[0]) to (rows, ends[1]), float64."""
    return nn.Sequential(*model_tools.mlp([ends[0], 5, ends[1]]), nn.Tanh())


class Watched(nn.Module):
    """A stage that notes which micro-batch goes forward, and when the gradient of its output comes back.

    numbers: of the micro-batches in the order of the list; the first stage sees by its input which one it is.
    """

    def __init__(self, stage: nn.Module, rank: int, numbers: list[int], inputs: list[Tensor] | None):
        super().__init__()
        self.stage, self.rank, self.numbers, self.inputs = stage, rank, [*numbers], inputs or []
        self.done: list[str] = []

    def forward(self, x: Tensor) -> Tensor:
        listed = self.numbers.pop(0) if self.numbers else "?"
        j = next((j for j, given in enumerate(self.inputs) if torch.equal(given, x)), listed)
        output = self.stage(x)
        self.done.append(f"{self.rank}F{j}")
        if output.requires_grad:
            output.register_hook(lambda _: self.done.append(f"{self.rank}B{j}"))
        return output


def run_call(submitted, inputs: dict[str, Any], context: RankContext) -> dict[str, Any]:
    stage = build(inputs["widths"])
    stage.load_state_dict(inputs["weights"])
    watched = Watched(stage, context.rank, numbers_of(inputs["actions"], "F"), inputs["inputs"])
    given = [inputs[name] and [tensor.clone() for tensor in inputs[name]] for name in ("inputs", "targets")]
    loss = submitted(watched, list(inputs["actions"]), *given, tuple(inputs["shape"]))
    return {"loss": loss, "done": list(watched.done), "gradients": model_tools.gradients_of(stage)}


# -- what one process gives ------------------------------------------------------------------------------------------
class Whole:
    """All stages in one process: the loss of each micro-batch, and what each of them alone adds to the gradients."""

    def __init__(self, call: JudgedWorld):
        self.stages = [build(one["widths"]) for one in call.inputs]
        for stage, one in zip(self.stages, call.inputs, strict=True):
            stage.load_state_dict(one["weights"])
        self.inputs, self.targets = call.inputs[0]["inputs"], call.inputs[-1]["targets"]
        self.m, self.p = len(self.inputs), call.size
        self.losses, self.parts = [], []
        for x, target in zip(self.inputs, self.targets, strict=True):
            loss = F.mse_loss(nn.Sequential(*self.stages)(x), target)
            self.losses.append(loss.item())
            self.parts.append(self._gradients(loss))

    def _gradients(self, loss: Tensor) -> list[Named]:
        """Of each stage."""
        for stage in self.stages:
            stage.zero_grad()
        loss.backward()
        return [model_tools.detached_copies(model_tools.gradients_of(stage)) for stage in self.stages]

    def gradients(self, rank: int, factor: float) -> Named:
        """The sum over all micro-batches, times a factor."""
        return {name: factor * sum(part[rank][name] for part in self.parts) for name in self.parts[0][rank]}

    def with_ones(self, rank: int) -> Named:
        """What a stage gets that goes back from ones and not from the gradient that came."""
        until = nn.Sequential(*self.stages[: rank + 1])
        return self._gradients(sum(until(x).sum() for x in self.inputs))[rank]

    def wrong_gradients(self, rank: int) -> dict[str, list[Named]]:
        m, behind = self.m, self.p - 1 - rank
        last = self.parts[-1][rank]
        wrong = {
            "not_divided": [self.gradients(rank, 1.0)],
            "divided_on_every_stage": [self.gradients(rank, m ** -(n + 1.0)) for n in {1, behind} if n],
            "divided_by_stages": [self.gradients(rank, factor) for factor in (1 / self.p, 1 / m / self.p)],
            "cleared_every_micro_batch": [
                {name: value * factor for name, value in last.items()} for factor in (1, 1 / m)
            ],
        }
        if behind:
            ones = self.with_ones(rank)
            wrong["ones_for_the_gradient"] = [{n: value * factor for n, value in ones.items()} for factor in (1, 1 / m)]
        return wrong


def judge(world: JudgedWorld) -> Iterator[Judgement]:
    for call in calls_of(world):
        whole = Whole(call)
        yield judge_loss(whole, call.outputs[-1]["loss"], call.size - 1)
        for rank, output in enumerate(call.outputs):
            actions = call.inputs[rank]["actions"]
            known = {key: output["done"] for key in disordered(actions, output["done"])}
            yield expect_equal(ORDER, actions, output["done"], rank=rank, mistakes=known)
            right, wrong = whole.gradients(rank, 1 / whole.m), whole.wrong_gradients(rank)
            yield from expect_tensors(GRADIENT, right, output["gradients"], rank=rank, mistakes=wrong)
        yield from judge_messages(call, whole.m)


def disordered(actions: list[str], done: list[str]) -> list[str]:
    """The mistake of whoever does everything once, and not as the list has it."""
    if sorted(map(str, done)) != sorted(actions):
        return []
    kinds = ["".join("F" if "F" in action else "B" for action in row) for row in (actions, done)]
    return ["number_ignored" if kinds[0] == kinds[1] else "order_ignored"]


def judge_loss(whole: Whole, got: Any, rank: int) -> Judgement:
    """A number, or a tensor of one."""
    got = got.item() if isinstance(got, Tensor) and got.numel() == 1 else got
    total, last = sum(whole.losses), whole.losses[-1]
    wrong = {"not_divided": [total], "loss_of_the_last": [last, last / whole.m]}
    known = [key for key, values in wrong.items() if any(is_same_answer(value, got) for value in values)]
    says = [f"{value:.6g}" if is_number(value) else repr(value)[:60] for value in (got, total / whole.m)]
    return expect(
        is_same_answer(total / whole.m, got),
        f"the loss that it returns is {says[0]}, expected {says[1]}",
        f"返回的损失是 {says[0]}，应为 {says[1]}",
        rank=rank,
        mistakes=["loss_missing"] if got is None else known,
    )


def judge_messages(call: JudgedWorld, m: int) -> Iterator[Judgement]:
    """An activation for the next stage, a gradient for the one before, and all of it gone at the end."""
    num_bytes = [FLOAT * prod(call.inputs[0]["shape"]) * m * ((r > 0) + (r < call.size - 1)) for r in range(call.size)]
    yield from expect_payload(call, num_bytes, "send")
    for rank, (log, marks) in enumerate(zip(call.logs, call.marks, strict=True)):
        late = any(event.end > when for event in log.events for name, when in marks if name == RETURNED)
        yield expect(
            not late,
            "it returns before all its messages are complete",
            "还有消息没完成就返回了",
            rank=rank,
            mistakes=["not_waited"],
        )


def recognise_failure(failure: RunFailure) -> list[str]:
    """By who waits in what, and by the words of torch's own errors."""
    if failure.kind == "hang":
        in_send = re.search(r"\bwaits in send\b(?! and)", failure.text)
        return ["sends_block"] if in_send else ["nobody_sends"] if failure.is_waiting_in("recv") else []
    if is_to_itself(failure) or any(words in failure.text for words in NO_SUCH_RANK):
        return ["ends_forgotten"]
    return [key for key, words in ERRORS.items() if words in failure.text]


NO_SUCH_RANK = ("there is no rank",)
ERRORS = {
    "inputs_everywhere": "'NoneType' object is not subscriptable",
    "only_the_latest_kept": "backward through the graph a second time",
    "no_gradient_for_the_input": "got <class 'NoneType'>",
}
ORDER = Words(en="what the stage does", zh="这个 stage 实际执行的动作")
GRADIENT = Words(en="the gradient of {}", zh="{} 的梯度")
STAGE = Task(
    key="06.stage",
    signature="run_stage(stage, actions, inputs, targets, shape)",
    make_inputs=make_inputs,
    run_submission=each_call(run_call),
    judge=judge,
    recognise_failure=recognise_failure,
    hints=LAB.hints(
        "sends_block",
        "ends_forgotten",
        "nobody_sends",
        *ERRORS,
        "order_ignored",
        "number_ignored",
        "loss_missing",
        "loss_of_the_last",
        "not_divided",
        "divided_on_every_stage",
        "divided_by_stages",
        "cleared_every_micro_batch",
        "ones_for_the_gradient",
        "not_waited",
    ),
    must_not_change=("actions", "targets"),
)
