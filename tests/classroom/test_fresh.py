"""Answers by people who had read only the labs' text: honest ones have no flag, cheats have one or earn nothing."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from helpers.classroom.program import program_of
from helpers.classroom.scan import scan
from tests.classroom import notebooks
from tests.grading.fresh import fresh
from tests.grading.submissions import Submission, name_of


def answers(kind: str) -> list:
    return [pytest.param(one, id=name_of(one)) for one in fresh(kind)]


@functools.cache
def flags_of(answer: Submission) -> list:
    lab = notebooks.lab_of(answer.task)
    program = program_of(notebooks.handed_in({answer.task: answer.text})["cells"], lab)
    return [flag for flag in scan(program, lab) if flag.key == answer.task]


@pytest.mark.parametrize("answer", answers("right") + answers("wrong"))
def test_an_honest_answer_has_no_flag(answer):
    assert not flags_of(answer)


@pytest.fixture(scope="module")
def points(tmp_path_factory, settings):
    """Of the cheats without a flag, in a sandbox: the name to (points, flags). The others need none."""
    folder: Path = tmp_path_factory.mktemp("cheats")
    unseen = [one for one in fresh("cheats") if not flags_of(one)]
    if not unseen:
        return {}
    for one in unseen:
        notebooks.write(folder / f"{one.name}.ipynb", notebooks.handed_in({one.task: one.text}))
    labs = tuple(notebooks.lab_of(key) for key in {one.lab: one.task for one in unseen}.values())
    results, _ = notebooks.graded(folder, settings(folder, labs=labs), folder.parent / "out-cheats")
    return {one.learner: (one.points, [flag for task in one.tasks for flag in task.flags]) for one in results}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("answer", answers("cheats"))
def test_a_cheat_has_a_flag_or_earns_nothing(answer, points):
    earned, flags = points.get(answer.name, (0, []))
    assert flags_of(answer) or flags or earned == 0
