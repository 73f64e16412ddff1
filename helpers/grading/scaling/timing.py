"""What a step loses. 11.exposed: communication that backward does not hide. 11.bubble: GPUs of a pipeline that wait."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from helpers.grading.cases import CaseGenerator
from helpers.grading.kit import answers
from helpers.grading.scaling import LAB
from helpers.learner.words import Words

Seconds = Sequence[float]

# -- 11.exposed ------------------------------------------------------------------------------------------------------
Left = Callable[[Seconds, Sequence[int], float, int, float], float]
GB = 10**9


def make_exposed(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """The text's own; all hidden; a gap on the link; a link that is never free; one bucket; one rank; then any."""
    cases = [
        [[0.10, 0.12, 0.14], [GB, GB, GB], 0.14, 4, 400],
        [[0.10, 0.15], [GB, GB // 2], 0.5, 8, 400],
        [[0.10, 0.40], [GB, GB], 0.42, 2, 200],
        [[0.02, 0.04, 0.06], [GB, GB, GB], 0.06, 16, 100],
        [[0.25], [2 * GB], 0.25, 3, 200],
        [[0.10, 0.20], [GB, GB], 0.20, 1, 100],
    ]
    while len(cases) < 14:
        ready = sorted({rng.integer(1, 40) / 100 for _ in range(rng.integer(2, 6))})
        late = rng.one_of(0.0, 0.0, 0.01, 0.02)  # behind the last bucket comes what has no weights
        sizes = [GB // 10 * rng.integer(1, 12) for _ in ready]
        cases.append([ready, sizes, ready[-1] + late, 2 ** rng.integer(1, 6), rng.one_of(100, 200, 400, 800)])
    return [{"cases": cases}]


def queue(ready: Seconds, takes: Seconds) -> list[float]:
    """When each bucket has arrived, one after the other."""
    ends = [0.0]
    for at, seconds in zip(ready, takes, strict=True):
        ends.append(max(ends[-1], at) + seconds)
    return ends


def own_links(ready: Seconds, takes: Seconds) -> list[float]:
    return [at + seconds for at, seconds in zip(ready, takes, strict=True)]


def left(
    arrivals: Callable[[Seconds, Seconds], list[float]] = queue,
    joined: Callable[..., float] = max,
    *,
    bits: int = 8,
    share: Callable[[int], float] = lambda ranks: 2 * (ranks - 1) / ranks,
) -> Left:
    """arrivals: when each bucket is there. joined: of the seconds by which each is behind backward. share: of its
    bytes, what a link carries."""

    def seconds(ready: Seconds, sizes: Sequence[int], backward: float, ranks: int, gbit: float) -> float:
        takes = [share(ranks) * size * bits / (gbit * 1e9) for size in sizes]
        return joined(max(0.0, end - backward) for end in arrivals(ready, takes))

    return seconds


WRONG_LEFT: dict[str, list[Left]] = {
    "bits_as_bytes": [left(bits=1)],
    "ring_forgotten": [left(share=way) for way in (lambda n: 1, lambda n: 2, lambda n: (n - 1) / n)],
    "begins_at_once": [left(lambda ready, takes: [sum(takes)])],
    "queue_forgotten": [left(own_links), left(own_links, sum)],
    "counted_twice": [left(queue, sum)],
    "last_bucket_hidden": [left(lambda ready, takes: queue(ready[:-1], takes[:-1]))],
}
LEFT, CALL = (
    Words(en="the exposed time", zh="暴露的时间"),
    "exposed_seconds(ready, sizes, backward, ranks, gbit)",
)
EXPOSED = answers.question_task(
    "11.exposed", CALL, LEFT, left(), WRONG_LEFT, make_inputs=make_exposed, hints=LAB.hints(*WRONG_LEFT)
)

# -- 11.bubble -------------------------------------------------------------------------------------------------------
Pipeline = Callable[[Seconds, int, int], tuple[float, float]]


def make_bubble(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """The text's two, with chunks, the head on the last stage, one stage, one micro-batch; then any."""
    even, head = [1.0] * 4, [1.0, 1.0, 1.0, 2.0]
    cases = [[even, 8, 1], [head, 8, 1], [even, 8, 2], [head, 16, 4], [[1.5], 4, 1], [[0.5, 1.0], 1, 1]]
    while len(cases) < 12:
        stages = [rng.integer(4, 12) / 4 for _ in range(rng.integer(2, 8))]
        cases.append([stages, len(stages) * rng.integer(1, 8), rng.integer(1, 4)])
    return [{"cases": cases}]


def mean(forward: Seconds) -> float:
    return sum(forward) / len(forward)


def idle(forward: Seconds, m: int, chunks: int, forwards: float) -> float:
    return 1 - m * mean(forward) / forwards


def of_equal_stages(forward: Seconds, m: int, chunks: int, forwards: float) -> float:
    waits = (len(forward) - 1) / chunks
    return waits / (m + waits)


def pipeline(
    *,
    passes: int = 3,
    pace: Callable[[Seconds], float] = max,
    others: Callable[[float, int], float] = lambda rest, chunks: rest / chunks,
    bubble: Callable[[Seconds, int, int, float], float] = idle,
) -> Pipeline:
    """passes: a stage's work on a micro-batch, in forwards; the backward is two. pace: of the forwards, the one that
    counts for every micro-batch. others: what the rest adds."""

    def step(forward: Seconds, micro_batches: int, chunks: int) -> tuple[float, float]:
        forwards = micro_batches * pace(forward) + others(sum(forward) - pace(forward), chunks)
        return passes * forwards, bubble(forward, micro_batches, chunks, forwards)

    return step


WRONG_STEPS: dict[str, list[Pipeline]] = {
    "backward_once": [pipeline(passes=2), pipeline(passes=1)],
    "equal_stages_assumed": [pipeline(pace=mean), pipeline(pace=lambda f: f[0]), pipeline(bubble=of_equal_stages)],
    "chunks_multiply": [pipeline(others=lambda rest, v: rest * v), pipeline(others=lambda rest, v: rest)],
    "share_of_the_work": [
        pipeline(bubble=lambda f, m, v, forwards: forwards / (m * mean(f)) - 1),
        pipeline(bubble=lambda f, m, v, forwards: (len(f) - 1) / (m * v)),
    ],
}
STEP = [Words(en="the time of the step", zh="一步的时间"), Words(en="the bubble", zh="气泡占比")]
CALLED = "pipeline_step(forward, micro_batches, chunks)"
BUBBLE = answers.question_task(
    "11.bubble", CALLED, STEP, pipeline(), WRONG_STEPS, make_inputs=make_bubble, hints=LAB.hints(*WRONG_STEPS)
)
