"""What a job decides. 12.verdict: who is alive, late, hung or dead. 12.interval: after how many steps to save.
12.regroup: who has which rank in the next generation, and under which keys its members say that they are there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import sqrt
from typing import Any

import torch

from helpers.grading.cases import CaseGenerator
from helpers.grading.fault_tolerance import LAB
from helpers.grading.kit import answers
from helpers.grading.task import RankContext
from helpers.learner.words import Words

# -- 12.verdict ------------------------------------------------------------------------------------------------------
LIMITS = {"late": 3, "dead": 10, "hung": 20}  # seconds
Beat = tuple[int, int, float, float]  # rank, step, sent on its own clock, arrived on the watcher's
Told = tuple[float, int, float]  # of a rank: how long it is silent, its step, for how long it has had that
WELL, WAITS, SLOW, GONE, BEHIND = (1, 7, 2), (1, 7, 30), (5, 7, 5), (15, 7, 40), (1, 6, 31)
SLOW_BEHIND, FIRST_STEP = (5, 6, 31), (1, 0, 15)
AT_LATE, AT_DEAD, AT_HUNG = (3, 7, 5), (10, 7, 12), (1, 7, 20)  # to the second, which is not more than the limit
NEVER = None  # has sent nothing yet


def make_verdict(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Jobs far from every limit, or exactly at it: small ones, then any mixture. The last of the small ones is in its
    first step, of which the first beats came some seconds after the start."""
    jobs = [[WELL, WELL], [WELL, SLOW], [WAITS, BEHIND], [GONE, WAITS], [WAITS, WAITS], [WAITS, (15, 6, 40), WAITS]]
    jobs += [[BEHIND, WAITS, WAITS, SLOW], [NEVER, WELL], [WELL, NEVER], [WAITS, GONE, BEHIND]]
    jobs += [[WAITS, GONE], [WAITS, SLOW_BEHIND], [AT_LATE, WAITS], [WAITS, AT_DEAD], [AT_HUNG, WAITS]]
    jobs.append([FIRST_STEP] * 2)
    for odd in (NEVER, GONE) * 8:
        jobs.append([rng.one_of(WELL, WAITS, SLOW, BEHIND, odd) for _ in range(rng.integer(2, 5))])
    begun = [(1, 5, 15, 45)[number % 4] if NEVER in job else 60 for number, job in enumerate(jobs)]
    begun[jobs.index([FIRST_STEP] * 2)] = 25
    return [{"cases": [watched(rng, job, ago) for job, ago in zip(jobs, begun, strict=True)]}]


def watched(rng: CaseGenerator, job: list[Told | None], ago: float) -> list[Any]:
    """The beats of each rank, whose clock may be hours away. The job began `ago` seconds ago."""
    now = rng.integer(60, 99)
    started = now - ago
    beats: list[Beat] = []
    for rank, told in enumerate(job):
        if told is not NEVER:
            last, since, ahead = now - told[0], max(started, now - told[2]), rng.integer(-9000, 9000)
            arrivals = (
                [(since - 2, told[1] - 1)] * (len(job) > 2) + [(since, told[1])] + [(last, told[1])] * (last > since)
            )
            beats += [(rank, step, at + ahead, at) for at, step in arrivals if started <= at]
    return [sorted(beats, key=lambda beat: beat[3]), len(job), started, now, LIMITS]


def told_by(
    beats: list[Beat], ranks: int, started: float, now: float, clock: int, never: Told | None, at_start: int = 0
) -> list[Told]:
    """clock: the place in a beat of the time that counts. at_start: the step before the first beat."""
    last, step, since = [started] * ranks, [at_start] * ranks, [started] * ranks
    for beat in beats:
        rank, last[beat[0]] = beat[0], beat[clock]
        if beat[1] > step[rank]:
            step[rank], since[rank] = beat[1], beat[clock]
    told = [(now - last[rank], step[rank], now - since[rank]) for rank in range(ranks)]
    heard = {beat[0] for beat in beats}
    return [one if never is None or rank in heard else never for rank, one in enumerate(told)]


def named(
    *,
    clocks: tuple[int, int] = (3, 3),
    may_wait: Sequence[str] = ("dead", "smaller"),
    hangs: bool = True,
    never: Told | None = None,
    at_start: int = 0,
) -> Callable[..., list[str]]:
    """clocks: for silence and for standing. may_wait: for whom a rank that stands still may wait: one that is dead, one
    with a smaller step. hangs: somebody may be hung. never: what counts for who has sent nothing. at_start: the step of
    all others at `started`; with -1 it is the first beat from which they are in step 0."""

    def verdict(beats: list[Beat], ranks: int, started: float, now: float, limits: dict[str, float]) -> list[str]:
        silent, standing = (told_by(beats, ranks, started, now, clock, never, at_start) for clock in clocks)
        nobody = not hangs or ("dead" in may_wait and any(one[0] > limits["dead"] for one in silent))
        least = min(one[1] for one in standing)
        words = []
        for (silence, *_), (_, step, still) in zip(silent, standing, strict=True):
            hung = still > limits["hung"] and not nobody and not ("smaller" in may_wait and step > least)
            known = {"dead": silence > limits["dead"], "late": silence > limits["late"], "hung": hung, "alive": True}
            words.append(next(word for word, fits in known.items() if fits))
        return words

    return verdict


WRONG_WORDS: dict[str, list[Callable[..., list[str]]]] = {
    "clocks_compared": [named(clocks=(2, 2)), named(clocks=(2, 3))],
    "waiting_called_hung": [named(may_wait=one) for one in ((), ("dead",), ("smaller",))],
    "steps_ignored": [named(hangs=False)],
    "never_heard_forgotten": [
        named(never=one, at_start=step) for one in ((0.0, 99, 0.0), (99.0, 99, 99.0)) for step in (0, -1)
    ],
}
VERDICT = answers.question_task(
    "12.verdict",
    "verdict(beats, ranks, started, now, limits)",
    Words(en="the list of verdicts (number 1 is that on rank 0)", zh="各 rank 的判断（第 1 个是 rank 0）"),
    named(),
    WRONG_WORDS,
    make_inputs=make_verdict,
    hints=LAB.hints(*WRONG_WORDS),
)

# -- 12.interval -----------------------------------------------------------------------------------------------------
EDGE = 0.1  # of a step: no case is so near to the middle between two numbers, so the least of the sum is right too


def make_interval(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Young's own example, a large job (0.0065 failures per node and day), one that saves after each step; then any."""
    jobs = [
        [1, 6000, 10, 600, 15],
        [2048, 13_292_308, 60, 300, 4],
        [4, 2000, 1, 100, 300],
        [100, 1e6, 20, 4000, 2],
    ]
    while len(jobs) < 10:
        nodes = rng.integer(2, 3000)
        seconds = nodes * 500 * rng.integer(4, 60), 5 * rng.integer(1, 30), 60 * rng.integer(10, 60)
        job = [nodes, *seconds, 0.5 * rng.integer(2, 60)]
        if abs(steps_in(*job) % 1 - 0.5) > EDGE:
            jobs.append(job)
    return [{"cases": jobs}]


def steps_in(nodes: int, node_mtbf: float, save: float, repair: float, step: float) -> float:
    return sqrt(2 * save * (node_mtbf / nodes + repair)) / step


def best(*job: float, share: float = 1.0) -> int:
    return max(1, round(share * steps_in(*job)))


WRONG_STEPS: dict[str, list[Callable[..., int]]] = {
    "repair_not_counted": [lambda nodes, mtbf, save, repair, step: best(nodes, mtbf, save, 0, step)],
    "nodes_forgotten": [lambda nodes, *others: best(1, *others)],
    "whole_interval_lost": [partial(best, share=sqrt(0.5))],
}
INTERVAL = answers.question_task(
    "12.interval",
    "best_interval(nodes, node_mtbf, save, repair, step)",
    Words(en="the number of steps", zh="步数"),
    best,
    WRONG_STEPS,
    make_inputs=make_interval,
    hints=LAB.hints(*WRONG_STEPS),
)

# -- 12.regroup ------------------------------------------------------------------------------------------------------
Names, Group = Sequence[str], list[Any]  # a group: ranks, spares and keys, or three times None


def make_regroup(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """How many ranks and spares, which of them are dead, how many are needed: with and without a spare, dead spares
    and two of them in a row, too few and just enough; then any."""
    hows = [
        (3, 1, [1], [], 1),
        (3, 0, [0], [], 1),
        (4, 2, [1, 2], [], 1),
        (5, 3, [0, 3], [0, 1], 2),
        (4, 1, [0, 2], [], 4),
    ]
    hows += [(4, 1, [0, 2], [], 3), (2, 0, [1], [], 2), (3, 2, [], [1], 1), (4, 1, [2, 0], [0], 1)]
    for spares in (0, 1, 2, 3, 3):
        size = rng.integer(3, 6)
        dead = sorted({rng.integer(0, size - 1) for _ in range(rng.integer(1, 3))})
        hows.append((size, spares, dead, list(range(rng.integer(0, spares))), 1))
    return [{"cases": [members(rng, *how) for how in hows]}]


def members(
    rng: CaseGenerator, size: int, num_spares: int, dead: list[int], dead_spares: list[int], least: int
) -> list[Any]:
    """Names in no order, as machines come when they come. How often each was started again says nothing."""
    names = [f"node{10 + i}" for i in torch.randperm(size + num_spares, generator=rng).tolist()]
    ranks, spares, generation = names[:size], names[size:], rng.integer(2, 7)
    gone = [ranks[rank] for rank in dead] + [spares[place] for place in dead_spares]
    return [ranks, spares, gone, least, generation, {name: rng.one_of(0, 1, generation + 3) for name in names}]


def run_regroup(submitted: Callable, inputs: dict[str, Any], context: RankContext) -> list[Any]:
    def asked(*args: Any) -> Any:
        answer = submitted(*args[:-1], dict(args[-1]))
        return list(answer) if isinstance(answer, list | tuple) and len(answer) == 3 else [answer] * 3

    return answers.run_questions(asked, inputs, context, REGROUP)


def in_their_places(ranks: Names, living: Names, dead: Names) -> list[str]:
    left = iter(living)
    return [name for name in (next(left, "") if one in dead else one for one in ranks) if name]


def at_the_end(ranks: Names, living: Names, dead: Names) -> list[str]:
    return [*(one for one in ranks if one not in dead), *living[: sum(one in dead for one in ranks)]]


def way(
    *,
    places: Callable[[Names, Names, Names], list[str]] = in_their_places,
    awaited: Callable[[Names, Names], Names] = lambda now, ranks: now,
    prefix: str = "{new}/",
) -> Callable[..., Group]:
    """places: the new ranks, from the old ones, the living spares and the dead. awaited: who has to say that it is
    there, from the new ranks and the old ones. prefix: of a key, with the generation, old or new, or
    the restarts of the node, or one more."""

    def grouped(
        ranks: Names, spares: Names, dead: Names, least: int, generation: int, restarts: dict[str, int]
    ) -> Group:
        living = [name for name in spares if name not in dead]
        now = places(ranks, living, dead)
        counts = {"old": generation, "new": generation + 1}
        keys = [
            prefix.format(restarts=restarts[name], more=restarts[name] + 1, **counts) + name
            for name in awaited(now, ranks)
        ]
        return [now, [name for name in living if name not in now], keys] if len(now) >= least else [None] * 3

    return grouped


WRONG_GROUPS: dict[str, list[Callable[..., Group]]] = {
    "dead_awaited": [
        way(awaited=lambda now, ranks: ranks),
        way(awaited=lambda now, ranks: [*now, *(name for name in ranks if name not in now)]),
        way(awaited=lambda now, ranks: [*ranks, *(name for name in now if name not in ranks)]),
    ],
    "restart_count_as_key": [way(prefix="{restarts}/"), way(prefix="{more}/")],
    "old_keys": [way(prefix="{old}/"), way(prefix="")],
    "places_not_kept": [
        way(places=at_the_end),
        way(places=lambda *given: sorted(in_their_places(*given))),
        way(places=lambda *given: sorted(at_the_end(*given))),
    ],
}
REGROUP = answers.question_task(
    "12.regroup",
    "regroup(ranks, spares, dead, min_ranks, generation, restarts)",
    [Words(en=name, zh=f" {name}") for name in ("ranks", "spares", "keys")],
    way(),
    WRONG_GROUPS,
    make_inputs=make_regroup,
    run_submission=run_regroup,
    hints=LAB.hints(*WRONG_GROUPS),
    must_not_change=("ranks", "spares", "dead"),
)
