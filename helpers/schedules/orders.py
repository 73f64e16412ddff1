"""Builds the standard pipeline schedules (GPipe, 1F1B, interleaved, zero bubble), and cuts layers into stages.

The runtime trains by them and the simulator times them. p = ranks, i = a rank from 0, m = micro-batches, c = chunks per
rank.

naive        one micro-batch after the other passes through all stages and back: one rank works, the others wait
gpipe        all forwards, then all backwards (Huang et al. 2019, section 2.3): m micro-batches in memory
one_f_one_b  warm-up of p - i forwards, then one backward, one forward (Narayanan et al. 2019, PipeDream-flush in
             Narayanan et al. 2021, section 2.2.1): p - i micro-batches in memory. If messages take no time, the bubble
             is as large as GPipe's
interleaved  each rank holds c stages, p apart (Narayanan et al. 2021, section 2.2.2): a bubble c times smaller
one_f_one_b_with   1F1B with a warm-up of your own for each rank
eager_one_f_one_b  1F1B with a longer warm-up: messages travel while others are computed (Zhuang et al. 2022)
zb_h1, zb_h2 backward in two parts, I (gradient of the input) and W (gradient of the weights). No other stage waits for
             W, so it can fill the bubble (Qi et al. 2023, section 2.3)
`balanced` decides how many layers each stage gets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, islice

from helpers.schedules.actions import BACKWARD, FORWARD, INPUT, WEIGHT, Action, Schedule


def naive(num_stages: int, num_microbatches: int = 1) -> Schedule:
    """Each micro-batch goes through all stages and back before the next one starts."""
    _check("naive", num_stages, num_microbatches)
    order = [(kind, j) for j in range(num_microbatches) for kind in (FORWARD, BACKWARD)]
    return _same_on_all_stages("naive", num_stages, num_microbatches, order)


def gpipe(num_stages: int, num_microbatches: int) -> Schedule:
    """All forwards, then all backwards."""
    _check("gpipe", num_stages, num_microbatches)
    order = [(kind, j) for kind in (FORWARD, BACKWARD) for j in range(num_microbatches)]
    return _same_on_all_stages("gpipe", num_stages, num_microbatches, order)


def one_f_one_b(num_stages: int, num_microbatches: int) -> Schedule:
    """1F1B: p - i forwards, then one backward and one forward in turn, and at the end the remaining backwards."""
    return _one_f_one_b("one_f_one_b", num_stages, num_microbatches, lambda i: num_stages - i)


def eager_one_f_one_b(num_stages: int, num_microbatches: int) -> Schedule:
    """1F1B with a warm-up of 2 (p - i) - 1 forwards, so that slow messages hide; 2p - 1 micro-batches in memory."""
    return _one_f_one_b("eager_one_f_one_b", num_stages, num_microbatches, lambda i: 2 * (num_stages - i) - 1)


def one_f_one_b_with(warm_up: Sequence[int], num_microbatches: int) -> Schedule:
    """1F1B in which stage i starts with `warm_up[i]` forwards."""
    return _one_f_one_b("one_f_one_b", len(warm_up), num_microbatches, warm_up.__getitem__)


def interleaved(num_stages: int, num_microbatches: int, num_chunks: int = 2) -> Schedule:
    """1F1B over chunks. num_stages counts virtual stages: of p ranks, rank r has stages r, p + r, 2p + r, ….

    Micro-batches go in rounds of p: each round passes chunk 0, then chunk 1, and so on. Raises ValueError where
    num_chunks does not divide num_stages, or p does not divide the micro-batches.
    """
    _check("interleaved", num_stages, num_microbatches)
    if num_chunks < 1 or num_stages % num_chunks:
        raise ValueError(
            f"interleaved: {num_stages} virtual stages cannot be divided into {num_chunks} chunks per rank; "
            "num_stages must be num_chunks times the number of ranks"
        )
    num_ranks = num_stages // num_chunks
    if num_microbatches % num_ranks:
        more = num_microbatches + -num_microbatches % num_ranks  # rounded up to a multiple of the ranks
        raise ValueError(
            f"interleaved: {num_microbatches} micro-batches are not a whole number of rounds of "
            f"{num_ranks}, one for each rank; take {more}"
        )
    rows, order = [], list(_rounds(num_ranks, num_chunks, num_microbatches))
    for rank in range(num_ranks):
        forwards = (Action(chunk * num_ranks + rank, FORWARD, j) for chunk, j in order)
        # backward passes the chunks from the last to the first
        backwards = (Action((num_chunks - 1 - chunk) * num_ranks + rank, BACKWARD, j) for chunk, j in order)
        # one round of every chunk but the last, two forwards for each rank behind this one, and the first of 1F1B
        warm_up = 2 * (num_ranks - 1 - rank) + (num_chunks - 1) * num_ranks + 1
        rows.append(tuple(_in_turn(forwards, backwards, warm_up=warm_up)))
    return Schedule("interleaved", num_stages, num_microbatches, tuple(rows), num_chunks)


def zb_h1(num_stages: int, num_microbatches: int) -> Schedule:
    """Zero bubble with 1F1B's memory: W fills the bubble at the end."""
    return _zero_bubble("zb_h1", num_stages, num_microbatches, k=1)


def zb_h2(num_stages: int, num_microbatches: int) -> Schedule:
    """Zero bubble with up to 2p - 1 micro-batches in memory: more warm-up, so the bubble at the start is filled too.

    Its last bubble disappears only with post-validation: every rank updates without waiting for the global norm, and
    undoes the update if the norm turns out to be too large (Qi et al. 2023, section 4).
    """
    return _zero_bubble("zb_h2", num_stages, num_microbatches, k=2)


# the value of `schedule` in a Plan -> the function that makes it; eager_one_f_one_b is only predicted, not trained
ORDERS: dict[str, Callable[..., Schedule]] = {
    "naive": naive,
    "gpipe": gpipe,
    "one_f_one_b": one_f_one_b,
    "interleaved": interleaved,
    "zb_h1": zb_h1,
    "zb_h2": zb_h2,
}


def repeated(schedule: Schedule, num_steps: int) -> Schedule:
    """The schedule of several steps, one directly after the other, with micro-batches numbered through all steps."""
    m = schedule.num_microbatches
    rows = [
        tuple(action._replace(microbatch=action.microbatch + step * m) for step in range(num_steps) for action in row)
        for row in schedule.actions
    ]
    return Schedule(schedule.name, schedule.num_stages, num_steps * m, tuple(rows), schedule.num_chunks)


def _same_on_all_stages(name: str, num_stages: int, num_microbatches: int, order: list[tuple[str, int]]) -> Schedule:
    """Each stage runs the same (kind, micro-batch) in the same order."""
    _check(name, num_stages, num_microbatches)
    rows = tuple(tuple(Action(i, kind, j) for kind, j in order) for i in range(num_stages))
    return Schedule(name, num_stages, num_microbatches, rows)


def _one_f_one_b(name: str, num_stages: int, num_microbatches: int, warm_up: Callable[[int], int]) -> Schedule:
    """1F1B, where stage i starts with `warm_up(i)` forwards."""
    _check(name, num_stages, num_microbatches)
    rows = []
    for i in range(num_stages):
        forwards = (Action(i, FORWARD, j) for j in range(num_microbatches))
        backwards = (Action(i, BACKWARD, j) for j in range(num_microbatches))
        rows.append(tuple(_in_turn(forwards, backwards, warm_up=warm_up(i))))
    return Schedule(name, num_stages, num_microbatches, tuple(rows))


def _zero_bubble(name: str, p: int, m: int, *, k: int) -> Schedule:
    """Zero bubble with k times the warm-up of 1F1B. p = stages, m = micro-batches.

    Stage i runs k (p - 1 - i) + 1 times F. Then for j = 0, 1, … it runs I of j, W of j - k i once j >= k i, and the
    next F while there is one. So W lags k i micro-batches behind I, and the W that remain fill the bubble at the end.
    """
    _check(name, p, m)
    rows = []
    for i in range(p):
        warm_up = min(m, k * (p - 1 - i) + 1)
        row = [Action(i, FORWARD, j) for j in range(warm_up)]
        for j in range(m):
            row.append(Action(i, INPUT, j))
            if j >= k * i:
                row.append(Action(i, WEIGHT, j - k * i))
            if warm_up + j < m:
                row.append(Action(i, FORWARD, warm_up + j))
        row += [Action(i, WEIGHT, j) for j in range(max(0, m - k * i), m)]
        rows.append(tuple(row))
    return Schedule(name, p, m, tuple(rows))


def _rounds(num_ranks: int, num_chunks: int, num_microbatches: int) -> Iterator[tuple[int, int]]:
    """(chunk, micro-batch) of an interleaved pipeline's forwards, in order."""
    for first in range(0, num_microbatches, num_ranks):  # the first micro-batch of a round
        for chunk in range(num_chunks):
            for j in range(first, first + num_ranks):
                yield chunk, j


def _in_turn(forwards: Iterator[Action], backwards: Iterator[Action], *, warm_up: int) -> list[Action]:
    """`warm_up` forwards, then backward, forward, backward, … until both have ended."""
    row = list(islice(forwards, warm_up))
    for backward in backwards:
        row.append(backward)
        row.extend(islice(forwards, 1))  # the next forward, if there is one
    return row


def _check(name: str, num_stages: int, num_microbatches: int) -> None:
    """Raise ValueError unless both numbers are whole and at least 1."""
    for what, number in (("num_stages", num_stages), ("num_microbatches", num_microbatches)):
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise ValueError(f"{name}: {what} is {number!r}, but it must be a whole number of at least 1")


def balanced(costs: Sequence[float], num_stages: int) -> list[int]:
    """The number of layers of each stage, at least one, such that the largest sum of costs is as small as possible.

    costs: one number per layer. The pipeline (parallel/pipeline/partition.py) and the predictions both use this rule.
    Dynamic programming over the last cut, O(layers^2 * stages). Raises ValueError for more stages than layers.
    """
    num_layers = len(costs)
    if not 1 <= num_stages <= num_layers:
        raise ValueError(
            f"{num_layers} layers cannot be divided into {num_stages} stages: each needs at least one layer, so choose "
            f"1 to {num_layers} stages, or split the model into more layers"
        )
    sums = list(accumulate(costs, initial=0.0))
    # best[s][n]: the cost of the slowest stage when s stages share the first n layers in the best way
    # cut[s][n]: in that way, the number of layers before the last of the s stages
    best = [[float("inf")] * (num_layers + 1) for _ in range(num_stages + 1)]
    cut = [[0] * (num_layers + 1) for _ in range(num_stages + 1)]
    best[0][0] = 0.0
    for stage in range(1, num_stages + 1):
        for end in range(stage, num_layers + 1):
            for start in range(stage - 1, end):
                worst = max(best[stage - 1][start], sums[end] - sums[start])
                if worst < best[stage][end]:
                    best[stage][end], cut[stage][end] = worst, start
    sizes, end = [], num_layers
    for stage in range(num_stages, 0, -1):
        sizes.append(end - cut[stage][end])
        end = cut[stage][end]
    return sizes[::-1]
