"""12.verdict: alive, late, hung or dead, from heartbeats that a watcher got, on the watcher's clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from helpers.grading.drawing import Draw
from helpers.grading.fault_tolerance import LAB
from helpers.grading.kit import answers
from helpers.grading.task import Finding, Task, World
from helpers.words import Words

LIMITS = {"late": 3.0, "hung": 20.0, "dead": 10.0}  # seconds
Beat = tuple[int, int, float, float]  # rank, step, sent on its own clock, arrived on the watcher's
Told = tuple[float, int, float]  # of a rank: how long it is silent, its step, for how long it has had that


# -- jobs ------------------------------------------------------------------------------------------------------------
def make(rng: Draw, world_size: int) -> list[dict[str, Any]]:
    """What ranks tell, far from every limit: (silent, step, standing). Small ones first, then any mixture."""
    well, waits, slow, gone = (0.5, 7, 1.0), (1.0, 7, 30.0), (5.0, 7, 5.0), (15.0, 7, 40.0)
    behind = (0.5, 6, 31.0)
    jobs = [[well, well], [well, slow], [waits, behind], [gone, waits], [waits, waits], [waits, (15.0, 6, 40.0), waits]]
    jobs += [[behind, waits, waits, slow], [None, well], [waits, gone, behind]]
    for _ in range(8):
        jobs.append([rng.one_of(well, waits, slow, behind, behind, None) for _ in range(rng.integer(2, 5))])
        jobs.append([rng.one_of(well, waits, slow, gone, behind) for _ in range(rng.integer(2, 5))])
    return [{"cases": [case_of(rng, job) for job in jobs]}]


def case_of(rng: Draw, job: list[Told | None]) -> list[Any]:
    """None: a rank that has sent nothing since the job began, some seconds ago. Its clock may be hours away."""
    now = 1000.0 + rng.integer(0, 4000)
    started = now - (60.0 if None not in job else rng.one_of(1.0, 5.0, 15.0, 45.0))
    beats: list[Beat] = []
    for rank, told in enumerate(job):
        if told is None:
            continue
        ahead = 0.25 * rng.integer(-20000, 20000)
        silent, step, standing = told
        last, since = now - silent, max(started, now - standing)
        arrivals = [(since - 1.5, step - 1)] * (since - 1.5 > started)
        arrivals += [(min(since, last), step), ((since + last) / 2, step), (last, step)]
        beats += [(rank, at_step, arrived + ahead - 0.25, arrived) for arrived, at_step in arrivals if arrived <= last]
    return [sorted(beats, key=lambda beat: beat[3]), len(job), started, now, LIMITS]


# -- the rule, and what people do instead ----------------------------------------------------------------------------
def told_by(beats: list[Beat], ranks: int, started: float, now: float, clock: int = 3) -> list[Told]:
    """clock: the place in a beat of the time that counts."""
    last, step, since = [started] * ranks, [0] * ranks, [started] * ranks
    for beat in beats:
        rank = beat[0]
        last[rank] = beat[clock]
        if beat[1] > step[rank]:
            step[rank], since[rank] = beat[1], beat[clock]
    return [(now - last[rank], step[rank], now - since[rank]) for rank in range(ranks)]


def named(
    *, clocks: tuple[int, int] = (3, 3), dead_stop_all: bool = True, smallest: bool = True, hangs: bool = True
) -> Callable[..., list[str]]:
    """clocks: for silence and for standing. dead_stop_all: with a dead rank nobody is hung. smallest: only ranks with
    the smallest step are. hangs: somebody may be."""

    def verdict(beats: list[Beat], ranks: int, started: float, now: float, limits: dict[str, float]) -> list[str]:
        silent, standing = (told_by(beats, ranks, started, now, clock) for clock in clocks)
        dead = [one[0] > limits["dead"] for one in silent]
        least = min(one[1] for one in standing)
        words = []
        for rank in range(ranks):
            hung = hangs and standing[rank][2] > limits["hung"]
            hung = hung and not (dead_stop_all and any(dead)) and not (smallest and standing[rank][1] > least)
            late = silent[rank][0] > limits["late"]
            words.append("dead" if dead[rank] else "late" if late else "hung" if hung else "alive")
        return words

    return verdict


def unheard(word: str) -> Callable[..., list[str]]:
    """Who has sent nothing gets this word, and is left out where the others are compared."""

    def verdict(beats: list[Beat], ranks: int, started: float, now: float, limits: dict[str, float]) -> list[str]:
        heard = sorted({beat[0] for beat in beats})
        own = [(heard.index(beat[0]), *beat[1:]) for beat in beats]
        words = iter(right(own, len(heard), started, now, limits) if heard else [])
        return [next(words) if rank in heard else word for rank in range(ranks)]

    return verdict


right = named()
WRONG: dict[str, list[Callable[..., list[str]]]] = {
    "clocks_compared": [named(clocks=(2, 2)), named(clocks=(2, 3))],
    "waiting_called_hung": [
        named(dead_stop_all=False, smallest=False),
        named(smallest=False),
        named(dead_stop_all=False),
    ],
    "steps_ignored": [named(hangs=False)],
    "never_heard_forgotten": [unheard("alive"), unheard("dead"), unheard("late")],
}
WORDS = Words(en="the verdict on each rank", zh="对各 rank 的判断")


def judge(world: World) -> Iterator[Finding]:
    yield from answers.judge_answers(TASK, WORDS, world.inputs[0]["cases"], world.outputs[0], right, WRONG)


TASK = Task(
    key="12.verdict",
    signature="verdict(beats, ranks, started, now, limits)",
    make=make,
    act=answers.act,
    judge=judge,
    keeps=("beats", "limits"),
    hints=LAB.hints(*WRONG),
    world_sizes=(1,),
    unit="device",
)
