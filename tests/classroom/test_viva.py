"""Questions about a learner's own code: which changes are worth one, and that the answer is what the check says."""

from __future__ import annotations

import ast
from dataclasses import replace

import pytest

from helpers.classroom import cli, viva
from helpers.classroom import viva as viva_page
from helpers.classroom.code_changes import deletions, replacements
from helpers.classroom.results import GradedSubmission, GradedTask
from helpers.classroom.submissions import cells_of, find_submissions
from helpers.grading.task import TaskRun
from tests.classroom import notebooks

CODE = '''def reduced(tensor, rank, size):
    """Its words."""
    work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    total = tensor.clone()
    total /= size
    if rank < size - 1:
        total += 1
    for step in range(
        size
    ):
        total = total * 2; step = 3
        right = (rank + 1) % size
        send(total, right)
    return total
'''


def changed(kind, code=CODE) -> dict[int, list[tuple[str, str]]]:
    """Line to (old, new)."""
    found: dict[int, list[tuple[str, str]]] = {}
    for change in kind(code, ast.parse(code).body):
        found.setdefault(change.line, []).append((change.old, change.new))
        ast.parse(change.changed(code))
        assert change.changed(code).count("\n") == code.count("\n"), "the numbers of the lines stay"
    return found


def test_a_line_goes_only_where_every_name_keeps_a_meaning():
    gone = {4: "work.wait()", 6: "total /= size", 14: "send(total, right)"}
    assert changed(deletions) == {line: [(text, "")] for line, text in gone.items()}


def test_what_an_object_sets_of_itself_stays():
    code = "class A:\n    def __init__(self, n):\n        self.n = n\n        self.ready(n)\n"
    assert list(changed(deletions, code)) == [4]


def test_a_piece_becomes_another_that_parses():
    found = changed(replacements)
    assert found[5] == [("tensor.clone()", "tensor")] and found[6] == [("total /= size", "total *= size")]
    assert set(found[7]) == {("rank < size - 1", "rank <= size - 1"), ("size - 1", "size + 1")}
    assert ("(rank + 1) % size", "(rank + 1)") in found[13] and ("rank + 1", "rank - 1") in found[13]


def test_letters_of_any_width_before_a_piece_do_not_shift_it():
    assert changed(replacements, "def f(a):\n    '''x'''\n    return '平均', a - 1\n") == {3: [("a - 1", "a + 1")]}


def test_lines_are_counted_as_python_counts_them():
    code = "def f(a):\r\n    a.zero()\r    b = 'x\x0cy'; c = b\n    send(a, c)\n    return b\n"
    assert [change.line for change in deletions(code, ast.parse(code).body)] == [2, 4]


def test_values_come_before_exceptions():
    def question(answer):
        return viva.VivaQuestion(key="", code="", line=1, text="", answer=answer, was_changed=True)

    raising, wrong = question("raised TypeError: no"), question("is 2.00 times the right value")
    assert viva.best_question([None, raising, wrong]) is wrong
    assert viva.best_question([raising, None]) is raising and viva.best_question([None]) is None


# -- the answers, with a check that is not run -------------------------------------------------------------------------
@pytest.fixture
def handed_in(tmp_path, lab_03):
    """A submission with two tasks, and its result: both passed."""
    start = "def start_equal(model):\n    for tensor in model.state_dict().values():\n        dist.broadcast(tensor, 0)"
    answers = {"03.average": notebooks.AVERAGE, "03.start": start}
    notebooks.write(tmp_path / "class" / "ada & co.ipynb", notebooks.handed_in(answers))
    (submission,) = find_submissions([tmp_path / "class"])
    states = {asked.key: "passed" if asked.key in answers else "missing" for asked in lab_03.tasks}
    tasks = tuple(GradedTask(key=key, state=state, points=1, max_points=1) for key, state in states.items())
    return submission, GradedSubmission(learner=submission.learner, file="", digest="1", lab="03_ddp", tasks=tasks)


@pytest.fixture
def fake(monkeypatch):
    """A check that tells of each notebook which lines of the average it lacks, and ranks that send one message."""
    ran = []

    def grade_one(submission, settings):
        (asked,) = settings.labs[0].tasks
        sources = [cell["source"] for cell in cells_of(submission.path.read_bytes())[0]]
        ran.append((asked.key, sources))
        is_same = any("all_reduce(parameter.grad)" in one and "/= dist" in one for one in sources)
        state = "passed" if is_same else "failed"
        graded = GradedTask(key=asked.key, state=state, points=0, max_points=1, text="it fails <b>")
        return GradedSubmission(learner=submission.learner, file="", tasks=(graded,))

    def run_plain_case(submission, settings, key, size):
        event = {"op": "all_reduce", "payload_bytes": 8, "group": "0", "group_ranks": range(size), "sequence": 0}
        event |= {"caller": "cell average:4", "start": 0.0, "end": 1.0, "dtype": "float64", "shape": [1]}
        events = [[[event | {"rank": rank}] * 13] for rank in range(size)]
        return TaskRun(events=events if key == "03.start" else [], calls=[[[{"call": "start_equal(model)"}]]] * size)

    monkeypatch.setattr(viva, "grade_one", grade_one)
    monkeypatch.setattr(viva, "run_plain_case", run_plain_case)
    return ran


def test_three_questions_of_two_kinds_about_what_passed(handed_in, fake, settings, tmp_path):
    asked = viva.questions_for(*handed_in, settings(tmp_path))
    assert len(asked) == 3 and {question.key for question in asked} == {"03.average", "03.start"}
    (sent,) = [question for question in asked if not question.was_changed]
    assert "On 3 ranks it is called as “start_equal(model)”" in sent.text
    assert sent.answer.startswith("1. all_reduce, float64 (1), 8 B (line 4)") and "… and 1 more" in sent.answer
    assert all(question.answer == "it fails <b>" for question in asked if question.was_changed)
    assert fake and all(len(sources) > 5 for _, sources in fake), "the rest of the notebook is there"


def test_nobody_is_asked_about_what_did_not_pass(handed_in, fake, settings, tmp_path):
    submission, result = handed_in
    failed = replace(result, tasks=tuple(replace(task, state="failed") for task in result.tasks))
    assert viva.questions_for(submission, failed, settings(tmp_path)) == []
    assert viva.questions_for(submission, replace(result, lab=""), settings(tmp_path)) == [] and not fake
    submission.path.write_text("no notebook")  # whatever stands in it, the others are asked
    assert viva.questions_for(submission, result, settings(tmp_path)) == []


@pytest.mark.parametrize(("lang", "says"), [("en", "what happens"), ("zh", "会发生什么")])
def test_the_pages_keep_the_answers_apart(lang, says, handed_in, fake, settings, tmp_path, capsys):
    code = viva_page.write_all([handed_in], settings(tmp_path, lang=lang), tmp_path / "viva", jobs=1)
    page = (tmp_path / "viva" / "01-ada___co.html").read_text(encoding="utf-8")
    answers = (tmp_path / "viva" / "answers.html").read_text(encoding="utf-8")
    assert code == 0 and "3 questions" in capsys.readouterr().out
    assert says in page and says in answers and "ada &amp; co" in page and f'lang="{lang}"' in page
    assert "it fails" not in page and "it fails &lt;b&gt;" in answers and "http" not in page


def test_a_learner_without_questions_gets_a_sentence(handed_in, settings, tmp_path):
    _, result = handed_in
    path = viva_page.write_page(tmp_path, 1, result, [], "en")
    assert "There is no question" in path.read_text()


def test_bad_input_is_a_sentence(tmp_path, capsys):
    assert cli.main(["viva", str(tmp_path / "nobody")]) == 1
    assert "there is no file or folder" in capsys.readouterr().err
    assert cli.main(["viva"]) == 1 and "Give a notebook or a folder" in capsys.readouterr().out


# -- the answers, in a sandbox -----------------------------------------------------------------------------------------
@pytest.mark.timeout(300)
def test_an_answer_is_what_the_check_says_of_the_changed_code(tmp_path, settings, lab_03):
    notebooks.write(tmp_path / "class" / "ada.ipynb", notebooks.handed_in({"03.average": notebooks.AVERAGE}))
    (submission,) = find_submissions([tmp_path / "class"])
    graded = GradedTask(key="03.average", state="passed", points=2, max_points=2)
    result = GradedSubmission(learner="ada", file="", digest="1", lab="03_ddp", tasks=(graded,))
    deleted, sent, replaced = viva.questions_for(submission, result, settings(tmp_path / "class"))
    assert deleted.text.startswith("Delete line") and "03.average  not yet" in deleted.answer
    assert "all_reduce, float64" in sent.answer and "(line 4)" in sent.answer
    assert "/=" in replaced.text and "*=" in replaced.text and "on rank" in replaced.answer
