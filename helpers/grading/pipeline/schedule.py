"""Judges the tasks of chapter 06 about schedules and what they cost, and provides schedules as lists.

Each task asks the learner's function several questions in one process. A question is called a case: it is the list of
the function's arguments, and `make_…` draws the cases. 06.gpipe and 06.one_f_one_b ask for orders of actions, which
are compared with the course's own schedules. 06.bubble asks for the share of a step in which ranks idle, and for the
micro-batches that they hold; 06.under_way, how many micro-batches hide the round trip of one. 06.cut divides layers
into stages so that the slowest stage is as fast as possible.

p is the number of stages, one per rank, and m the number of micro-batches. An action is a text as PyTorch prints it:
"2F0" is the forward of stage 2 on micro-batch 0, "2B0" its backward. In 1F1B a rank first runs some forwards, its
warm-up. Then it alternates backwards and forwards, and at the end it runs the remaining backwards.

Below the sentence about a wrong answer stands a rule, which says how the right one comes about. `words["…"]` is a
sentence of messages.yaml, or the name of a value in one. `rng` draws numbers; `rng.integer(3, 5)` is 3, 4 or 5.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import accumulate, combinations, pairwise, product, zip_longest
from statistics import fmean
from typing import Any

from helpers import schedules
from helpers.grading.kit import answers
from helpers.grading.kit.answers import question_task
from helpers.grading.kit.comparisons import expect
from helpers.grading.pipeline import LAB
from helpers.grading.plain_data import shortened, simplified
from helpers.grading.task import JudgedWorld, Judgement, NumberGenerator, Task
from helpers.learner.words import Words
from helpers.predict.time.pipeline import simulate
from helpers.records import Timeline
from helpers.schedules import Action
from helpers.schedules.actions import FinishedAction
from helpers.schedules.validate import finished_by, needs

words = LAB.messages

Actions = list[str]  # what one rank does, in order


# -- 06.gpipe and 06.one_f_one_b -------------------------------------------------------------------------------------
def make_orders(rng: NumberGenerator, world_size: int) -> list[dict[str, Any]]:
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


def gpipe_rule(case: list[int], _: Any) -> Words:
    """What GPipe has this rank do."""
    rank, _, m = case
    return words["gpipe_rule"].format(rank=rank, m=m, last=m - 1)


def one_f_one_b_rule(case: list[int], _: Any) -> Words:
    """What 1F1B has this rank do."""
    rank, p, m = case
    return words["one_f_one_b_rule"].format(rank=rank, stages=p - rank, m=m, warm_up=min(p - rank, m), last=m - 1)


GPIPE = question_task(
    "06.gpipe",
    "gpipe(rank, num_stages, num_microbatches)",
    words["action_list"],
    gpipe,
    make_inputs=make_orders,
    rules=[gpipe_rule],
    needs_torch=False,
)
ONE_F_ONE_B = question_task(
    "06.one_f_one_b",
    "one_f_one_b(rank, num_stages, num_microbatches)",
    words["action_list"],
    one_f_one_b,
    make_inputs=make_orders,
    rules=[one_f_one_b_rule],
    needs_torch=False,
)


# -- schedules as lists ----------------------------------------------------------------------------------------------
def action_lists(schedule: schedules.Schedule) -> list[Actions]:
    """The actions of each rank as texts."""
    return [list(map(str, row)) for row in schedule.actions]


def draw_schedule(rng: NumberGenerator, p: int, m: int, *, has_same_order: bool = True) -> list[Actions]:
    """Any schedule that can run.

    has_same_order: all ranks take the micro-batches forward in one random order, and back in another. Otherwise each
    rank takes them in an order of its own.
    """
    orders = {kind: rng.permutation(m) for kind in "FB"}
    schedule: list[Actions] = [[] for _ in range(p)]
    done: set[FinishedAction] = set()
    while any(len(row) < 2 * m for row in schedule):
        candidates: list[Action] = []
        for rank, (kind, order) in product(range(p), orders.items()):
            remaining = [Action(rank, kind, j) for j in order if f"{rank}{kind}{j}" not in schedule[rank]]
            candidates += remaining[:1] if has_same_order else remaining
        action = rng.one_of(*(one for one in candidates if done.issuperset(needs(one, p))))
        done.update(finished_by(action))
        schedule[action.stage].append(str(action))
    return schedule


# -- 06.bubble -------------------------------------------------------------------------------------------------------
MAX_SHOWN_ACTIONS = 8  # of a schedule, in a sentence


# -- 06.bubble -------------------------------------------------------------------------------------------------------
def make_bubble(rng: NumberGenerator, world_size: int) -> list[dict[str, Any]]:
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
    # Ints, a first stage whose forward takes no time, and a last stage whose backward takes none.
    free_actions = [[0, *[3] * (p - 1)], [*[2] * (p - 1), 0]]
    cases += [[action_lists(schedules.gpipe(p, m)), *free_actions] for m in (1, 2)]
    cases.append([action_lists(schedules.one_f_one_b(1, 3)), [2.0], [5.0]])
    return [{"cases": cases}]


def with_reversed_backwards(schedule: schedules.Schedule) -> list[Actions]:
    """GPipe with the last micro-batch first on its way back, as the figure of the GPipe paper has it."""
    m = schedule.num_microbatches
    return [row[:m] + row[m:][::-1] for row in action_lists(schedule)]


def draw_seconds(rng: NumberGenerator, p: int) -> list[list[float]]:
    """Seconds of a forward and of a backward on each stage. No two stages need the same time for both together."""
    order = rng.permutation(p)  # the fastest stage has number 0
    return [[float(2 + i) for i in order], [float(rng.integer(3, 4) + 3 * i) for i in order]]


def draw_late_peak(rng: NumberGenerator, p: int, m: int) -> list[Actions]:
    """A schedule in which some rank holds most micro-batches only after its first backward.

    Whoever counts the forwards before the first backward gets a number that is too small for this rank.
    """
    while True:
        actions = draw_schedule(rng, p, m, has_same_order=False)
        if any("B" in "".join(row[: peak(row)[1]]) for row in actions):
            return actions


def peak(actions: Actions) -> tuple[int, int]:
    """The most micro-batches that this rank holds at once, and the index of the action after which it first does.

    A rank holds a micro-batch that went forward and did not come back yet.
    """
    counts = list(accumulate(1 if "F" in action else -1 for action in actions))
    return max(counts), counts.index(max(counts))


def simulated(actions: list[Actions], forward: list[float], backward: list[float]) -> Timeline:
    """The step of a case on the clock, in which messages take no time."""
    rows = [list(map(Action.parse, row)) for row in actions]
    schedule = schedules.Schedule("drawn", len(rows), len(rows[0]) // 2, rows)
    return simulate(schedule, forward=forward, backward_input=backward, backward_weight=0.0)


def bubble(*case: Any) -> float:
    """The share of the step in which a rank idles, as the mean over all ranks."""
    step = simulated(*case)
    return fmean(map(step.idle, step.ranks)) / step.duration


def in_flight(actions: list[Actions]) -> list[int]:
    """The most micro-batches that each rank holds at once."""
    return [peak(row)[0] for row in actions]


def bubble_and_held(*case: Any) -> tuple[float, list[int]]:
    """The right answer to a case: the bubble, and the most micro-batches that each rank holds."""
    return bubble(*case), in_flight(case[0])


def bubble_rule(case: list[Any], _: Any) -> Words:
    """When each rank ends in this step, or each action if they are few, and how long the ranks work."""
    actions, step = case[0], simulated(*case)
    is_short = len(actions) * len(actions[0]) <= MAX_SHOWN_ACTIONS
    spans = step.spans if is_short else [step.for_rank(rank).spans[-1] for rank in step.ranks]
    busy = [step.busy(rank) for rank in step.ranks]
    numbers = {"busy": shown(busy), "seconds": shown(step.duration), "mean": shown(fmean(busy))}
    return words["bubble_rule"].format(ends=[f"{span.name} {shown(span.end)}" for span in spans], **numbers)


def shown(value: Any) -> str:
    """The number, or each of a list of numbers, as a sentence shows it."""
    return ", ".join(map(shown, value)) if isinstance(value, list) else f"{value:.6g}"


def held_rule(case: list[Any], got: Any) -> Words:
    """Which micro-batches a rank holds when they are most: the first rank whose number is wrong."""
    actions, held = case[0], got if isinstance(got, list | tuple) else []
    pairs = zip_longest(in_flight(actions), held)
    rank = next((rank for rank, pair in enumerate(pairs) if not answers.is_same_answer(*pair)), 0) % len(actions)
    index = peak(actions[rank])[1]
    done = [Action.parse(action) for action in actions[rank][: index + 1]]
    returned = {action.microbatch for action in done if action.kind == "B"}
    present = [action.microbatch for action in done if action.kind == "F" and action.microbatch not in returned]
    return words["held_rule"].format(rank=rank, action=actions[rank][index], number=index + 1, present=sorted(present))


BUBBLE = answers.question_task(
    "06.bubble",
    "bubble(schedule, forward, backward)",
    [words["bubble"], words["micro_batches_held"]],
    bubble_and_held,
    make_inputs=make_bubble,
    rules=[bubble_rule, held_rule],
    must_not_change=("schedule", "forward", "backward"),
    recognise_failure=lambda failure: ["never_ends"] if failure.kind == "too_long" else [],
    cpu_seconds=2.0,
    needs_torch=False,
)


# -- 06.under_way ----------------------------------------------------------------------------------------------------
# The learner's function says how many micro-batches must be under way, that is in flight, at the same time.
def make_under_way(rng: NumberGenerator, world_size: int) -> list[dict[str, Any]]:
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


def round_trip(p: int, forward: float, backward: float, message: float) -> float:
    """The time in which a micro-batch goes forward and back, in units of the work that rank 0 does for one micro-batch.

    That unit is forward + backward. The computations on all p stages take p units. On top come p - 1 messages
    forward and as many back.
    """
    return p + 2 * (p - 1) * message / (forward + backward)


def num_in_flight(*case: Any) -> int:
    """How many micro-batches must be in flight, so that rank 0 never waits during the round trip of one."""
    return math.ceil(round_trip(*case))


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
    make_inputs=make_under_way,
    rules=[under_way_rule],
    needs_torch=False,
)


# -- 06.cut ----------------------------------------------------------------------------------------------------------
NUM_MODELS = 5  # cases in which no shortcut finds the best cut
NUM_LAYERS = (9, 12)  # of such a model, at least and at most
Costs = Sequence[float]  # of each layer
Sizes = list[int]  # the number of layers in each stage


def make_cut(rng: NumberGenerator, world_size: int) -> list[dict[str, Any]]:
    """Draws cases (costs, num_stages): some edge cases, and models for which no known shortcut finds the best cut.

    A shortcut is a way to cut without a search for the fastest slowest stage; `shortcuts` has all that are known.
    """
    two_stages = [[1, *(rng.integer(5, 9) for _ in range(rng.integer(4, 6))), 1], 2]
    cases = [[[7, 7, 7, 7], 4], [[3, 1, 2], 1], two_stages, *draw_edge_cases(rng)]
    num_wanted = len(cases) + NUM_MODELS
    while len(cases) < num_wanted:
        costs = [rng.integer(1, 20) for _ in range(rng.integer(*NUM_LAYERS))]
        num_stages = rng.integer(3, 4)  # with two stages, other goals would find the best cut
        best = slowest_stage(costs, schedules.balanced(costs, num_stages))
        # A search may start with the cost of the largest layer as the limit of a stage, and raise it in steps of 2.
        # It misses every best cost at an odd distance. So cases with an even and with an odd distance alternate.
        has_wanted_parity = (best - max(costs)) % 2 == len(cases) % 2
        if has_wanted_parity and all(slowest_stage(costs, sizes) > best for sizes in shortcuts(costs, num_stages)):
            cases.append([costs, num_stages])
    return [{"cases": cases}]


def draw_edge_cases(rng: NumberGenerator) -> list[list[Any]]:
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


def shortcuts(costs: Costs, num_stages: int) -> Iterator[Sizes]:
    """The cuts that the known shortcuts give.

    They are equally many layers in each stage, the cut whose cheapest stage costs most, the one whose stages differ
    least, and those that fill one stage after the other up to the mean cost.
    """
    cuts = list(all_cuts(costs, num_stages))
    yield max(sizes for sizes in cuts if max(sizes) - min(sizes) <= 1)
    yield max(cuts, key=lambda sizes: min(stage_costs(costs, sizes)))
    yield min(cuts, key=lambda sizes: slowest_stage(costs, sizes) - min(stage_costs(costs, sizes)))
    for num_beyond in (0, 1):  # the layers that a stage takes beyond the mean
        sizes: Sizes = []
        for stages_left in range(num_stages - 1, 0, -1):
            rest = costs[sum(sizes) :]
            sums = list(accumulate(rest[: len(rest) - stages_left]))  # of the next 1, 2, … layers
            num_within = sum(one <= sum(costs) / num_stages for one in sums)
            sizes.append(min(max(1, num_within + num_beyond), len(sums)))
        yield [*sizes, len(costs) - sum(sizes)]


def judge_cut(world: JudgedWorld) -> Iterator[Judgement]:
    """Expects sizes of at least one layer which together hold all layers, and whose slowest stage no cut can beat.

    It names three mistakes itself, because any of very many cuts makes them.
    """
    for (costs, num_stages), answer in zip(world.inputs[0]["cases"], world.outputs[0], strict=True):
        sizes, call = simplified(answer), f"cut({shortened(costs)}, {num_stages})"
        is_list = isinstance(sizes, list) and all(type(size) is int for size in sizes) and len(sizes) == num_stages
        yield expect(is_list, words["no_list_of_stages"].format(call, shortened(sizes), num_stages))
        if not is_list:
            return
        message = words["stage_without_layer"].format(call, sizes, num_stages, len(costs))
        yield expect(min(sizes) > 0, message, mistakes=["empty_stage"])
        message = words["layers_together"].format(call, sizes, sum(sizes), len(costs))
        yield expect(sum(sizes) == len(costs), message, mistakes=["layers_lost"] * (sum(sizes) < len(costs)))
        if min(sizes) > 0 and sum(sizes) == len(costs):
            best = schedules.balanced(costs, num_stages)
            slowest, least = slowest_stage(costs, sizes), slowest_stage(costs, best)
            message = words["slowest_stage"].format(call, sizes, stage_costs(costs, sizes), slowest, best, least)
            yield expect(slowest == least, message, mistakes=["not_the_best"])


CUT = Task(
    key="06.cut",
    signature="cut(costs, num_stages)",
    make_inputs=make_cut,
    run_submission=answers.run_questions,
    judge=judge_cut,
    runs_on="process",
    must_not_change=("costs",),
    needs_torch=False,
)
