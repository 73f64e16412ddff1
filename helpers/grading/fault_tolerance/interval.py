"""12.interval: after how many steps to save, so that saves and repeated work together cost least (Young 1974)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import sqrt
from typing import Any

from helpers.grading.drawing import Draw
from helpers.grading.fault_tolerance import LAB
from helpers.grading.kit import answers
from helpers.grading.task import Finding, Task, World
from helpers.words import Words

DAY = 86_400.0
EDGE = 0.02  # of a step: the best number is never so near to the middle between two
Job = tuple[int, float, float, float, float]  # nodes, seconds until one fails, of a save, of a repair, of a step


def make(rng: Draw, world_size: int) -> list[dict[str, Any]]:
    """Young's own example, a large job, one that saves after each step; then any."""
    jobs: list[Job] = [(1, 6000.0, 10.0, 600.0, 15.0), (2048, DAY / 6.5e-3, 60.0, 300.0, 5.0)]
    jobs += [(4, 2000.0, 1.0, 100.0, 300.0), (100, 1e6, 20.0, 4000.0, 2.0)]
    while len(jobs) < 10:
        nodes = rng.integer(2, 3000)
        seconds = (nodes * 500.0 * rng.integer(4, 60), 5.0 * rng.integer(1, 30), 60.0 * rng.integer(10, 60))
        job = (nodes, *seconds, 0.5 * rng.integer(2, 60))
        if abs(steps_in(*job) % 1 - 0.5) > EDGE:
            jobs.append(job)
    return [{"cases": [list(job) for job in jobs]}]


def steps_in(nodes: int, node_mtbf: float, save: float, repair: float, step: float) -> float:
    return sqrt(2 * save * (node_mtbf / nodes + repair)) / step


def whole(steps: float) -> int:
    return max(1, round(steps))


def right(*job: float) -> int:
    return whole(steps_in(*job))


WRONG: dict[str, list[Callable[..., int]]] = {
    "repair_not_counted": [lambda nodes, mtbf, save, repair, step: whole(steps_in(nodes, mtbf, save, 0.0, step))],
    "nodes_forgotten": [lambda nodes, mtbf, save, repair, step: whole(steps_in(1, mtbf, save, repair, step))],
    "whole_interval_lost": [lambda *job: whole(steps_in(*job) / sqrt(2))],
}
STEPS = Words(en="the number of steps", zh="步数")


def judge(world: World) -> Iterator[Finding]:
    yield from answers.judge_answers(TASK, STEPS, world.inputs[0]["cases"], world.outputs[0], right, WRONG)


TASK = Task(
    key="12.interval",
    signature="best_interval(nodes, node_mtbf, save, repair, step)",
    make=make,
    act=answers.act,
    judge=judge,
    hints=LAB.hints(*WRONG),
    world_sizes=(1,),
    unit="device",
)
