"""Judges the tasks of lab 06 about schedules and their times: 06.gpipe, 06.one_f_one_b, 06.bubble and 06.under_way.

Each task asks the learner's function several questions in one process. A question is called a case: it is the list of
the function's arguments, and `make_…` draws the cases. The answers are compared with the course's own schedules, or
with a simulation of the drawn schedule.

p is the number of stages, one per rank, and m the number of micro-batches. An action is a text as PyTorch prints it:
"2F0" is the forward of stage 2 on micro-batch 0, "2B0" its backward. In 1F1B a rank first runs some forwards, its
warm-up. Then it alternates backwards and forwards, and at the end it runs the remaining backwards, its cool-down.

A mistake is a wrong solution that learners often write. Each table `WRONG_…` maps the key of its hint (hints.yaml has
the text that the learner reads) to functions that contain this mistake, and a mistake is named only if one of them
gives all of the learner's answers. `words["…"]` is a sentence of messages.yaml, or the name of a value in one. `rng`
is a torch.Generator with methods that draw; `rng.integer(3, 5)` is 3, 4 or 5.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, zip_longest
from operator import itemgetter
from statistics import fmean
from typing import Any

import torch

from helpers import schedules
from helpers.grading.cases import CaseGenerator
from helpers.grading.kit.answers import Answer, judge_answers, judge_several_answers, question_task, run_questions
from helpers.grading.pipeline import LAB
from helpers.grading.task import JudgedWorld, Judgement, Task
from helpers.learner.words import Words
from helpers.schedules import Action, Message, awaited_by, sent_by

words = LAB.messages

Actions = list[str]  # what one rank does, in order
ActionLists = Sequence[Actions]  # one list for each rank
Seconds = Sequence[float]  # one number for each stage


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


def with_unlimited_warm_up(rank: int, p: int, m: int) -> Actions:
    """1F1B with a warm-up of p - rank forwards, even where there are fewer micro-batches than that.

    Where m < p - rank it lists micro-batches that do not exist: forwards from m on, and backwards with negative
    numbers.
    """
    warm_up = p - rank
    turns = [action for j in range(m - warm_up) for action in (f"{rank}B{j}", f"{rank}F{warm_up + j}")]
    return actions_on(rank, "F", range(warm_up)) + turns + actions_on(rank, "B", range(m - warm_up, m))


def unlimited_without_cool_down(rank: int, p: int, m: int) -> Actions:
    """Like `with_unlimited_warm_up`, but the backwards after the last turn of a backward and a forward are missing."""
    num_turns = max(0, m - (p - rank))  # a turn is one backward and one forward
    return with_unlimited_warm_up(rank, p, m)[: p - rank + 2 * num_turns]


def without_cool_down(rank: int, p: int, m: int) -> Actions:
    """1F1B that ends with the last forward, so that the remaining backwards are missing."""
    actions = one_f_one_b(rank, p, m)
    return actions[: actions.index(f"{rank}F{m - 1}") + 1]


def counted_from_one(order: Answer) -> Answer:
    """A function like `order` (an Answer is a function like the learner's), with micro-batches counted from 1."""

    def actions(rank: int, p: int, m: int) -> Actions:
        parsed = map(Action.parse, order(rank, p, m))
        return [f"{rank}{action.kind}{action.microbatch + 1}" for action in parsed]

    return actions


# The tables of wrong functions. Each is called as the learner's function is, with (rank, p, m).
WRONG_GPIPE: dict[str, list[Answer]] = {
    "last_micro_batch_first": [
        lambda rank, p, m: actions_on(rank, "F", range(m)) + actions_on(rank, "B", range(m - 1, -1, -1))
    ],
    "one_after_the_other": [lambda rank, p, m: alternating(rank, m, 1)],
    "backwards_missing": [lambda rank, p, m: actions_on(rank, "F", range(m))],
    "stages_for_micro_batches": [lambda rank, p, m: gpipe(rank, p, p)],
    "counted_from_one": [counted_from_one(gpipe)],
    "rank_forgotten": [lambda rank, p, m: gpipe(0, p, m)],
}
WRONG_ONE_F_ONE_B: dict[str, list[Answer]] = {
    "all_forwards_first": [gpipe],
    "one_after_the_other": [lambda rank, p, m: alternating(rank, m, 1)],
    "warm_up_short": [lambda rank, p, m: alternating(rank, m, p - rank - 1)],
    "warm_up_long": [
        lambda rank, p, m: alternating(rank, m, p - rank + 1),
        lambda rank, p, m: alternating(rank, m, max(2, p - rank)),  # too long on the last rank alone
    ],
    "warm_up_everywhere": [lambda rank, p, m: alternating(rank, m, p)],
    "warm_up_turned_round": [lambda rank, p, m: alternating(rank, m, rank + 1)],
    "rest_forgotten": [without_cool_down, unlimited_without_cool_down],
    "stages_for_micro_batches": [lambda rank, p, m: alternating(rank, p, p - rank)],
    "counted_from_one": [counted_from_one(one_f_one_b)],
    "rank_forgotten": [
        lambda rank, p, m: [str(Action.parse(action)._replace(stage=0)) for action in one_f_one_b(rank, p, m)],
        lambda rank, p, m: one_f_one_b(0, p, m),
    ],
    "fewer_than_stages": [with_unlimited_warm_up],
}


def judge_one_f_one_b(world: JudgedWorld) -> Iterator[Judgement]:
    """Expects the list of 1F1B in each case, and yields one Judgement per case.

    world: the inputs and outputs of the run, each as a list by rank; here rank 0 is the only one. If the answer is
    wrong only where there are fewer micro-batches than the warm-up needs, the mistake is that it forgot those cases,
    whatever it returned there.
    """
    cases, got = world.inputs[0]["cases"], world.outputs[0]
    judgements = list(judge_answers(ONE_F_ONE_B, words["action_list"], cases, got, one_f_one_b, WRONG_ONE_F_ONE_B))
    wrong = [case for case, judgement in zip(cases, judgements, strict=True) if not judgement.ok]
    if all(m < p - rank for rank, p, m in wrong):
        judgements = [one if one.ok else replace(one, mistakes=("fewer_than_stages",)) for one in judgements]
    yield from judgements


# `question_task` builds a Task whose judge compares the answers with the right function and with the wrong ones.
GPIPE = question_task(
    "06.gpipe",
    "gpipe(rank, num_stages, num_microbatches)",
    words["action_list"],
    gpipe,
    WRONG_GPIPE,
    make_inputs=make_orders,
    hints=LAB.hints(*WRONG_GPIPE),
)
ONE_F_ONE_B = Task(
    key="06.one_f_one_b",
    signature="one_f_one_b(rank, num_stages, num_microbatches)",
    make_inputs=make_orders,
    run_submission=run_questions,
    judge=judge_one_f_one_b,
    hints=LAB.hints(*WRONG_ONE_F_ONE_B),
    runs_on="process",
)


# -- 06.bubble -------------------------------------------------------------------------------------------------------
def make_bubble(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Draws cases (schedule, forward, backward): the actions of each rank, and the seconds of each stage.

    Two have equal stages, the first of them so small that a person can follow it. The others have stages of different
    speed: with known schedules, with orders that no formula describes, with few micro-batches and with many.
    """
    p = rng.integer(3, 5)
    m = p + rng.integer(2, 4)
    cases = [[action_lists(schedules.gpipe(n, k)), [1.0] * n, [2.0] * n] for n, k in ((2, 2), (p, m))]
    for order in (schedules.one_f_one_b, schedules.gpipe, schedules.naive):
        cases.append([action_lists(order(p, m)), *draw_seconds(rng, p)])
    cases.append([with_reversed_backwards(schedules.gpipe(p, m)), *draw_seconds(rng, p)])
    cases.append([action_lists(schedules.one_f_one_b(p + 1, 2)), *draw_seconds(rng, p + 1)])
    # Quarters of a second are no whole numbers, yet floats add them without rounding.
    quarters = [[seconds / 4 for seconds in of_stages] for of_stages in draw_seconds(rng, p)]
    cases.append([draw_late_peak(rng, p, m), *quarters])
    cases.append([action_lists(schedules.one_f_one_b(11, 12)), *draw_seconds(rng, 11)])  # numbers with two digits
    free_forward = [[0, *[3] * (p - 1)], [2] * p]  # ints, and a first stage whose forward takes no time
    cases.append([action_lists(schedules.gpipe(p, 1)), *free_forward])
    cases.append([action_lists(schedules.one_f_one_b(1, 3)), [2.0], [5.0]])
    return [{"cases": cases}]


def action_lists(schedule: schedules.Schedule) -> list[Actions]:
    """The actions of each rank as texts."""
    return [list(map(str, row)) for row in schedule.actions]


def with_reversed_backwards(schedule: schedules.Schedule) -> list[Actions]:
    """GPipe with the last micro-batch first on its way back, as the figure of the GPipe paper has it."""
    m = schedule.num_microbatches
    return [row[:m] + row[m:][::-1] for row in action_lists(schedule)]


def draw_seconds(rng: CaseGenerator, p: int) -> list[list[float]]:
    """Seconds of a forward and of a backward on each stage. No two stages need the same time for both together."""
    order = torch.randperm(p, generator=rng).tolist()  # the fastest stage has number 0
    return [[float(2 + i) for i in order], [float(rng.integer(3, 4) + 3 * i) for i in order]]


def draw_late_peak(rng: CaseGenerator, p: int, m: int) -> list[Actions]:
    """A schedule in which some rank holds most micro-batches only after its first backward.

    Whoever counts the forwards before the first backward gets a number that is too small for this rank.
    """
    while True:
        actions = draw_schedule(rng, p, m, has_same_order=False)
        for row in actions:
            num_before_backward = next(i for i, action in enumerate(row) if "B" in action)
            if max_in_flight(row) > num_before_backward:
                return actions


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
    """When each rank computes in one training step. Each list has one item per rank."""

    busy: list[float]  # the seconds in which the rank computes
    spans: list[tuple[float, float]]  # when its first action starts and when its last one ends, in seconds

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
    busy = [sum(end - start for start, end in of_rank) for of_rank in times]
    return SimulatedStep(busy=busy, spans=[(of_rank[0][0], of_rank[-1][1]) for of_rank in times])


def max_in_flight(actions: Actions) -> int:
    """The largest number of micro-batches that went forward on this rank and did not come back yet."""
    changes = [1 if "F" in action else -1 for action in actions]
    return max(accumulate(changes))  # of the running count


def bubble(actions: ActionLists, forward: Seconds, backward: Seconds, *, waits_for: str = "FB") -> float:
    """The share of the step in which a rank idles, as the mean over all ranks."""
    step = simulate(actions, forward, backward, waits_for=waits_for)
    return 1 - sum(step.busy) / len(actions) / step.seconds


def in_flight(actions: ActionLists, forward: Seconds, backward: Seconds) -> list[int]:
    """The most micro-batches that each rank holds at once; the seconds do not matter."""
    return list(map(max_in_flight, actions))


def from_step(measure: Callable[[SimulatedStep], float]) -> Answer:
    """A wrong function that simulates the right step, and then measures something else than the bubble."""
    return lambda *case: measure(simulate(*case))


def idle_share_of(choose: Callable[[list[float]], float]) -> Answer:
    """The idle share of one rank, whose busy seconds `choose` takes from those of all ranks."""
    return from_step(lambda step: 1 - choose(step.busy) / step.seconds)


def mean_of_own_spans(step: SimulatedStep) -> float:
    """The mean idle share if each rank is measured from its own first start to its own last end."""
    return fmean(1 - busy / (end - start) for busy, (start, end) in zip(step.busy, step.spans, strict=True))


# The wrong functions for each of the two values that 06.bubble returns: the bubble, and the micro-batches held.
# len(actions) is the number of stages, and len(actions[0]) // 2 that of the micro-batches: each goes forward and back.
WRONG_FRACTIONS: dict[str, list[Answer]] = {
    "over_the_ideal": [from_step(lambda step: step.seconds / fmean(step.busy) - 1)],
    "one_rank": [idle_share_of(itemgetter(0)), idle_share_of(itemgetter(-1)), idle_share_of(max)],
    "own_span": [from_step(mean_of_own_spans)],
    "idle_seconds": [
        from_step(lambda step: step.seconds - fmean(step.busy)),
        from_step(lambda step: len(step.busy) * step.seconds - sum(step.busy)),
    ],
    "busy_share": [from_step(lambda step: fmean(step.busy) / step.seconds)],
    "backward_waits_for_nobody": [lambda *case: bubble(*case, waits_for="F")],
    "nobody_waits": [lambda *case: bubble(*case, waits_for="")],
    "times_of_one_stage": [
        lambda actions, forward, backward: bubble(actions, forward[:1] * len(forward), backward[:1] * len(backward))
    ],
    "formula_of_equal_stages": [
        lambda actions, forward, backward: (len(actions) - 1) / (len(actions[0]) // 2 + len(actions) - 1),
        lambda actions, forward, backward: (len(actions) - 1) / (len(actions[0]) // 2),
    ],
}
WRONG_IN_FLIGHT: dict[str, list[Answer]] = {
    "never_released": [lambda actions, *_: [len(row) // 2 for row in actions]],
    "held_at_the_end": [lambda actions, *_: [0 for row in actions]],
    "formula_of_1f1b": [
        lambda actions, *_: [min(len(actions) - rank, len(row) // 2) for rank, row in enumerate(actions)],
        lambda actions, *_: [len(actions) - rank for rank, row in enumerate(actions)],
    ],
}


def judge_bubble(world: JudgedWorld) -> Iterator[Judgement]:
    """Expects two values in each case: the bubble, and the most micro-batches that each rank holds.

    Each value is judged by itself, and has its name, its right function and its wrong ones.
    """
    columns = (words["bubble"], bubble, WRONG_FRACTIONS), (words["micro_batches_held"], in_flight, WRONG_IN_FLIGHT)
    yield from judge_several_answers(BUBBLE, words["bubble_and_held"], columns, world)


BUBBLE = Task(
    key="06.bubble",
    signature="bubble(schedule, forward, backward)",
    make_inputs=make_bubble,
    run_submission=run_questions,
    judge=judge_bubble,
    hints=LAB.hints(*WRONG_FRACTIONS, *WRONG_IN_FLIGHT),
    runs_on="process",
    must_not_change=("schedule", "forward", "backward"),
)


# -- 06.under_way ----------------------------------------------------------------------------------------------------
# The learner's function says how many micro-batches must be under way, that is in flight, at the same time.
def make_under_way(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Draws cases (p, forward, backward, message): the stages, and three durations in the same unit of time.

    First come the numbers of chapter 06, then messages that take no time, and a single rank. In the other cases the
    right value is no whole number before it is rounded up, so that a rounding error of the learner's cannot decide.
    """
    cases = [[4, 10, 20, 10], [rng.integer(3, 6), rng.integer(4, 9), rng.integer(10, 19), 0], [1, 10, 20, 10]]
    while len(cases) < 9:
        case = [rng.integer(2, 8), rng.integer(5, 12), rng.integer(11, 24), rng.integer(6, 40)]
        if not round_trip(*case).is_integer():
            cases.append(case)
    return [{"cases": cases}]


def round_trip(p: int, forward: float, backward: float, message: float, *, num_messages: int | None = None) -> float:
    """The time in which a micro-batch goes forward and back, in units of the work that rank 0 does for one micro-batch.

    That unit is forward + backward. The computations on all p stages take p units, and the messages come on top.
    num_messages: the messages on its way; if it is not given, p - 1 forward and as many back.
    """
    num_messages = 2 * (p - 1) if num_messages is None else num_messages
    return p + num_messages * message / (forward + backward)


def num_in_flight(*case: Any) -> int:
    """How many micro-batches must be in flight, so that rank 0 never waits during the round trip of one."""
    return math.ceil(round_trip(*case))


WRONG_NUMBERS: dict[str, list[Answer]] = {
    "messages_left_out": [lambda p, *_: p],
    "there_and_not_back": [lambda p, *case: math.ceil(round_trip(p, *case, num_messages=p - 1))],
    "a_message_too_many": [lambda p, *case: math.ceil(round_trip(p, *case, num_messages=2 * p))],
    "not_rounded_up": [round_trip, lambda *case: int(round_trip(*case)), lambda *case: round(round_trip(*case))],
}
UNDER_WAY = question_task(
    "06.under_way",
    "num_in_flight(num_stages, forward, backward, message)",
    Words(en="the number of micro-batches", zh="微批次的个数"),
    num_in_flight,
    WRONG_NUMBERS,
    make_inputs=make_under_way,
    hints=LAB.hints(*WRONG_NUMBERS),
)
