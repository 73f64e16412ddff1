"""Cheats and bad input end to end: each cheat is flagged with its reason, the rest is graded."""

from __future__ import annotations

from dataclasses import replace

import pytest

from helpers.classroom import labs
from helpers.classroom.grade import with_shared_numbers
from helpers.classroom.results import CERTAIN, STATES, flags_of
from tests.classroom import notebooks
from tests.classroom.conftest import SAMPLE, sampled
from tests.grading.submissions import answer_to

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize("name", sampled([path.stem for path in notebooks.CHEATS], "cheat"))
def test_a_cheat_is_flagged_with_its_reason_and_keeps_what_it_earned(name, graded):
    cheat = notebooks.fields_of(notebooks.TESTS / "cheats" / f"{name}.py")
    task = next(task for task in graded(f"cheat-{name}").tasks if task.key == cheat["TASK"])
    assert task.state in ("failed", "passed") and task.points == (task.max_points if task.state == "passed" else 0)
    assert any(cheat["SAYS"] in flag.reason for flag in task.flags), task


def test_messages_that_the_log_lacks_cost_the_points(graded):
    (average,) = [task for task in graded("cheat-clears_the_listeners").tasks if task.key == "03.average"]
    assert average.points == 0 and "hidden from the log" in average.text


def test_a_number_that_two_learners_name_is_flagged_in_both_answers(tmp_path, settings):
    for learner in ("ada", "bob"):
        source = answer_to("10_profiling", "10.patients")
        notebooks.write(tmp_path / "class" / f"{learner}.ipynb", notebooks.handed_in({"10.patients": source}))
    own = settings(tmp_path / "class", labs=(labs.lab_with_task(notebooks.lab_of("10.patients"), "10.patients"),))
    results, state = notebooks.graded(tmp_path / "class", own, tmp_path / "out")
    for one in results:
        (flag,) = flags_of(one)
        assert one.points == one.max_points and "number 10 is also that of another learner" in flag.text
    assert not flags_of(with_shared_numbers([replace(results[0], tasks=state.done["ada"].tasks)], "en")[0])


def test_the_sample_has_every_kind_of_row_and_about_a_quarter_of_the_class(graded_sample):
    tasks = [task for one in graded_sample.values() for task in one.tasks]
    assert {task.state for task in tasks} == {*STATES} - {"not graded"}  # test_hostile.py has files that are not
    assert {flag.certainty for task in tasks for flag in task.flags} >= {CERTAIN}
    assert set(graded_sample) == SAMPLE
    assert len(SAMPLE) <= (len(notebooks.CHEATS) + 13) / 3 and len(notebooks.CHEATS) >= 10


def test_the_solutions_earn_every_point_and_raise_no_flag(graded):
    right = graded("right")
    assert right.points == right.max_points == 21 and not flags_of(right) and not right.problems, right


def test_the_untouched_lab_earns_nothing_and_is_accused_of_nothing(graded):
    result = graded("untouched")
    assert result.points == 0 and not flags_of(result) and not result.problems
    assert all("not written" in task.text for task in result.tasks)


WRONG = {
    "name": "reason",
    "syntax_error": "cell average, line 1: a syntax error",
    "raises": "raises ValueError: no",
    "endless_cell": "cell start computes for more than",
    "endless_function": "does not end in time",
    "forks": "starts processes of its own (os.fork)",
    "forks_in_a_cell": "starts processes of its own (os.fork)",
    "all_memory": "more than 1.5 GB of memory",
    "exits_in_a_cell": "cell start: it ended its process (exit code 0)",
    "silent": "does not end in time",
}


@pytest.mark.parametrize("name", sampled(WRONG, "bad"))
def test_what_goes_wrong_has_its_reason(name, graded):
    result = graded(f"bad-{name}")
    texts = " ".join([*result.problems, *(task.text for task in result.tasks)])
    assert WRONG[name] in texts, result


@pytest.mark.parametrize("name", ["prints_100_mb", "endless_cell", "exits_in_a_cell"])
def test_the_rest_of_a_broken_notebook_is_graded(name, graded):
    average = next(task for task in graded(f"bad-{name}").tasks if task.key == "03.average")
    assert average.state == "passed", graded(f"bad-{name}")


def test_who_deletes_files_is_reported(graded):
    result = graded("bad-deletes_files")
    assert any("deletes files" in flag.reason for flag in flags_of(result))


def test_missing_tasks_are_told_from_failed_ones(graded):
    result = graded("bad-prints_100_mb")
    states = {task.key: task.state for task in result.tasks}
    assert states["03.overlap"] == "missing" and "not defined" in result.tasks[-1].text
