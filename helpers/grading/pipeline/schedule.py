"""Judges the tasks of lab 06 about orders of actions, 06.gpipe and 06.one_f_one_b, and provides schedules as lists.

Each task asks the learner's function several questions in one process. A question is called a case: it is the list of
the function's arguments, and `make_…` draws the cases. The answers are compared with the course's own schedules.

p is the number of stages, one per rank, and m the number of micro-batches. An action is a text as PyTorch prints it:
"2F0" is the forward of stage 2 on micro-batch 0, "2B0" its backward. In 1F1B a rank first runs some forwards, its
warm-up. Then it alternates backwards and forwards, and at the end it runs the remaining backwards, its cool-down.

A mistake is a wrong solution that learners often write. Each table `WRONG_…` maps the key of its hint (hints.yaml has
the text that the learner reads) to functions that contain this mistake, and a mistake is named only if one of them
gives all of the learner's answers. `words["…"]` is a sentence of messages.yaml, or the name of a value in one. `rng`
is a torch.Generator with methods that draw; `rng.integer(3, 5)` is 3, 4 or 5.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product, zip_longest
from typing import Any

import torch

from helpers import schedules
from helpers.grading.cases import CaseGenerator
from helpers.grading.kit.answers import Answer, judge_answers, question_task, run_questions
from helpers.grading.pipeline import LAB
from helpers.grading.task import JudgedWorld, Judgement, Task
from helpers.learner.words import Words
from helpers.schedules import Action, Message, awaited_by, sent_by

words = LAB.messages

Actions = list[str]  # what one rank does, in order
ActionLists = Sequence[Actions]  # one list for each rank
Seconds = Sequence[float]  # one number for each stage
Rule = Callable[[list[Any], Any], Words]  # from a case and the learner's wrong answer to a sentence


def explained(task: Task, *rules: Rule) -> Task:
    """The task with a second sentence in its messages, which says how the right value comes about in this case.

    rules: for each value of an answer the function that makes this sentence. The judgements of a value are the last
    ones that the task's judge yields, one per case; one before them is about the number of values.
    """

    def judge(world: JudgedWorld) -> Iterator[Judgement]:
        judgements = list(task.judge(world))
        compared = list(product(rules, zip(world.inputs[0]["cases"], world.outputs[0], strict=True)))
        num_others = len(judgements) % len(compared)
        yield from judgements[:num_others]
        for judgement, (rule, (case, got)) in zip(judgements[num_others:], compared, strict=False):
            yield judgement if judgement.ok else replace(judgement, message=judgement.message + "\n" + rule(case, got))

    return replace(task, judge=judge)


# -- 06.gpipe and 06.one_f_one_b -------------------------------------------------------------------------------------
def make_orders(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Draws cases (rank, p, m) for both tasks.

    Two pipelines are asked for each of their ranks; the second one has fewer micro-batches than stages. Then come a
    pipeline with as many micro-batches as stages, one with a single micro-batch, two with a single stage, and two in
    which ranks and micro-batches have numbers with two digits. The result has one item, since there is one process.
    """
    p = rng.integer(3, 5)
    m = p + rng.integer(2, 4)
    deep, few = rng.integer(5, 6), rng.integer(2, 3)  # stages and micro-batches of the second pipeline
    cases = [[rank, p, m] for rank in range(p)] + [[rank, deep, few] for rank in range(deep)]
    cases += [[rng.integer(0, p - 1), p, p], [rng.integer(0, p - 1), p, 1], [0, 1, rng.integer(3, 5)], [0, 1, 1]]
    return [{"cases": [*cases, [rng.integer(10, 11), 12, rng.integer(14, 16)], [0, 12, rng.integer(14, 16)]]}]


def gpipe(rank: int, p: int, m: int) -> Actions:
    """What this rank does in GPipe."""
    return list(map(str, schedules.gpipe(p, m).actions[rank]))


def one_f_one_b(rank: int, p: int, m: int) -> Actions:
    """What this rank does in 1F1B."""
    return list(map(str, schedules.one_f_one_b(p, m).actions[rank]))


def actions_on(rank: int, kind: str, microbatches: range) -> Actions:
    """The forwards ("F") or backwards ("B") of these micro-batches."""
    return [f"{rank}{kind}{j}" for j in microbatches]


def alternating(rank: int, m: int, warm_up: int) -> Actions:
    """`warm_up` forwards, but at most m; then a backward and a forward in turn, and the remaining backwards."""
    warm_up = min(warm_up, m)
    # Pairs of a backward and the next forward. Once no forwards are left, zip_longest pairs a backward with None.
    pairs = zip_longest(actions_on(rank, "B", range(m)), actions_on(rank, "F", range(warm_up, m)))
    return actions_on(rank, "F", range(warm_up)) + [action for pair in pairs for action in pair if action]


def without_cool_down(rank: int, p: int, m: int) -> Actions:
    """1F1B that ends with the last forward, so that the remaining backwards are missing."""
    actions = one_f_one_b(rank, p, m)
    return actions[: actions.index(f"{rank}F{m - 1}") + 1]


def rewritten(order: Answer, write: Callable[[Action], str]) -> Answer:
    """A function like `order` (an Answer is a function like the learner's) that writes its actions in another way."""
    return lambda rank, p, m: [write(Action.parse(action)) for action in order(rank, p, m)]


def counted_from_one(action: Action) -> str:
    """The action with micro-batches counted from 1."""
    return f"{action.stage}{action.kind}{action.microbatch + 1}"


def numbers_swapped(action: Action) -> str:
    """The action with the micro-batch in front and the stage behind."""
    return f"{action.microbatch}{action.kind}{action.stage}"


# The tables of wrong functions. Each is called as the learner's function is, with (rank, p, m).
WRONG_GPIPE: dict[str, list[Answer]] = {
    "last_micro_batch_first": [
        lambda rank, p, m: actions_on(rank, "F", range(m)) + actions_on(rank, "B", range(m - 1, -1, -1))
    ],
    "one_after_the_other": [lambda rank, p, m: alternating(rank, m, 1)],
    "backwards_missing": [lambda rank, p, m: actions_on(rank, "F", range(m))],
    "stages_for_micro_batches": [lambda rank, p, m: gpipe(rank, p, p)],
    "counted_from_one": [rewritten(gpipe, counted_from_one)],
    "rank_forgotten": [lambda rank, p, m: gpipe(0, p, m)],
    "numbers_swapped": [rewritten(gpipe, numbers_swapped)],
    "stage_mirrored": [lambda rank, p, m: actions_on(rank, "F", range(m)) + actions_on(p - 1 - rank, "B", range(m))],
}
WRONG_ONE_F_ONE_B: dict[str, list[Answer]] = {
    "all_forwards_first": [gpipe],
    "one_after_the_other": [lambda rank, p, m: alternating(rank, m, 1)],
    "warm_up_short": [lambda rank, p, m: alternating(rank, m, p - rank - 1)],
    "warm_up_long": [
        lambda rank, p, m: alternating(rank, m, p - rank + 1),
        lambda rank, p, m: alternating(rank, m, max(2, p - rank)),  # too long on the last rank alone
    ],
    "warm_up_twice": [lambda rank, p, m: alternating(rank, m, 2 * (p - 1 - rank) + 1)],
    "warm_up_everywhere": [lambda rank, p, m: alternating(rank, m, p)],
    "warm_up_turned_round": [lambda rank, p, m: alternating(rank, m, rank + 1)],
    "rest_forgotten": [without_cool_down],
    "stages_for_micro_batches": [lambda rank, p, m: alternating(rank, p, p - rank)],
    "counted_from_one": [rewritten(one_f_one_b, counted_from_one)],
    "rank_forgotten": [
        rewritten(one_f_one_b, lambda action: str(action._replace(stage=0))),
        lambda rank, p, m: one_f_one_b(0, p, m),
    ],
    "numbers_swapped": [rewritten(one_f_one_b, numbers_swapped)],
}


def judge_one_f_one_b(world: JudgedWorld) -> Iterator[Judgement]:
    """Expects the list of 1F1B in each case, and yields one Judgement per case.

    world: the inputs and outputs of the run, each as a list by rank; here rank 0 is the only one. If the answer is
    wrong only where there are fewer micro-batches than stages, the mistake is that it forgot those cases, whatever it
    returned there.
    """
    cases, got = world.inputs[0]["cases"], world.outputs[0]
    judgements = list(judge_answers(ONE_F_ONE_B, words["action_list"], cases, got, one_f_one_b, WRONG_ONE_F_ONE_B))
    wrong = [case for case, judgement in zip(cases, judgements, strict=True) if not judgement.ok]
    if all(m < p for _, p, m in wrong):
        judgements = [one if one.ok else replace(one, mistakes=("fewer_than_stages",)) for one in judgements]
    yield from judgements


def gpipe_rule(case: list[int], _: Any) -> Words:
    """What GPipe has this rank do."""
    rank, _, m = case
    return words["gpipe_rule"].format(rank=rank, m=m, last=m - 1)


def one_f_one_b_rule(case: list[int], _: Any) -> Words:
    """What 1F1B has this rank do."""
    rank, p, m = case
    return words["one_f_one_b_rule"].format(rank=rank, stages=p - rank, m=m, warm_up=min(p - rank, m), last=m - 1)


# `question_task` builds a Task whose judge compares the answers with the right function and with the wrong ones.
GPIPE = question_task(
    "06.gpipe",
    "gpipe(rank, num_stages, num_microbatches)",
    words["action_list"],
    gpipe,
    WRONG_GPIPE,
    make_inputs=make_orders,
)
GPIPE = explained(GPIPE, gpipe_rule)
ONE_F_ONE_B = Task(
    key="06.one_f_one_b",
    signature="one_f_one_b(rank, num_stages, num_microbatches)",
    make_inputs=make_orders,
    run_submission=run_questions,
    judge=judge_one_f_one_b,
    runs_on="process",
)
ONE_F_ONE_B = explained(ONE_F_ONE_B, one_f_one_b_rule)


# -- schedules as lists ----------------------------------------------------------------------------------------------
def action_lists(schedule: schedules.Schedule) -> list[Actions]:
    """The actions of each rank as texts."""
    return [list(map(str, row)) for row in schedule.actions]


def draw_schedule(rng: CaseGenerator, p: int, m: int, *, has_same_order: bool = True) -> list[Actions]:
    """Any schedule that can run.

    has_same_order: all ranks take the micro-batches forward in one random order, and back in another. Otherwise each
    rank takes them in an order of its own.
    """
    orders = {kind: torch.randperm(m, generator=rng).tolist() for kind in "FB"}
    schedule: list[Actions] = [[] for _ in range(p)]
    done: set[Action] = set()
    while len(done) < 2 * p * m:
        ready = [action for action in next_actions(orders, p, done, has_same_order) if is_ready(action, p, done)]
        action = rng.one_of(*ready)
        done.add(action)
        schedule[action.stage].append(str(action))
    return schedule


def next_actions(orders: dict[str, list[int]], p: int, done: set[Action], has_same_order: bool) -> Iterator[Action]:
    """For each rank the next forward and the next backward in the order, or all that remain if the order is free."""
    for rank in range(p):
        for kind, order in orders.items():
            actions = [Action(rank, kind, j) for j in order]
            remaining = [action for action in actions if action not in done]
            yield from remaining[:1] if has_same_order else remaining


def is_ready(action: Action, p: int, done: set[Action]) -> bool:
    """Whether everything that this action needs is done."""
    if action.kind == "F":
        return action.stage == 0 or action._replace(stage=action.stage - 1) in done
    is_last = action.stage == p - 1
    return action._replace(kind="F") in done and (is_last or action._replace(stage=action.stage + 1) in done)


@dataclass(frozen=True, kw_only=True)
class SimulatedStep:
    """When each rank computes in one training step."""

    times: list[list[tuple[float, float]]]  # of each rank, the start and the end of each action in seconds

    @property
    def busy(self) -> list[float]:
        """The seconds in which each rank computes."""
        return [sum(end - start for start, end in of_rank) for of_rank in self.times]

    @property
    def spans(self) -> list[tuple[float, float]]:
        """When the first action of each rank starts, and when its last one ends."""
        return [(of_rank[0][0], of_rank[-1][1]) for of_rank in self.times]

    @property
    def seconds(self) -> float:
        """The time of the whole step."""
        return max(end for _, end in self.spans)


def simulate(actions: ActionLists, forward: Seconds, backward: Seconds, *, waits_for: str = "FB") -> SimulatedStep:
    """Runs the schedule against the clock, each rank in its order, with messages that take no time.

    waits_for: the directions of the messages that a rank waits for, forward "F" and backward "B". A known mistake is to
    forget one of them, or both.
    """
    todo = [list(map(Action.parse, row)) for row in actions]
    num_stages = len(todo)
    times: list[list[tuple[float, float]]] = [[] for _ in todo]  # for each rank, start and end of each action
    # When each message was sent, in seconds. An action that waits for no message awaits None, which was sent at 0.
    sent: dict[Message | None, float] = {None: 0.0}

    def awaited(action: Action) -> Message | None:
        message = awaited_by(action, num_stages)
        return message if message and message.direction in waits_for else None

    while any(todo):
        for rank, row in enumerate(todo):
            while row and awaited(row[0]) in sent:
                action = row.pop(0)
                free_at = times[rank][-1][1] if times[rank] else 0.0
                start = max(free_at, sent[awaited(action)])
                end = start + (forward if action.kind == "F" else backward)[rank]
                times[rank].append((start, end))
                message = sent_by(action, num_stages)
                if message is not None:
                    sent[message] = end
    return SimulatedStep(times=times)
