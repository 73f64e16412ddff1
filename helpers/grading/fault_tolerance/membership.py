"""Judges 12.verdict and 12.regroup: which ranks of a job have failed, and which node gets which rank afterwards.

12.verdict calls every rank alive, late, hung or dead, by its heartbeats, which every rank sends to a watcher.
12.regroup replaces dead nodes by spares, and lists the keys of a store under which the members of the next group
report. A generation is the number of a group: it grows by one whenever nodes are replaced. The learner's function is
called in one process with drawn cases. The right functions have options that turn them into wrong ones.

How to read it. A case is the list of arguments of one call of the learner's function; `make_…` draws the cases of a
task with `rng`, of which `rng.integer(3, 5)` is 3, 4 or 5. `question_task` builds the Task, which calls the learner's
function with each case and compares the answers with those of the right function. A mistake is a wrong solution that
learners often write. Each table `WRONG_…` maps the key of its hint in hints.yaml to functions that contain the mistake.
`Words` is a text in English and Chinese.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from helpers.grading.cases import CaseGenerator
from helpers.grading.fault_tolerance import LAB
from helpers.grading.fault_tolerance.resuming import explained, first_difference
from helpers.grading.kit import answers
from helpers.grading.kit.comparisons import COMMA
from helpers.grading.task import RankContext
from helpers.learner.words import Words

words = LAB.messages

# -- 12.verdict ------------------------------------------------------------------------------------------------------
# Seconds beyond which a rank is late or dead (without a beat), and hung (in the same step).
LIMITS = {"late": 3, "dead": 10, "hung": 20}
Beat = tuple[int, int, float, float]  # rank, step, when it was sent (rank's clock), when it arrived (watcher's clock)
Status = tuple[float, int, float]  # of a rank: seconds since its last beat, its step, seconds since that step began
# The values of Status that jobs are made of. Most ranks are in step 7. A rank that waits for others stays in it for
# long, and a hung one stays in step 6.
HEALTHY, WAITING, LATE, DEAD, HUNG = (1, 7, 2), (1, 7, 30), (5, 7, 5), (15, 7, 40), (1, 6, 31)
LATE_AND_BEHIND, DEAD_AND_BEHIND = (5, 6, 31), (15, 6, 40)
# The first beat of this rank came 15 s ago. Its step counts from the start of the job, 25 s ago, so it is hung.
FIRST_STEP = (1, 0, 15)
AT_LATE, AT_DEAD, AT_HUNG = (3, 7, 5), (10, 7, 12), (1, 7, 20)  # exactly at a limit, which is not beyond it
PAST_LATE, PAST_DEAD, PAST_HUNG = (4, 7, 6), (11, 7, 13), (1, 7, 21)  # a second beyond it
NEVER_HEARD = None  # a rank that has not sent a beat yet
OWN_CLOCK, WATCHERS_CLOCK = 2, 3  # indices of the two times in a Beat


def make_verdict(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Small jobs, then random mixtures, whose ranks are far from every limit, exactly at one, or a second beyond it.

    A job is a list with the status of each rank. The last of the small ones is in its first step, and its first beats
    came some seconds after the start.
    """
    jobs = [[HEALTHY, HEALTHY], [HEALTHY, LATE], [WAITING, HUNG], [DEAD, WAITING], [WAITING, WAITING]]
    jobs += [[WAITING, DEAD_AND_BEHIND, WAITING], [HUNG, WAITING, WAITING, LATE]]
    jobs += [[NEVER_HEARD, HEALTHY], [HEALTHY, NEVER_HEARD], [WAITING, DEAD, HUNG]]
    jobs += [[WAITING, DEAD], [WAITING, LATE_AND_BEHIND], [AT_LATE, WAITING], [WAITING, AT_DEAD], [AT_HUNG, WAITING]]
    jobs += [[PAST_LATE, WAITING], [WAITING, PAST_DEAD], [PAST_HUNG, PAST_HUNG]]
    jobs.append([FIRST_STEP] * 2)
    for other in (NEVER_HEARD, DEAD) * 8:
        jobs.append([rng.one_of(HEALTHY, WAITING, LATE, HUNG, other) for _ in range(rng.integer(2, 5))])
    # Seconds since the start of each job. A rank that was never heard is alive after 1 s, late after 5 s, and dead
    # later.
    ages = [(1, 5, 15, 45)[number % 4] if NEVER_HEARD in job else 60 for number, job in enumerate(jobs)]
    ages[jobs.index([FIRST_STEP] * 2)] = 25  # its first beats came 10 s after the start
    return [{"cases": [draw_beats(rng, job, age) for job, age in zip(jobs, ages, strict=True)]}]


def draw_beats(rng: CaseGenerator, job: list[Status | None], age: float) -> list[Any]:
    """A case whose beats give the ranks of a job this status: beats, number of ranks, start, now, and the limits.

    The job began `age` seconds ago. A rank's own clock may be hours off.
    """
    now = rng.integer(60, 99)
    started = now - age
    beats: list[Beat] = []
    for rank, status in enumerate(job):
        if status is NEVER_HEARD:
            continue
        silence, step, seconds_in_step = status
        # When the last beat arrived, and the first one of the present step.
        last, since, clock_offset = now - silence, max(started, now - seconds_in_step), rng.integer(-9000, 9000)
        # Two seconds earlier there was a beat of the step before. Jobs of two ranks do without it, so that they are
        # short enough to be read in a message.
        arrivals = [(since - 2, step - 1)] if len(job) > 2 else []
        arrivals += [(since, step), (last, step)] if last > since else [(since, step)]
        beats += [(rank, step, at + clock_offset, at) for at, step in arrivals if started <= at]
    return [sorted(beats, key=lambda beat: beat[WATCHERS_CLOCK]), len(job), started, now, LIMITS]


def statuses(
    beats: list[Beat],
    ranks: int,
    started: float,
    now: float,
    clock: int = WATCHERS_CLOCK,
    never: Status | None = None,
    at_start: int = 0,
) -> list[Status]:
    """The status of each rank, from the beats.

    clock: the index in a Beat of the time that is used; OWN_CLOCK, the rank's own, is a mistake. never: the status of a
    rank that was never heard; None (which is right) to count its silence and its step from the start. at_start: the
    step in which every rank is at the start.
    """
    # Of each rank: when its last beat was, its step, and when the first beat of this step was.
    last, step, since = [started] * ranks, [at_start] * ranks, [started] * ranks
    for beat in beats:
        rank, now_in_step, at = beat[0], beat[1], beat[clock]
        last[rank] = at
        if now_in_step > step[rank]:
            step[rank], since[rank] = now_in_step, at
    found = [(now - last[rank], step[rank], now - since[rank]) for rank in range(ranks)]
    heard = {beat[0] for beat in beats}
    return [one if never is None or rank in heard else never for rank, one in enumerate(found)]


def verdicts(
    *,
    clocks: tuple[int, int] = (WATCHERS_CLOCK, WATCHERS_CLOCK),
    may_wait_for: Sequence[str] = ("dead", "behind"),
    can_hang: bool = True,
    is_beyond: Callable[[float, float], bool] = operator.gt,
    hung_first: bool = False,
    **of_status: Any,
) -> Callable[..., list[str]]:
    """The right function, or with other arguments a wrong one.

    clocks: the clock (see `statuses`) for silence, and that for time in a step. may_wait_for: a rank that stays in its
    step may be waiting, and is then not hung, while there is a "dead" rank, one that is dead and has a smaller number
    ("dead before"), one in a smaller step ("behind"), or such a one that is neither late nor dead ("behind in time").
    can_hang: False if no rank is ever called hung. is_beyond: compares seconds with a limit. hung_first: a rank may be
    hung that is also late or dead. of_status: never and at_start of `statuses`; with at_start=-1 a rank
    enters step 0 at its first beat.
    """

    def verdict(beats: list[Beat], ranks: int, started: float, now: float, limits: dict[str, float]) -> list[str]:
        """The verdict on each rank. `limits` is LIMITS; the arguments are those of a case."""
        silent, in_step = (statuses(beats, ranks, started, now, clock, **of_status) for clock in clocks)
        silences, steps = [one[0] for one in silent], [one[1] for one in in_step]
        dead, late = ([is_beyond(silence, limits[name]) for silence in silences] for name in ("dead", "late"))
        steps_in_time = [step for step, is_late in zip(steps, late, strict=True) if not is_late]
        names = []
        for rank, (_, step, seconds) in enumerate(in_step):
            waits_for = {
                "dead": any(dead),
                "dead before": any(dead[:rank]),
                "behind": step > min(steps),
                "behind in time": step > min(steps_in_time, default=step),
            }
            is_hung = can_hang and is_beyond(seconds, limits["hung"]) and not any(map(waits_for.get, may_wait_for))
            silent_name = "dead" if dead[rank] else "late" if late[rank] else ""
            names.append("hung" if is_hung and (hung_first or not silent_name) else silent_name or "alive")
        return names

    return verdict


WRONG_VERDICTS: dict[str, list[Callable[..., list[str]]]] = {
    "clocks_compared": [verdicts(clocks=(OWN_CLOCK, clock)) for clock in (OWN_CLOCK, WATCHERS_CLOCK)],
    "waiting_called_hung": [verdicts(may_wait_for=kinds) for kinds in ((), ("dead",), ("behind",))],
    "steps_ignored": [verdicts(can_hang=False)],  # so it is, too, if the last beat of a step counts and not the first
    "late_not_waited_for": [verdicts(may_wait_for=("dead", "behind in time"))],
    "later_dead_missed": [verdicts(may_wait_for=("dead before", "behind"))],
    "limit_included": [verdicts(is_beyond=operator.ge)],
    "first_step_from_beat": [verdicts(at_start=-1)],
    "hung_first": [verdicts(hung_first=True)],
    # A rank that was never heard counts as healthy (silent for 0 s) or as dead (for 99 s), whatever the time. Its step
    # 99 is ahead of all others, so that it is not taken for one that is behind.
    "never_heard_forgotten": [
        verdicts(never=status, at_start=step) for status in ((0.0, 99, 0.0), (99.0, 99, 99.0)) for step in (0, -1)
    ],
}


def verdict_rule(case: list[Any], got: Any) -> Words:
    """What the watcher knows of the first rank whose verdict is wrong, and for whom this rank may wait."""
    beats, ranks, started, now, limits = case
    found = statuses(beats, ranks, started, now)
    rank = first_difference(verdicts()(*case), got)
    silence, step, seconds = found[rank]
    steps = [one[1] for one in found]
    dead = [str(one) for one, status in enumerate(found) if status[0] > limits["dead"]]
    values = {"rank": rank, "silence": silence, "step": step, "seconds": seconds, "limits": limits}
    values |= {"smallest": min(steps), "behind": steps.index(min(steps)), "dead": COMMA.join(dead)}
    return words["verdict_rule"].format(**values) + words["dead_ranks" if dead else "no_rank_is_dead"].format(**values)


# The arguments of question_task: key, signature, how a sentence names the answer, right function, wrong functions.
VERDICT = answers.question_task(
    "12.verdict",
    "verdict(beats, ranks, started, now, limits)",
    words["verdicts"],
    verdicts(),
    WRONG_VERDICTS,
    make_inputs=make_verdict,
)
VERDICT = explained(VERDICT, verdict_rule)

# -- 12.regroup ------------------------------------------------------------------------------------------------------
NodeNames = Sequence[str]
# The names of the nodes by rank, the names of the spares, and the keys; three times None if there are too few nodes.
NextGroup = list[Any]


def make_regroup(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Groups with and without spares, with dead spares, too few nodes and just enough; then random ones.

    Each is (number of ranks, number of spares, ranks that are dead, spares that are dead, nodes that are needed).
    """
    groups = [(3, 1, [1], [], 1), (3, 0, [0], [], 2), (4, 2, [1, 2], [], 3), (5, 3, [0, 3], [0, 1], 2)]
    groups += [(4, 1, [0, 2], [], 4), (4, 1, [0, 2], [], 3), (2, 0, [1], [], 2)]
    groups += [(3, 2, [], [1], 1), (4, 1, [2, 0], [0], 1)]
    for num_spares in (0, 1, 2, 3, 3):
        size = rng.integer(3, 6)
        dead = sorted({rng.integer(0, size - 1) for _ in range(rng.integer(1, 3))})
        groups.append((size, num_spares, dead, list(range(rng.integer(0, num_spares))), 1))
    return [{"cases": [draw_nodes(rng, *group) for group in groups]}]


def draw_nodes(
    rng: CaseGenerator, size: int, num_spares: int, dead: list[int], dead_spares: list[int], needed: int
) -> list[Any]:
    """A case of so many ranks and spares: nodes by rank, spares, dead nodes, nodes needed, generation, and restarts.

    The names are in no order. How often each node was restarted is part of the case and must not matter.
    """
    names = [f"node{10 + i}" for i in torch.randperm(size + num_spares, generator=rng).tolist()]
    ranks, spares, generation = names[:size], names[size:], rng.integer(2, 7)
    dead_names = [ranks[rank] for rank in dead] + [spares[i] for i in dead_spares]
    # generation + 3: so that no number of restarts is this generation or the next one.
    return [ranks, spares, dead_names, needed, generation, {name: rng.one_of(0, 1, generation + 3) for name in names}]


def run_regroup(submitted: Callable, inputs: dict[str, Any], context: RankContext) -> list[Any]:
    """The learner's answer to each case as three values. An answer of another form is repeated three times."""

    def three_values(*args: Any) -> Any:
        """The learner's answer as a list of three values."""
        answer = submitted(*args)
        return list(answer) if isinstance(answer, list | tuple) and len(answer) == 3 else [answer] * 3

    return answers.run_questions(three_values, inputs, context, REGROUP)  # the Task, which an error names


def survivors_of(names: NodeNames, dead: NodeNames) -> list[str]:
    """The names of those that are not dead."""
    return [name for name in names if name not in dead]


def replaced_in_place(ranks: NodeNames, living: NodeNames, dead: NodeNames) -> list[str]:
    """Each dead node's rank goes to the next living spare; without one, later nodes move up."""
    spares = iter(living)
    replaced = [next(spares, "") if name in dead else name for name in ranks]  # "": no spare is left
    return [name for name in replaced if name]


def last_fills_gap(ranks: NodeNames, living: NodeNames, dead: NodeNames) -> list[str]:
    """The mistake: without a spare, the last node takes the empty place, and the others stay."""
    spares, places = iter(living), list(ranks)
    for name in ranks:
        if name in dead:
            place = places.index(name)
            places[place] = next(spares, places[-1])
            if places[place] == places[-1]:
                places.pop()
    return places


def removed_in_loop(spares: NodeNames, dead: NodeNames) -> list[str]:
    """The mistake: dead spares are removed from the list that the loop goes through, which skips the next one."""
    spares = list(spares)
    for name in spares:
        if name in dead:
            spares.remove(name)
    return spares


def appended_at_end(ranks: NodeNames, living: NodeNames, dead: NodeNames) -> list[str]:
    """The mistake: survivors move up, and the spares come behind them."""
    survivors = survivors_of(ranks, dead)
    return [*survivors, *living[: len(ranks) - len(survivors)]]


def regrouping(
    *,
    assign: Callable[[NodeNames, NodeNames, NodeNames], list[str]] = replaced_in_place,
    awaited: Callable[[NodeNames, NodeNames], NodeNames] = lambda now, before: now,
    prefix: str = "{new}/",
    living_spares: Callable[[NodeNames, NodeNames], NodeNames] = survivors_of,
    counted: Callable[[NodeNames, NodeNames, NodeNames], NodeNames] | None = None,
    is_enough: Callable[[int, int], bool] = operator.ge,
) -> Callable[..., NextGroup]:
    """The right function, or with other arguments a wrong one.

    assign: from the nodes by rank, the living spares and the dead nodes to the nodes by rank in the next group.
    awaited: from the nodes of the next group and of the old one to those whose keys are awaited. prefix: of a key; it
    may contain the {new} or the {old} generation, or the {restarts} of the node, or one {more} than these.
    living_spares: from the spares and the dead nodes to the spares that live. counted: like `assign`, the nodes whose
    number decides whether the job goes on; None for those of the next group. is_enough: compares it with the number
    that is needed.
    """

    def regroup(
        ranks: NodeNames, spares: NodeNames, dead: NodeNames, needed: int, generation: int, restarts: dict[str, int]
    ) -> NextGroup:
        """The next group, from the items of a case (see `draw_nodes`)."""
        living = living_spares(spares, dead)
        now = assign(ranks, living, dead)
        if not is_enough(len((counted or assign)(ranks, living, dead)), needed):
            return [None] * 3
        keys = []
        for name in awaited(now, ranks):
            numbers = {"old": generation, "new": generation + 1, "restarts": restarts[name], "more": restarts[name] + 1}
            keys.append(prefix.format(**numbers) + name)
        return [now, [name for name in living if name not in now], keys]

    return regroup


WRONG_GROUPS: dict[str, list[Callable[..., NextGroup]]] = {
    "dead_awaited": [
        regrouping(awaited=lambda now, before: before),
        regrouping(awaited=lambda now, before: [*now, *(name for name in before if name not in now)]),
        regrouping(awaited=lambda now, before: [*before, *(name for name in now if name not in before)]),
    ],
    "restart_count_as_key": [regrouping(prefix="{restarts}/"), regrouping(prefix="{more}/")],
    "old_keys": [regrouping(prefix="{old}/"), regrouping(prefix="")],
    "places_not_kept": [
        regrouping(assign=appended_at_end),
        regrouping(assign=lambda *nodes: sorted(replaced_in_place(*nodes))),
        regrouping(assign=lambda *nodes: sorted(appended_at_end(*nodes))),
    ],
    "last_fills_gap": [regrouping(assign=last_fills_gap)],
    "survivors_counted": [regrouping(counted=lambda ranks, _, dead: survivors_of(ranks, dead))],
    "min_ranks_excluded": [regrouping(is_enough=operator.gt)],
    "dead_spare_used": [
        regrouping(living_spares=lambda spares, dead: spares),
        regrouping(living_spares=removed_in_loop),
    ],
}


def regroup_rule(case: list[Any], _: Any) -> Words:
    """Who replaces whom, and whether there are enough ranks."""
    ranks, spares, dead, needed, generation, _ = case
    living = survivors_of(spares, dead)
    by_turn = iter(living)
    replaced = [(name, next(by_turn, "")) for name in ranks if name in dead]
    parts = [words["replaced" if by else "not_replaced"].format(name, ranks.index(name), by) for name, by in replaced]
    count = len(ranks) - sum(not by for _, by in replaced)
    after = words["enough" if count >= needed else "too_few"].format(generation + 1)
    who = words["dead_replaced"].format(COMMA.join(parts)) if parts else words["no_rank_died"]
    return words["regroup_rule"].format(living=living, who=who, count=count, needed=needed, after=after)


REGROUP = answers.question_task(
    "12.regroup",
    "regroup(ranks, spares, dead, min_ranks, generation, restarts)",  # min_ranks is `needed` above
    [Words(en=f"the value of {name}", zh=f" {name}") for name in ("ranks", "spares", "keys")],
    regrouping(),
    WRONG_GROUPS,
    make_inputs=make_regroup,
    run_submission=run_regroup,
    must_not_change=("ranks", "spares", "dead"),
)
REGROUP = explained(REGROUP, regroup_rule, regroup_rule, regroup_rule)
