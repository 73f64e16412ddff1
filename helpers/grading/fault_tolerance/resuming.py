"""12.resume: which samples a rank reads next, from what the stopped job had trained on, whatever dp was then."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from helpers.grading.drawing import Draw
from helpers.grading.fault_tolerance import LAB
from helpers.grading.kit import answers
from helpers.grading.task import Finding, Task, Trial, World
from helpers.words import Words

EPOCHS = 8  # drawn orders; a wrong answer may ask for a later one, and gets the first ones again
State = dict[str, int]
Orders = list[list[int]]
Rows = list[list[int]]  # of each step


def make(rng: Draw, world_size: int) -> list[dict[str, Any]]:
    """All ranks of a job, in the middle of an epoch, at its end and across it. The batch has changed on the way, so
    that steps say nothing about samples."""
    cases: list[list[Any]] = []
    for number, (samples, dp) in enumerate(((10, 1), (10, 2), (13, 2), (24, 3), (11, 4), (9, 1), (15, 3))):
        batch = dp * rng.integer(1, 2)
        orders = [[int(i) for i in shuffled(rng, samples)] for _ in range(EPOCHS)]
        trained = rng.integer(1, samples - 1) + samples * (number and rng.integer(1, 3))
        if number == 2:
            trained = 2 * samples - 1  # the next batch crosses into another epoch
        if number == 5:
            trained = 2 * samples  # an epoch that is exactly over
        step = next(n for n in range(rng.integer(1, 4), 99) if n * batch != trained)
        state = {"step": step, "trained": trained, "handed_out": trained + batch * rng.integer(1, 3), "dp": dp + 1}
        cases += [[state, orders, batch, rank, dp, rng.integer(2, 4)] for rank in range(dp)]
    return [{"cases": cases}]


def shuffled(rng: Draw, count: int) -> list[int]:
    keys = [rng.integer(0, 10**6) for _ in range(count)]
    return sorted(range(count), key=keys.__getitem__)


def act(submitted: Callable, inputs: dict[str, Any], trial: Trial) -> list[Any]:
    def asked(state: State, orders: Orders, *args: int) -> Any:
        return submitted(dict(state), lambda epoch: list(orders[epoch % EPOCHS]), *args)

    return answers.act(asked, inputs, trial, TASK)


# -- the rule, and what people do instead ----------------------------------------------------------------------------
Way = Callable[..., Rows]


def going_on(start: Callable[..., int], epoch_of: Callable[[int, int], int] = lambda now, first: now) -> Way:
    """start: the position at which to go on, from the state, the batch and the number of samples. epoch_of: whose
    order is read, from the epoch of a position and the epoch of the first one."""

    def rows(state: State, orders: Orders, batch: int, rank: int, dp: int, steps: int) -> Rows:
        n, own = len(orders[0]), batch // dp
        first = start(state, batch, n)
        begins = [first + step * batch + rank * own for step in range(steps)]
        return [
            [orders[epoch_of(at // n, first // n) % EPOCHS][at % n] for at in range(begin, begin + own)]
            for begin in begins
        ]

    return rows


def share_of_its_own(cut: Callable[[Sequence[int], int, int], Sequence[int]]) -> Way:
    """Each rank has its part of an epoch, and its own position in it: what has been trained on, divided by dp."""

    def rows(state: State, orders: Orders, batch: int, rank: int, dp: int, steps: int) -> Rows:
        n, own = len(orders[0]), batch // dp
        epoch, done = divmod(state["trained"], n)
        line = [i for order in orders[epoch:] + orders for i in cut(order, rank, dp)][done // dp :]
        return [line[step * own : (step + 1) * own] for step in range(steps)]

    return rows


def trained(state: State, batch: int, n: int) -> int:
    return state["trained"]


right = going_on(trained)
WRONG: dict[str, list[Way]] = {
    "counted_in_steps": [going_on(lambda state, batch, n: state["step"] * batch)],
    "prefetched_skipped": [going_on(lambda state, batch, n: state["handed_out"])],
    "epoch_begun_again": [
        going_on(lambda state, batch, n: state["trained"] // n * n),
        going_on(lambda state, batch, n: 0),
    ],
    "order_kept": [going_on(trained, lambda now, first: first), going_on(trained, lambda now, first: 0)],
    "counted_per_rank": [
        share_of_its_own(lambda order, rank, dp: order[rank::dp]),
        share_of_its_own(lambda order, rank, dp: order[rank * len(order) // dp : (rank + 1) * len(order) // dp]),
    ],
}
SAMPLES = Words(en="the samples of each step", zh="各步的样本")


def judge(world: World) -> Iterator[Finding]:
    yield from answers.judge_answers(TASK, SAMPLES, world.inputs[0]["cases"], world.outputs[0], right, WRONG)


TASK = Task(
    key="12.resume",
    signature="next_samples(state, order, batch, rank, dp, steps)",
    make=make,
    act=act,
    judge=judge,
    hints=LAB.hints(*WRONG),
    world_sizes=(1,),
    unit="device",
)
