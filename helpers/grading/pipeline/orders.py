"""06.gpipe and 06.one_f_one_b: what one rank does, in which order, as PyTorch prints it ("2F0")."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import zip_longest
from typing import Any

from helpers import schedules
from helpers.grading.cases import CaseGenerator
from helpers.grading.kit.answers import Answer, judge_answers, run_questions
from helpers.grading.pipeline import LAB
from helpers.grading.task import JudgedWorld, Judgement, Task
from helpers.learner.words import Words

Actions = list[str]
WHAT = Words(en="the list of actions", zh="动作列表")


def make_inputs(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """(rank, p, m): every rank of two pipelines, one with few micro-batches; as many, one, and two digits."""
    p = rng.integer(3, 5)
    m = p + rng.integer(2, 4)
    many, few = rng.integer(5, 6), rng.integer(2, 3)
    cases = [[rank, p, m] for rank in range(p)] + [[rank, many, few] for rank in range(many)]
    cases += [[rng.integer(0, p - 1), p, p], [rng.integer(0, p - 1), p, 1], [0, 1, rng.integer(3, 5)], [0, 1, 1]]
    return [{"cases": [*cases, [rng.integer(10, 11), 12, rng.integer(14, 16)], [0, 12, rng.integer(14, 16)]]}]


# -- what is right ---------------------------------------------------------------------------------------------------
def gpipe(rank: int, p: int, m: int) -> Actions:
    return list(map(str, schedules.gpipe(p, m).actions[rank]))


def one_f_one_b(rank: int, p: int, m: int) -> Actions:
    return list(map(str, schedules.one_f_one_b(p, m).actions[rank]))


# -- what people write instead ---------------------------------------------------------------------------------------
def named(rank: int, kind: str, numbers: range) -> Actions:
    return [f"{rank}{kind}{j}" for j in numbers]


def in_turn(rank: int, m: int, warm_up: int) -> Actions:
    """`warm_up` forwards, at most m, then a backward and a forward in turn."""
    warm_up = min(warm_up, m)
    turns = zip_longest(named(rank, "B", range(m)), named(rank, "F", range(warm_up, m)))
    return named(rank, "F", range(warm_up)) + [action for pair in turns for action in pair if action]


def unlimited(rank: int, p: int, m: int) -> Actions:
    """Warm-up of p - rank, also where there are not that many micro-batches."""
    warm_up = p - rank
    turns = [action for j in range(m - warm_up) for action in (f"{rank}B{j}", f"{rank}F{warm_up + j}")]
    return named(rank, "F", range(warm_up)) + turns + named(rank, "B", range(m - warm_up, m))


def without_the_last(rank: int, p: int, m: int) -> Actions:
    """No backward after the last forward."""
    actions = one_f_one_b(rank, p, m)
    return actions[: actions.index(f"{rank}F{m - 1}") + 1]


def from_one(order: Answer) -> Answer:
    """Micro-batches counted from 1."""

    def actions(rank: int, p: int, m: int) -> Actions:
        cut = [(action, len(str(rank)) + 1) for action in order(rank, p, m)]
        return [f"{action[:at]}{int(action[at:]) + 1}" for action, at in cut]

    return actions


GPIPE_MISTAKES: dict[str, list[Answer]] = {
    "last_micro_batch_first": [
        lambda rank, p, m: named(rank, "F", range(m)) + named(rank, "B", range(m - 1, -1, -1)),
    ],
    "one_after_the_other": [lambda rank, p, m: in_turn(rank, m, 1)],
    "backwards_missing": [lambda rank, p, m: named(rank, "F", range(m))],
    "stages_for_micro_batches": [lambda rank, p, m: named(rank, "F", range(p)) + named(rank, "B", range(p))],
    "counted_from_one": [from_one(gpipe)],
    "rank_forgotten": [lambda rank, p, m: gpipe(0, p, m)],
}
ONE_F_ONE_B_MISTAKES: dict[str, list[Answer]] = {
    "all_forwards_first": [gpipe],
    "one_after_the_other": [lambda rank, p, m: in_turn(rank, m, 1)],
    "warm_up_short": [lambda rank, p, m: in_turn(rank, m, p - rank - 1)],
    "warm_up_long": [
        lambda rank, p, m: in_turn(rank, m, p - rank + 1),
        lambda rank, p, m: in_turn(rank, m, max(2, p - rank)),
    ],
    "warm_up_everywhere": [lambda rank, p, m: in_turn(rank, m, p)],
    "warm_up_turned_round": [lambda rank, p, m: in_turn(rank, m, rank + 1)],
    "rest_forgotten": [
        without_the_last,
        lambda rank, p, m: unlimited(rank, p, m)[: max(p - rank, 2 * m - p + rank)],
    ],
    "stages_for_micro_batches": [lambda rank, p, m: in_turn(rank, p, p - rank)],
    "counted_from_one": [from_one(one_f_one_b)],
    "rank_forgotten": [
        lambda rank, p, m: [f"0{action[len(str(rank)) :]}" for action in one_f_one_b(rank, p, m)],
        lambda rank, p, m: one_f_one_b(0, p, m),
    ],
    "fewer_than_stages": [unlimited],
}


def judge_gpipe(world: JudgedWorld) -> Iterator[Judgement]:
    yield from judge_answers(GPIPE, WHAT, world.inputs[0]["cases"], world.outputs[0], gpipe, GPIPE_MISTAKES)


def judge_one_f_one_b(world: JudgedWorld) -> Iterator[Judgement]:
    """Whoever is right wherever there are enough micro-batches forgot the others, however that comes out."""
    cases, got = world.inputs[0]["cases"], world.outputs[0]
    found = list(judge_answers(ONE_F_ONE_B, WHAT, cases, got, one_f_one_b, ONE_F_ONE_B_MISTAKES))
    wrong = [case for case, finding in zip(cases, found, strict=True) if not finding.ok]
    only_few = all(m < p - rank for rank, p, m in wrong)
    yield from (f if f.ok or not only_few else replace(f, mistakes=("fewer_than_stages",)) for f in found)


GPIPE = Task(
    key="06.gpipe",
    signature="gpipe(rank, num_stages, num_microbatches)",
    make_inputs=make_inputs,
    run_submission=run_questions,
    judge=judge_gpipe,
    hints=LAB.hints(*GPIPE_MISTAKES),
    world_sizes=(1,),
    runs_on="process",
)
ONE_F_ONE_B = Task(
    key="06.one_f_one_b",
    signature="one_f_one_b(rank, num_stages, num_microbatches)",
    make_inputs=make_inputs,
    run_submission=run_questions,
    judge=judge_one_f_one_b,
    hints=LAB.hints(*ONE_F_ONE_B_MISTAKES),
    world_sizes=(1,),
    runs_on="process",
)
