"""Judges 12.verdict and 12.regroup: which ranks of a job have failed, and which node gets which rank afterwards.

12.verdict calls every rank alive, late, hung or dead, by its heartbeats, which every rank sends to a watcher.
12.regroup replaces dead nodes by spares, and lists the keys of a store under which the members of the next group
report. A generation is the number of a group: it grows by one whenever nodes are replaced. The learner's function is
called in one process with drawn cases.

How to read it. A case is the list of arguments of one call of the learner's function; `make_…` draws the cases of a
task with `rng`, of which `rng.integer(3, 5)` is 3, 4 or 5. `question_task` builds the Task, which calls the learner's
function with each case and compares the answers with those of the right function. Below the sentence about a wrong
answer stands a rule, which says how the right one comes about. `Words` is a text in English and Chinese.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from helpers.grading.fault_tolerance import LAB
from helpers.grading.kit import answers
from helpers.grading.kit.comparisons import COMMA
from helpers.grading.task import NumberGenerator, RankContext
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
TWO_BEHIND, FAR_BEHIND = (1, 5, 32), (1, 3, 32)  # hung, and more than one step behind the others
# With these limits a rank is hung before it is dead, so a rank that was never heard for 25 s is late, and others wait
# for it in step 0.
PATIENT_LIMITS = {"late": 3, "dead": 30, "hung": 20}


def make_verdict(rng: NumberGenerator, world_size: int) -> list[dict[str, Any]]:
    """Small jobs, then random mixtures, whose ranks are far from every limit, exactly at one, or a second beyond it.

    A job is a list with the status of each rank. The last of the small ones is in its first step, and its first beats
    came some seconds after the start.
    """
    jobs = [[HEALTHY, HEALTHY], [HEALTHY, LATE], [WAITING, HUNG], [DEAD, WAITING], [WAITING, WAITING]]
    jobs += [[WAITING, DEAD_AND_BEHIND, WAITING], [HUNG, WAITING, WAITING, LATE]]
    jobs += [[NEVER_HEARD, HEALTHY], [HEALTHY, NEVER_HEARD], [WAITING, DEAD, HUNG]]
    jobs += [[WAITING, DEAD], [WAITING, LATE_AND_BEHIND], [AT_LATE, WAITING], [WAITING, AT_DEAD], [AT_HUNG, WAITING]]
    jobs += [[PAST_LATE, WAITING], [WAITING, PAST_DEAD], [PAST_HUNG, PAST_HUNG]]
    jobs += [[WAITING, HUNG, TWO_BEHIND], [FAR_BEHIND, WAITING], [PAST_HUNG], [NEVER_HEARD] * 2]
    jobs.append([FIRST_STEP] * 2)
    small, patient_job = len(jobs), [NEVER_HEARD, PAST_HUNG]
    for other in (NEVER_HEARD, DEAD) * 8:
        jobs.append([rng.one_of(HEALTHY, WAITING, LATE, HUNG, other) for _ in range(rng.integer(2, 5))])
    # Seconds since the start of each job. A rank that was never heard is alive after 1 s, late after 5 s, and dead
    # later.
    ages = [(1, 5, 15, 45)[number % 4] if NEVER_HEARD in job else 60 for number, job in enumerate(jobs)]
    ages[jobs.index([FIRST_STEP] * 2)] = 25  # its first beats came 10 s after the start
    # Every second random job runs on a slow cluster, where all limits and all times are three times as long.
    scales = [3 if number >= small and number % 2 else 1 for number in range(len(jobs))]
    cases = [draw_beats(rng, *of_job) for of_job in zip(jobs, ages, scales, strict=True)]
    cases.insert(small, [*draw_beats(rng, patient_job, 25)[:-1], PATIENT_LIMITS])
    return [{"cases": cases}]


def draw_beats(rng: NumberGenerator, job: list[Status | None], age: float, scale: int = 1) -> list[Any]:
    """A case whose beats give the ranks of a job this status: beats, number of ranks, start, now, and the limits.

    The job began `age` seconds ago. A rank's own clock may be hours off. scale: multiplies all times and limits.
    """
    job = [status and (scale * status[0], status[1], scale * status[2]) for status in job]
    now = scale * rng.integer(60, 99)
    started = now - scale * age
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
    return [
        sorted(beats, key=lambda beat: beat[3]),
        len(job),
        started,
        now,
        {name: scale * limit for name, limit in LIMITS.items()},
    ]


def statuses(beats: list[Beat], ranks: int, started: float, now: float) -> list[Status]:
    """The status of each rank, from the first items of a case. Each counts as heard when the job started, in step 0."""
    # Of each rank: when its last beat arrived, its step, and when the first beat of this step arrived.
    last, step, since = [started] * ranks, [0] * ranks, [started] * ranks
    for rank, step_of_beat, _, arrived in beats:
        last[rank] = arrived
        if step_of_beat > step[rank]:
            step[rank], since[rank] = step_of_beat, arrived
    return [(now - last[rank], step[rank], now - since[rank]) for rank in range(ranks)]


def verdicts(*case: Any) -> list[str]:
    """The right answer to a case: the first rule that holds decides about each rank."""
    found, limits = statuses(*case[:-1]), case[-1]
    is_one_dead = any(silence > limits["dead"] for silence, _, _ in found)
    smallest = min(step for _, step, _ in found)

    def verdict(silence: float, step: int, seconds: float) -> str:
        if silence > limits["late"]:
            return "dead" if silence > limits["dead"] else "late"
        waits = is_one_dead or step > smallest
        return "hung" if seconds > limits["hung"] and not waits else "alive"

    return [verdict(*status) for status in found]


def verdict_rule(case: list[Any], got: Any) -> Words:
    """What the watcher knows of the first rank whose verdict is wrong, and for whom this rank may wait."""
    found, limits = statuses(*case[:-1]), case[-1]
    rank = answers.first_difference(verdicts(*case), got)
    silence, step, seconds = found[rank]
    steps = [one[1] for one in found]
    dead = [str(one) for one, status in enumerate(found) if status[0] > limits["dead"]]
    values = {"rank": rank, "silence": silence, "step": step, "seconds": seconds, "limits": limits}
    values |= {"smallest": min(steps), "behind": steps.index(min(steps)), "dead": COMMA.join(dead)}
    return words["verdict_rule"].format(**values) + words["dead_ranks" if dead else "no_rank_is_dead"].format(**values)


VERDICT = answers.question_task(
    "12.verdict",
    "verdict(beats, ranks, started, now, limits)",
    words["verdicts"],
    verdicts,
    make_inputs=make_verdict,
    rules=[verdict_rule],
    needs_torch=False,
)

# -- 12.regroup ------------------------------------------------------------------------------------------------------
NodeNames = Sequence[str]
# The names of the nodes by rank, the names of the spares, and the keys; three times None if there are too few nodes.
NextGroup = list[Any]


def make_regroup(rng: NumberGenerator, world_size: int) -> list[dict[str, Any]]:
    """Groups with and without spares, with dead spares, too few nodes and just enough; then random ones.

    The dead nodes come in any order, which is not that of the ranks.

    Each is (number of ranks, number of spares, ranks that are dead, spares that are dead, nodes that are needed).
    """
    groups = [(3, 1, [1], [], 1), (3, 0, [0], [], 2), (4, 2, [2, 1], [], 3), (5, 3, [0, 3], [0, 1], 2)]
    groups += [(4, 1, [0, 2], [], 4), (4, 1, [0, 2], [], 3), (2, 0, [1], [], 2)]
    groups += [(3, 2, [], [1], 1), (4, 1, [2, 0], [0], 1), (4, 8, [3, 1, 0, 2], [1], 4)]  # in the last all ranks died
    for num_spares in (0, 1, 2, 3, 3):
        size = rng.integer(3, 6)
        dead = rng.permutation(size)[: rng.integer(1, 3)]
        groups.append((size, num_spares, dead, list(range(rng.integer(0, num_spares))), 1))
    return [{"cases": [draw_nodes(rng, *group) for group in groups]}]


def draw_nodes(
    rng: NumberGenerator, size: int, num_spares: int, dead: list[int], dead_spares: list[int], needed: int
) -> list[Any]:
    """A case of `size` ranks: nodes by rank, spares, dead nodes, nodes needed, generation, and restarts.

    The names are in no order. How often each node was restarted is part of the case and must not matter.
    """
    names = [f"node{10 + i}" for i in rng.permutation(size + num_spares)]
    ranks, spares, generation = names[:size], names[size:], rng.integer(2, 7)
    spares[-3:] = sorted(spares[-3:], reverse=True)  # so that those that are left are not in the order of their names
    dead_names = [ranks[rank] for rank in dead] + [spares[i] for i in dead_spares]
    # generation + 3: so that no number of restarts is this generation or the next one.
    return [ranks, spares, dead_names, needed, generation, {name: rng.one_of(0, 1, generation + 3) for name in names}]


def run_regroup(submitted: Callable, inputs: dict[str, Any], context: RankContext) -> list[Any]:
    """The learner's answer to each case as three values. An answer of another form is repeated three times."""

    def three_values(*args: Any) -> Any:
        """The learner's answer as a list of three values; three times None is not the None that is asked for."""
        answer = submitted(*args)
        is_three = isinstance(answer, list | tuple) and len(answer) == 3 and any(part is not None for part in answer)
        return list(answer) if is_three else [answer] * 3

    return answers.run_questions(three_values, inputs, context, REGROUP)  # the Task, which an error names


def regroup(ranks: NodeNames, spares: NodeNames, dead: NodeNames, needed: int, generation: int, _: Any) -> NextGroup:
    """The right answer to a case. A dead node's rank goes to the next living spare, or else later nodes move up."""
    living = [name for name in spares if name not in dead]
    now = []
    for name in ranks:
        if name not in dead:
            now.append(name)
        elif living:
            now.append(living.pop(0))
    return [now, living, [f"{generation + 1}/{name}" for name in now]] if len(now) >= needed else [None] * 3


def regroup_rule(case: list[Any], _: Any) -> Words:
    """Who replaces whom, and whether there are enough ranks."""
    ranks, spares, dead, needed, generation, _ = case
    living = [name for name in spares if name not in dead]
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
    regroup,
    make_inputs=make_regroup,
    run_submission=run_regroup,
    rules=[regroup_rule] * 3,
    must_not_change=("ranks", "spares", "dead"),
    needs_torch=False,
)
