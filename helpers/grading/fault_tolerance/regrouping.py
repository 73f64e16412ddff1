"""12.regroup: who has which rank in the next generation, and under which keys its members say that they are there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from helpers.grading.drawing import Draw
from helpers.grading.fault_tolerance import LAB
from helpers.grading.kit import answers
from helpers.grading.task import Finding, Task, Trial, World
from helpers.words import Words

STOPPED = [None] * 3
Names = Sequence[str]
Group = list[Any]  # ranks, spares, keys; STOPPED where too few are left


def make(rng: Draw, world_size: int) -> list[dict[str, Any]]:
    """One death with and without a spare, several, dead spares, too few and just enough; then any."""
    cases = [case_of(rng, *how) for how in ((3, 1, [1], []), (3, 0, [0], []), (4, 2, [1, 2], []), (5, 3, [0, 3], [0]))]
    cases += [case_of(rng, 4, 1, [0, 2], [], least=4), case_of(rng, 4, 1, [0, 2], [], least=3)]
    cases += [case_of(rng, 2, 0, [1], [], least=2), case_of(rng, 3, 2, [], [1]), case_of(rng, 4, 1, [2, 0], [0])]
    for _ in range(5):
        size, spares = rng.integer(3, 6), rng.integer(0, 3)
        dead = sorted({rng.integer(0, size - 1) for _ in range(rng.integer(1, 3))})
        cases.append(case_of(rng, size, spares, dead, [0] if spares and rng.integer(0, 1) else []))
    return [{"cases": cases}]


def case_of(rng: Draw, size: int, num_spares: int, dead: list[int], dead_spares: list[int], least: int = 1) -> list:
    """Names are in no order, as of machines that came when they came. How often each was started again says nothing."""
    numbers = sorted(range(10, 10 + size + num_spares), key=lambda _: rng.integer(0, 10**6))
    names = [f"node{number}" for number in numbers]
    ranks, spares = names[:size], names[size:]
    gone = [ranks[rank] for rank in dead] + [spares[place] for place in dead_spares]
    generation = rng.integer(2, 7)
    restarts = {name: rng.one_of(0, 1, generation + 3) for name in names}
    return [ranks, spares, gone, least, generation, restarts]


def act(submitted: Callable, inputs: dict[str, Any], trial: Trial) -> list[Any]:
    def asked(*args: Any) -> Any:
        answer = submitted(*args[:-1], dict(args[-1]))
        if answer is None:
            return STOPPED
        return list(answer) if isinstance(answer, list | tuple) and len(answer) == 3 else [answer] * 3

    return answers.act(asked, inputs, trial, TASK)


# -- the rule, and what people do instead ----------------------------------------------------------------------------
def grouped(
    ranks: Names,
    spares: Names,
    dead: Names,
    least: int,
    generation: int,
    restarts: dict[str, int],
    *,
    places: Callable[[Names, Names, Names], list[str]] | None = None,
    awaited: Callable[[list[str], Names, Names], list[str]] = lambda now, ranks, dead: now,
    prefix: Callable[[int, int], str] = lambda generation, restarts: f"{generation + 1}/",
) -> Group:
    """places: the new ranks, from the old ones, the living spares and the dead. awaited: who has to say that it is
    there, from the new ranks, the old ones and the dead. prefix: of a key, from the generation and the restarts."""
    living = [name for name in spares if name not in dead]
    now = (places or in_their_places)(ranks, living, dead)
    if len(now) < least:
        return STOPPED
    keys = [prefix(generation, restarts[name]) + name for name in awaited(now, ranks, dead)]
    return [now, [name for name in living if name not in now], keys]


def in_their_places(ranks: Names, living: Names, dead: Names) -> list[str]:
    left = iter(living)
    filled = [next(left, None) if name in dead else name for name in ranks]
    return [name for name in filled if name is not None]


def at_the_end(ranks: Names, living: Names, dead: Names) -> list[str]:
    survivors = [name for name in ranks if name not in dead]
    return survivors + list(living[: len(ranks) - len(survivors)])


def way(**how: Any) -> Callable[..., Group]:
    return lambda *case: grouped(*case, **how)


WRONG: dict[str, list[Callable[..., Group]]] = {
    "dead_awaited": [
        way(awaited=lambda now, ranks, dead: list(ranks)),
        way(awaited=lambda now, ranks, dead: now + [name for name in ranks if name in dead]),
        way(awaited=lambda now, ranks, dead: [*ranks, *(name for name in now if name not in ranks)]),
    ],
    "restart_count_as_key": [
        way(prefix=lambda generation, restarts: f"{restarts}/"),
        way(prefix=lambda generation, restarts: f"{restarts + 1}/"),
    ],
    "old_keys": [
        way(prefix=lambda generation, restarts: f"{generation}/"),
        way(prefix=lambda generation, restarts: ""),
    ],
    "places_not_kept": [
        way(places=at_the_end),
        way(places=lambda *given: sorted(in_their_places(*given))),
        way(places=lambda *given: sorted(at_the_end(*given))),
    ],
}
COLUMNS = (Words(en="ranks", zh=" ranks "), Words(en="spares", zh=" spares "), Words(en="keys", zh=" keys "))


def judge(world: World) -> Iterator[Finding]:
    """A mistake is known if it explains all three, so that keys alone do not speak for the ranks."""
    cases, given = world.inputs[0]["cases"], world.outputs[0]
    known = {key for key, several in WRONG.items() if any(answers.explains(one, cases, given) for one in several)}
    for column, what in enumerate(COLUMNS):
        own = [one[column] for one in given]
        wrong = {key: [_of(column, one) for one in several] for key, several in WRONG.items() if key in known}
        yield from answers.judge_answers(TASK, what, cases, own, _of(column, grouped), wrong)


def _of(column: int, one: Callable[..., Group]) -> Callable[..., Any]:
    return lambda *case: one(*case)[column]


TASK = Task(
    key="12.regroup",
    signature="regroup(ranks, spares, dead, min_ranks, generation, restarts)",
    make=make,
    act=act,
    judge=judge,
    keeps=("ranks", "spares", "dead"),
    hints=LAB.hints(*WRONG),
    world_sizes=(1,),
    unit="device",
)
