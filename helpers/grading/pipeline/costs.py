"""Judges what a schedule or a split of the model costs: 06.bubble, 06.under_way and 06.cut.

06.bubble asks for the share of a step in which ranks idle, and for the micro-batches that they hold. 06.under_way asks
how many micro-batches hide the round trip of one. 06.cut divides layers into stages so that the slowest stage is as
fast as possible; the judge tries every cut. The docstring of schedule.py says what a case, an action and a table
`WRONG_…` are, and what the letters p and m stand for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate, combinations, pairwise, zip_longest
from operator import itemgetter
from statistics import fmean
from typing import Any

import torch

from helpers import schedules
from helpers.grading.cases import CaseGenerator
from helpers.grading.kit import answers
from helpers.grading.kit.answers import Answer, shortened, simplified
from helpers.grading.kit.comparisons import expect
from helpers.grading.pipeline import LAB
from helpers.grading.pipeline.schedule import (
    ActionLists,
    Actions,
    Seconds,
    SimulatedStep,
    action_lists,
    draw_schedule,
    explained,
    simulate,
)
from helpers.grading.task import JudgedWorld, Judgement, Task
from helpers.learner.words import Words
from helpers.schedules import Action

words = LAB.messages
MAX_SHOWN_ACTIONS = 8  # of a schedule, in a sentence


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
        if any(max(counts_in_flight(row)) > forwards_first(row) for row in actions):
            return actions


def counts_in_flight(actions: Actions) -> list[int]:
    """How many micro-batches went forward on this rank and did not come back yet, after each action."""
    return list(accumulate(1 if "F" in action else -1 for action in actions))


def forwards_first(actions: Actions) -> int:
    """The number of forwards before the first backward."""
    return next(i for i, action in enumerate(actions) if "B" in action)


def bubble(actions: ActionLists, forward: Seconds, backward: Seconds, *, waits_for: str = "FB") -> float:
    """The share of the step in which a rank idles, as the mean over all ranks."""
    step = simulate(actions, forward, backward, waits_for=waits_for)
    return 1 - sum(step.busy) / len(actions) / step.seconds


def in_flight(actions: ActionLists, forward: Seconds, backward: Seconds) -> list[int]:
    """The most micro-batches that each rank holds at once; the seconds do not matter."""
    return [max(counts_in_flight(row)) for row in actions]


def from_step(measure: Callable[[SimulatedStep], float]) -> Answer:
    """A wrong function that simulates the right step, and then measures something else than the bubble."""
    return lambda *case: measure(simulate(*case))


def idle_share_of(choose: Callable[[list[float]], float]) -> Answer:
    """The idle share of one rank, whose busy seconds `choose` takes from those of all ranks."""
    return from_step(lambda step: 1 - choose(step.busy) / step.seconds)


def mean_of_own_spans(step: SimulatedStep, *, begins_at_own_start: bool) -> float:
    """The mean idle share if each rank is measured to its own last end, from its own first start or from 0."""
    spans = [(start if begins_at_own_start else 0.0, end) for start, end in step.spans]
    return fmean(1 - busy / (end - start) for busy, (start, end) in zip(step.busy, spans, strict=True))


# The wrong functions for each of the two values that 06.bubble returns: the bubble, and the micro-batches held.
# len(actions) is the number of stages, and len(actions[0]) // 2 that of the micro-batches: each goes forward and back.
WRONG_FRACTIONS: dict[str, list[Answer]] = {
    "over_the_ideal": [from_step(lambda step: step.seconds / fmean(step.busy) - 1)],
    "one_rank": [idle_share_of(choose) for choose in (itemgetter(0), itemgetter(-1), max, min)],
    "own_span": [from_step(partial(mean_of_own_spans, begins_at_own_start=True))],
    "own_end": [
        from_step(partial(mean_of_own_spans, begins_at_own_start=False)),
        from_step(lambda step: 1 - sum(step.busy) / sum(end for _, end in step.spans)),
    ],
    "step_of_last_rank": [from_step(lambda step: 1 - fmean(step.busy) / step.spans[-1][1])],
    "percent": [from_step(lambda step: 100 * (1 - fmean(step.busy) / step.seconds))],
    "sum_over_ranks": [from_step(lambda step: len(step.busy) - sum(step.busy) / step.seconds)],
    "idle_seconds": [
        from_step(lambda step: step.seconds - fmean(step.busy)),
        from_step(lambda step: len(step.busy) * step.seconds - sum(step.busy)),
    ],
    "busy_share": [from_step(lambda step: fmean(step.busy) / step.seconds)],
    "backward_waits_for_nobody": [lambda *case: bubble(*case, waits_for="F")],
    "forward_waits_for_nobody": [lambda *case: bubble(*case, waits_for="B")],
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
    "held_before_first_backward": [lambda actions, *_: list(map(forwards_first, actions))],
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
    yield from answers.judge_several_answers(BUBBLE, words["bubble_and_held"], columns, world)


def bubble_rule(case: list[Any], _: Any) -> Words:
    """When each rank ends in this step, or each action if they are few, and how long the ranks work."""
    actions, step = case[0], simulate(*case)
    ends = [[end for _, end in of_rank] for of_rank in step.times]
    if len(actions) * len(actions[0]) <= MAX_SHOWN_ACTIONS:
        pairs = [pair for row, of_rank in zip(actions, ends, strict=True) for pair in zip(row, of_rank, strict=True)]
    else:
        pairs = [(row[-1], of_rank[-1]) for row, of_rank in zip(actions, ends, strict=True)]
    numbers = {"busy": shown(step.busy), "seconds": shown(step.seconds), "mean": shown(fmean(step.busy))}
    return words["bubble_rule"].format(ends=[f"{action} {shown(end)}" for action, end in pairs], **numbers)


def shown(value: Any) -> str:
    """The number, or each of a list of numbers, as a sentence shows it."""
    return ", ".join(map(shown, value)) if isinstance(value, list) else f"{value:.6g}"


def held_rule(case: list[Any], got: Any) -> Words:
    """Which micro-batches a rank holds when they are most: the first rank whose number is wrong."""
    actions, held = case[0], got[1] if isinstance(got[1], list | tuple) else []
    pairs = zip_longest(in_flight(*case), held)
    rank = next((rank for rank, pair in enumerate(pairs) if not answers.is_same_answer(*pair)), 0) % len(actions)
    counts = counts_in_flight(actions[rank])
    index = counts.index(max(counts))
    done = [Action.parse(action) for action in actions[rank][: index + 1]]
    returned = {action.microbatch for action in done if action.kind == "B"}
    present = [action.microbatch for action in done if action.kind == "F" and action.microbatch not in returned]
    return words["held_rule"].format(rank=rank, action=actions[rank][index], number=index + 1, present=sorted(present))


BUBBLE = Task(
    key="06.bubble",
    signature="bubble(schedule, forward, backward)",
    make_inputs=make_bubble,
    run_submission=answers.run_questions,
    judge=judge_bubble,
    runs_on="process",
    must_not_change=("schedule", "forward", "backward"),
    recognise_failure=lambda failure: ["never_ends"] if failure.kind == "too_long" else [],
    cpu_seconds=2.0,
)
BUBBLE = explained(BUBBLE, bubble_rule, held_rule)


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


def under_way_rule(case: list[int], _: Any) -> Words:
    """How long the round trip of a micro-batch takes, and how long rank 0 works on each."""
    p, forward, backward, message = case
    work, trips = forward + backward, 2 * (p - 1)
    parts = {"computing": p * work, "trips": trips, "message": message, "work": work}
    total = p * work + trips * message
    return words["under_way_rule"].format(**parts, total=total, ratio=shown(total / work))


UNDER_WAY = answers.question_task(
    "06.under_way",
    "num_in_flight(num_stages, forward, backward, message)",
    words["num_micro_batches"],
    num_in_flight,
    WRONG_NUMBERS,
    make_inputs=make_under_way,
)
UNDER_WAY = explained(UNDER_WAY, under_way_rule)


# -- 06.cut ----------------------------------------------------------------------------------------------------------
NUM_MODELS = 5  # cases in which no shortcut finds the best cut
NUM_LAYERS = (9, 12)  # of such a model, at least and at most
Costs = Sequence[float]  # of each layer
Sizes = list[int]  # the number of layers in each stage


def make_cut(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Draws cases (costs, num_stages): some edge cases, and models for which no known shortcut finds the best cut.

    A shortcut is a way to cut without a search for the fastest slowest stage; `shortcuts` has all that are known.
    """
    cases = [[[7, 7, 7, 7], 4], [[3, 1, 2], 1], *draw_edge_cases(rng)]
    num_wanted = len(cases) + NUM_MODELS
    while len(cases) < num_wanted:
        costs = [rng.integer(1, 20) for _ in range(rng.integer(*NUM_LAYERS))]
        num_stages = rng.integer(3, 4)  # with two stages, other goals would find the best cut
        best = best_slowest_stage(costs, num_stages)
        # A search may start with the cost of the largest layer as the limit of a stage, and raise it in steps of 2.
        # It misses every best cost at an odd distance. So cases with an even and with an odd distance alternate.
        has_wanted_parity = (best - max(costs)) % 2 == len(cases) % 2
        if has_wanted_parity and all(slowest_stage(costs, sizes) > best for sizes in shortcuts(costs, num_stages)):
            cases.append([costs, num_stages])
    return [{"cases": cases}]


def draw_edge_cases(rng: CaseGenerator) -> list[list[Any]]:
    """Models in which one layer outweighs all others, some layers cost nothing, or all layers cost nothing."""
    cases = []
    for num_layers in (4, rng.integer(5, 8)):
        small = [rng.integer(1, 3) for _ in range(num_layers - 1)]
        index = rng.integer(0, num_layers - 1)
        cases.append([[*small[:index], sum(small) + rng.integer(1, 9), *small[index:]], 4])
    some_free = [0 if i % 2 else rng.integer(1, 9) for i in range(rng.integer(5, 9))]
    return [*cases, [some_free, 3], [[0] * rng.integer(3, 6), 2]]


def stage_costs(costs: Costs, sizes: Sizes) -> list[float]:
    """What each stage costs."""
    return [sum(costs[start:end]) for start, end in pairwise([0, *accumulate(sizes)])]


def slowest_stage(costs: Costs, sizes: Sizes) -> float:
    """What the most expensive stage costs."""
    return max(stage_costs(costs, sizes))


def all_cuts(costs: Costs, num_stages: int) -> Iterator[Sizes]:
    """Every way to divide the layers into stages of one layer or more."""
    for ends in combinations(range(1, len(costs)), num_stages - 1):
        yield [end - start for start, end in pairwise([0, *ends, len(costs)])]


def best_slowest_stage(costs: Costs, num_stages: int) -> float:
    """What the slowest stage costs in the best of all cuts."""
    return min(slowest_stage(costs, sizes) for sizes in all_cuts(costs, num_stages))


def shortcuts(costs: Costs, num_stages: int) -> Iterator[Sizes]:
    """The cuts that the known shortcuts give."""
    yield equal_counts(costs, num_stages)
    yield from greedy_cuts(costs, num_stages)
    yield from cuts_with_other_goals(costs, num_stages)


def cuts_with_other_goals(costs: Costs, num_stages: int) -> list[Sizes]:
    """A shortcut in two forms: the cut whose cheapest stage costs most, or whose stages differ least."""

    def cheapest(sizes: Sizes) -> float:
        return min(stage_costs(costs, sizes))

    def difference(sizes: Sizes) -> float:
        return slowest_stage(costs, sizes) - cheapest(sizes)

    cuts = list(all_cuts(costs, num_stages))
    return [max(cuts, key=cheapest), min(cuts, key=difference)]


def equal_counts(costs: Costs, num_stages: int) -> Sizes:
    """A shortcut: equally many layers in each stage, and one more in the first ones where there is a rest."""
    each, rest = divmod(len(costs), num_stages)
    return [each + (stage < rest) for stage in range(num_stages)]


def greedy_cuts(costs: Costs, num_stages: int) -> list[Sizes]:
    """A shortcut in two forms: fill one stage after the other up to the mean cost, with or without exceeding it."""
    return [greedy_cut(costs, num_stages, can_exceed=can_exceed) for can_exceed in (True, False)]


def greedy_cut(costs: Costs, num_stages: int, *, can_exceed: bool) -> Sizes:
    """Each stage takes a first layer and then more, up to the mean cost of a stage; the last stage takes the rest.

    can_exceed: a stage takes layers until it has reached the mean; otherwise as long as they stay within the mean.
    """
    # A stage that may not exceed the mean counts the next layer before it takes it. The small number is for rounding,
    # so that layers which cost the mean exactly stay within it.
    limit, num_ahead = (0.0, 0) if can_exceed else (1e-9, 1)
    limit += sum(costs) / num_stages
    sizes, start = [], 0
    for stages_left in range(num_stages - 1, 0, -1):
        end = start + 1
        # Each stage that is left needs a layer.
        while end < len(costs) - stages_left and sum(costs[start : end + num_ahead]) < limit:
            end += 1
        sizes.append(end - start)
        start = end
    return [*sizes, len(costs) - start]


def positions(costs: Costs, num_stages: int) -> Iterator[Sizes]:
    """Where the stages of every cut begin or end, with the two ends of the model or without them."""
    for cut in all_cuts(costs, num_stages):
        ends = [0, *accumulate(cut)]
        yield from (ends[begin:end] for begin in (0, 1) for end in (num_stages, num_stages + 1))


# What each known mistake may return, by the key of its hint.
WRONG_CUTS: dict[str, Callable[[Costs, int], Iterable[Any]]] = {
    "positions_for_sizes": positions,
    "costs_for_sizes": lambda costs, num_stages: [stage_costs(costs, cut) for cut in all_cuts(costs, num_stages)],
    "equal_counts": lambda *case: [equal_counts(*case)],
    "greedy": greedy_cuts,
    "another_goal": cuts_with_other_goals,
}


def judge_cut(world: JudgedWorld) -> Iterator[Judgement]:
    """Expects sizes of at least one layer which together hold all layers, and whose slowest stage no cut can beat."""
    got = [simplified(answer) for answer in world.outputs[0]]
    cases = world.inputs[0]["cases"]
    pairs = list(zip(cases, got, strict=True))
    known = [key for key, cuts in WRONG_CUTS.items() if all(sizes in cuts(*case) for case, sizes in pairs)]
    for (costs, num_stages), sizes in pairs:
        call = f"cut({shortened(costs)}, {num_stages})"
        is_list = isinstance(sizes, list) and all(type(size) is int for size in sizes) and len(sizes) == num_stages
        yield expect(is_list, words["no_list_of_stages"].format(call, shortened(sizes), num_stages), mistakes=known)
        if not is_list:
            return
        message = words["stage_without_layer"].format(call, sizes, num_stages, len(costs))
        yield expect(min(sizes) > 0, message, mistakes=known or ["empty_stage"])
        message = words["layers_together"].format(call, sizes, sum(sizes), len(costs))
        mistakes = known or (["layers_lost"] if sum(sizes) < len(costs) else [])
        yield expect(sum(sizes) == len(costs), message, mistakes=mistakes)
        if min(sizes) > 0 and sum(sizes) == len(costs):
            best = min(all_cuts(costs, num_stages), key=lambda cut: slowest_stage(costs, cut))
            slowest, least = slowest_stage(costs, sizes), slowest_stage(costs, best)
            message = words["slowest_stage"].format(call, sizes, stage_costs(costs, sizes), slowest, best, least)
            yield expect(slowest == least, message, mistakes=known or ["not_the_best"])


CUT = Task(
    key="06.cut",
    signature="cut(costs, num_stages)",
    make_inputs=make_cut,
    run_submission=answers.run_questions,
    judge=judge_cut,
    runs_on="process",
    must_not_change=("costs",),
)
