"""What a check says, what it notes, and how it ends a cell."""

from __future__ import annotations

import re
from dataclasses import asdict

import pytest
import torch.distributed as dist

from helpers.grading import NotYet, check, grade, named_mistakes, run_on_ranks, tasks_of
from helpers.grading.registry import similar_name
from helpers.grading.task import RunFailure, TaskRun
from helpers.learner import progress
from tests.grading.test_run_on_ranks import not_written, right

KEY = "03.average"


def sums(model):
    for parameter in filter(lambda p: p.grad is not None, model.parameters()):
        dist.all_reduce(parameter.grad)


def test_a_pass_is_one_line(notes):
    verdict = check(KEY, right, progress_file=notes)
    assert re.match(r"03\.average  passed · 1, 2, 3, 4, 5 ranks · \d+ comparisons · ", repr(verdict))
    assert "\n" not in repr(verdict)
    assert [(entry.key, entry.passed) for entry in progress.read(notes).entries] == [(KEY, True)]


def test_a_failure_says_where_what_and_why(notes, refused):
    said = refused(sums, seed=7)
    first, where, rule, hint, tally = str(said).splitlines()
    assert first == "03.average  not yet" and where.startswith("  on rank 0 of 2 (")
    assert where.endswith(" the gradient of 0.weight is 2.00 times the right value")
    assert rule.startswith("  Every rank should hold the sum of this gradient over all ranks, divided by the number of")
    assert hint.startswith("  This is a sum over the ranks and not the mean.")
    assert tally.startswith("  passed: 1 rank; failed: 2, 3, 4 and 5 ranks · ")
    assert tally.endswith(" · the same inputs again: seed=7")
    assert " ".join(said._render_traceback_()).split() == str(said).split()
    entry = progress.read(notes).entries[0]
    assert (entry.passed, entry.more["mistake"], entry.more["seed"]) == (False, "sum_for_mean", 7)


def test_an_interrupt_runs_nothing_again_and_is_no_attempt():
    runs = []

    def interrupted(inputs, seed):
        runs.append(len(inputs[0]))
        return TaskRun(failure=asdict(RunFailure(kind="interrupted", text="")))

    verdict = grade(KEY, right, runner=interrupted)
    assert len(runs) == 1 and runs[0] > 1  # one run of several cases
    assert not verdict.passed and not verdict.was_tried
    assert verdict.text("en") == "03.average  not yet\n  the check was interrupted\n  No attempt was counted."
    assert verdict.text("zh") == "03.average  还没通过\n  检查被中断\n  没有计入尝试次数。"


def test_an_interrupt_while_the_mistake_is_looked_for_leaves_what_is_wrong(ranks, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(named_mistakes, "with_mistakes", interrupted)
    verdict = grade(KEY, sums, seed=7, ranks=ranks)
    assert not verdict.was_interrupted and verdict.mistake is None
    assert "the gradient of 0.weight is 2.00 times the right value" in verdict.text("en")


def test_an_interrupt_of_the_judge_is_no_attempt_either():
    def interrupted(inputs, seed):
        raise KeyboardInterrupt

    assert grade(KEY, right, runner=interrupted).was_interrupted


def test_a_check_without_ranks_is_no_attempt(monkeypatch, notes, refused):
    def full(*_, **__):
        raise ValueError("no room")

    monkeypatch.setattr(run_on_ranks, "grader_ranks", full)
    assert str(refused(right)).splitlines()[1:] == ["  the ranks did not start: no room", "  No attempt was counted."]
    assert not notes.exists()


def test_a_line_too_long_for_a_notebook_is_broken_between_words(refused):
    def average_gradients(model):
        raise ValueError(" ".join(["a", "long", "story"] * 20))

    said = refused(average_gradients)
    lines = said._render_traceback_()
    assert max(map(len, str(said).splitlines())) > 76 >= max(map(len, lines))
    assert " ".join(lines).split() == str(said).split()
    assert lines[3].startswith("  ") and lines[0] == "03.average  not yet"


def test_in_chinese(refused):
    first, where, _, hint, _ = str(refused(sums, lang="zh", seed=7)).splitlines()
    assert first == "03.average  还没通过"
    assert where.startswith("  rank 0（共 2 个）") and where.endswith("：0.weight 的梯度是正确值的 2.00 倍")
    assert "这是各 rank 的和，而不是平均。" in hint


def test_what_is_not_written_says_so_and_no_more(refused):
    assert len(str(refused(not_written)).splitlines()) == 2


def average_gradient(model):
    """What the learner wrote, under a name that is nearly right."""
    right(model)


@pytest.mark.parametrize("submitted", [not_written, None])
def test_a_renamed_function_is_named(notes, submitted):
    with pytest.raises(NotYet, match="`average_gradient` is defined here: did you mean to call it `average_gradients`"):
        check(KEY, submitted, progress_file=notes)


def test_a_name_that_is_not_near_or_belongs_to_another_task_is_not_named():
    assert similar_name(tasks_of("03")[KEY], ["average_grads", "check"]) == "average_grads"
    assert similar_name(tasks_of("03")[KEY], ["check", "average_in_buckets", "mean", "x"]) == ""


def test_arguments_that_do_not_fit_are_named(refused):
    said = "calls average_gradients(model), but yours is average_gradients(model, group)"
    assert said in str(refused(lambda model, group: None))


def test_a_file_that_cannot_be_written_does_not_hurt(notes, capsys):
    notes.mkdir()
    assert check(KEY, right, progress_file=notes).passed
    said = capsys.readouterr().out
    assert said.count("\n") == 1 and "could not be noted" in said


def test_prints_are_shown(notes, capsys):
    def chatty(model):
        right(model)
        print("here", dist.get_world_size())

    check(KEY, chatty, progress_file=notes)
    assert set(capsys.readouterr().out.splitlines()) == {"ranks 0-4 │ here 5"}  # once a case


def test_one_seed_gives_the_same_inputs(ranks):
    values = []

    def runner(inputs, seed):
        values.append(inputs[0][0]["weights"]["0.weight"])
        return run_on_ranks.LocalRunner(tasks_of("03")[KEY], right, ranks=ranks)(inputs, seed)

    for seed in (1, 1, 2):
        assert grade(KEY, seed=seed, runner=runner).passed
    first, again, other = values[0], values[5], values[10]
    assert first.equal(again)
    assert first.shape != other.shape or not first.equal(other)


def test_seeds_are_fresh():
    seen = []

    def runner(inputs, seed):
        seen.append(seed)
        return TaskRun(failure={"kind": "not_written"})

    for _ in range(5):
        grade(KEY, runner=runner)
    assert len(set(seen)) > 1


@pytest.mark.parametrize("key", ["03.averge", "99.average", "", "03"])
def test_an_unknown_key_is_answered_with_those_there_are(key):
    with pytest.raises(ValueError, match="there is no"):
        check(key, right)


def test_an_unknown_language_is_refused():
    with pytest.raises(ValueError, match='there are "en" .* and "zh"'):
        check(KEY, right, lang="de")


def test_an_answer_that_no_rank_can_have_given_is_no_pass():
    forged = [
        TaskRun(outputs=[], events=[], marks=[]),
        TaskRun(outputs=[{"passed": True}], events=[[]], marks=[[]]),
        TaskRun(outputs=[None], events=[[{"rank": 0}]], marks=[[]]),
    ]
    for run in forged:
        verdict = grade(KEY, runner=lambda inputs, seed, run=run: run)
        assert not verdict.passed
        assert "gave no usable answer" in verdict.text()
