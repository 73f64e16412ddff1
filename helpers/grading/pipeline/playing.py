"""06.bubble: play a schedule against the clock; what share of the step the ranks idle, and how much each holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from helpers import schedules
from helpers.grading.cases import CaseGenerator
from helpers.grading.kit.answers import Answer, judge_several_answers, run_questions
from helpers.grading.pipeline import LAB
from helpers.grading.task import JudgedWorld, Judgement, Task
from helpers.learner.words import Words
from helpers.schedules import Action, Message, awaited_by, sent_by

Rows = Sequence[Sequence[str]]
Seconds = Sequence[float]
FRACTION = Words(en="the bubble", zh="气泡占比")
HELD = Words(en="the micro-batches held", zh="持有的微批次数")


def make_inputs(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """One to read, equal stages, stages of different speed, orders that no formula knows, few micro-batches, many."""
    p = rng.integer(3, 5)
    m = p + rng.integer(2, 4)
    cases = [[rows(schedules.gpipe(n, k)), [1.0] * n, [2.0] * n] for n, k in ((2, 2), (p, m))]
    for order in (schedules.one_f_one_b, schedules.gpipe, schedules.naive):
        cases.append([rows(order(p, m)), *seconds(rng, p)])
    cases.append([backwards_turned(schedules.gpipe(p, m)), *seconds(rng, p)])
    cases.append([rows(schedules.one_f_one_b(p + 1, 2)), *seconds(rng, p + 1)])
    quarters = [[value / 4 for value in row] for row in seconds(rng, p)]
    cases.append([later_ahead(rng, p, m), *quarters])
    cases.append([rows(schedules.one_f_one_b(11, 12)), *seconds(rng, 11)])
    free = [[0, *[3] * (p - 1)], [2] * p]  # whole numbers, and a stage whose forward takes no time
    return [
        {"cases": [*cases, [rows(schedules.gpipe(p, 1)), *free], [rows(schedules.one_f_one_b(1, 3)), [2.0], [5.0]]]}
    ]


def later_ahead(rng: CaseGenerator, p: int, m: int) -> list[list[str]]:
    """An order in which some rank is further ahead later than before its first backward."""
    while True:
        actions = any_order(rng, p, m, alike=False)
        if any(most_held(row) > next(i for i, action in enumerate(row) if "B" in action) for row in actions):
            return actions


def any_order(rng: CaseGenerator, p: int, m: int, *, alike: bool = True) -> list[list[str]]:
    """Some schedule that runs. alike: micro-batches go forward in one order and back in another, same on every rank."""
    orders = {kind: torch.randperm(m, generator=rng).tolist() for kind in "FB"}
    found: list[list[str]] = [[] for _ in range(p)]
    done: set[tuple[int, str, int]] = set()
    while len(done) < 2 * p * m:
        able = [action for action in following(orders, p, done, alike) if is_ready(action, p, done)]
        rank, kind, j = rng.one_of(*able)
        done.add((rank, kind, j))
        found[rank].append(f"{rank}{kind}{j}")
    return found


def following(
    orders: dict[str, list[int]], p: int, done: set[tuple[int, str, int]], alike: bool
) -> Iterator[tuple[int, str, int]]:
    """Of each rank the next forward and the next backward; all that are left, if ranks need not be alike."""
    for rank in range(p):
        for kind, order in orders.items():
            left = [(rank, kind, j) for j in order if (rank, kind, j) not in done]
            yield from left[:1] if alike else left


def is_ready(action: tuple[int, str, int], p: int, done: set[tuple[int, str, int]]) -> bool:
    rank, kind, j = action
    if kind == "F":
        return rank == 0 or (rank - 1, "F", j) in done
    return (rank, "F", j) in done and (rank == p - 1 or (rank + 1, "B", j) in done)


def seconds(rng: CaseGenerator, p: int) -> list[list[float]]:
    """Of a forward and of a backward on each stage; no two stages alike in their sum, the first not the mean."""
    order = torch.randperm(p, generator=rng).tolist()
    return [[float(2 + i) for i in order], [float(rng.integer(3, 4) + 3 * i) for i in order]]


def rows(schedule: schedules.Schedule) -> list[list[str]]:
    return [list(map(str, row)) for row in schedule.actions]


def backwards_turned(schedule: schedules.Schedule) -> list[list[str]]:
    """The last micro-batch first on its way back, as the figure of the GPipe paper has it."""
    m = schedule.num_microbatches
    return [row[:m] + row[m:][::-1] for row in rows(schedule)]


# -- what is right, and what people write instead --------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class Played:
    """busy: seconds of each rank. spans: of each rank, from its first start to its last end. held: the most."""

    busy: list[float]
    spans: list[tuple[float, float]]
    held: list[int]

    @property
    def seconds(self) -> float:
        return max(end for _, end in self.spans)


def play(actions: Rows, forward: Seconds, backward: Seconds, *, waits: str = "FB") -> Played:
    """Each rank in its order; waits: the kinds of actions that wait for a neighbour, "FB" for all."""
    todo = [list(map(Action.parse, row)) for row in actions]
    num_stages, free = len(todo), [0.0] * len(todo)
    sent: dict[Message | None, float] = {None: 0.0}  # when each was; who waits for none starts at once
    spans: list[list[tuple[float, float]]] = [[] for _ in todo]

    def awaited(action: Action) -> Message | None:
        message = awaited_by(action, num_stages)
        return message if message and message.direction in waits else None

    while any(todo):
        for rank, row in enumerate(todo):
            while row and awaited(row[0]) in sent:
                action = row.pop(0)
                start = max(free[rank], sent[awaited(action)])
                free[rank] = start + (forward if action.kind == "F" else backward)[rank]
                if message := sent_by(action, num_stages):
                    sent[message] = free[rank]
                spans[rank].append((start, free[rank]))
    busy = [sum(end - start for start, end in row) for row in spans]
    return Played(busy=busy, spans=[(row[0][0], row[-1][1]) for row in spans], held=[most_held(row) for row in actions])


def most_held(row: Sequence[str]) -> int:
    held = most = 0
    for action in row:
        held += 1 if "F" in action else -1
        most = max(most, held)
    return most


def bubble(actions: Rows, forward: Seconds, backward: Seconds, **how: Any) -> float:
    played = play(actions, forward, backward, **how)
    return 1 - sum(played.busy) / len(actions) / played.seconds


def held(actions: Rows, forward: Seconds, backward: Seconds) -> list[int]:
    return list(map(most_held, actions))


def measured(measure: Callable[[Played], float]) -> Answer:
    return lambda *case: measure(play(*case))


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


WRONG_FRACTIONS: dict[str, list[Answer]] = {
    "over_the_ideal": [measured(lambda played: played.seconds / mean(played.busy) - 1)],
    "one_rank": [
        measured(lambda played: 1 - played.busy[0] / played.seconds),
        measured(lambda played: 1 - played.busy[-1] / played.seconds),
        measured(lambda played: 1 - max(played.busy) / played.seconds),
    ],
    "own_span": [
        measured(
            lambda played: mean(
                [1 - busy / (end - start) for busy, (start, end) in zip(played.busy, played.spans, strict=True)]
            )
        ),
    ],
    "idle_seconds": [
        measured(lambda played: played.seconds - mean(played.busy)),
        measured(lambda played: len(played.busy) * played.seconds - sum(played.busy)),
    ],
    "busy_share": [measured(lambda played: mean(played.busy) / played.seconds)],
    "backward_waits_for_nobody": [lambda *case: bubble(*case, waits="F")],
    "nobody_waits": [lambda *case: bubble(*case, waits="")],
    "times_of_one_stage": [
        lambda actions, forward, backward: bubble(actions, forward[:1] * len(forward), backward[:1] * len(backward)),
    ],
    "formula_of_equal_stages": [
        lambda actions, forward, backward: (len(actions) - 1) / (len(actions[0]) // 2 + len(actions) - 1),
        lambda actions, forward, backward: (len(actions) - 1) / (len(actions[0]) // 2),
    ],
}
WRONG_HELD: dict[str, list[Answer]] = {
    "never_released": [lambda actions, *_: [len(row) // 2 for row in actions]],
    "held_at_the_end": [lambda actions, *_: [0 for row in actions]],
    "formula_of_1f1b": [
        lambda actions, *_: [min(len(actions) - rank, len(row) // 2) for rank, row in enumerate(actions)],
        lambda actions, *_: [len(actions) - rank for rank, row in enumerate(actions)],
    ],
}


def judge(world: JudgedWorld) -> Iterator[Judgement]:
    columns = (FRACTION, bubble, WRONG_FRACTIONS), (HELD, held, WRONG_HELD)
    yield from judge_several_answers(BUBBLE, BOTH, columns, world)


BOTH = Words(en="the bubble and the list of micro-batches held", zh="气泡占比，以及每个 rank 持有的微批次数的列表")
BUBBLE = Task(
    key="06.bubble",
    signature="bubble(schedule, forward, backward)",
    make_inputs=make_inputs,
    run_submission=run_questions,
    judge=judge,
    hints=LAB.hints(*WRONG_FRACTIONS, *WRONG_HELD),
    world_sizes=(1,),
    runs_on="process",
    must_not_change=("schedule", "forward", "backward"),
)
