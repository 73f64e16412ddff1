"""Whatever a check draws, a right answer passes: every right answer there is, with many seeds, one world a seed."""

from __future__ import annotations

import pytest

from helpers.grading import task_of
from helpers.grading.judging import grade_world
from helpers.grading.run_on_ranks import LocalRunner
from tests.grading.chapters import EXERCISES
from tests.grading.fresh import fresh
from tests.grading.submissions import LABS, RIGHT_ANSWERS, Submission, folded_answer, name_of, solutions

NUM_SEEDS = 20  # times the answers, in all some ten minutes
SOLUTIONS = [*(one for lab in LABS for one in solutions(lab)), *map(folded_answer, EXERCISES)]
RIGHT = [*SOLUTIONS, *RIGHT_ANSWERS, *fresh("right")]


def false_alarms(answer: Submission, seeds: range, ranks) -> list[str]:
    """What was found wrong with it, seed by seed; every size of the world has its turn."""
    task, alarms = task_of(answer.task), []
    submitted = answer.names().get(task.name)
    for seed in seeds:
        size = task.world_sizes[seed % len(task.world_sizes)]
        tried = grade_world(task, LocalRunner(task, submitted, ranks=ranks), size, seed)
        if not tried.passed:
            failed = [(one.rank, one.case, one.message.en) for one in tried.failed]
            alarms.append(f"seed {seed}, {size} {task.runs_on}: {tried.failure.text if tried.failure else failed}")
    return alarms


@pytest.mark.slow
@pytest.mark.parametrize("answer", RIGHT, ids=name_of)
def test_a_right_answer_passes_whatever_is_drawn(answer, seed, ranks):
    start = seed * NUM_SEEDS
    assert not false_alarms(answer, range(start, start + NUM_SEEDS), ranks)
