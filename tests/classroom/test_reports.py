"""CSV files, the page, the state that a run resumes from."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.classroom import cli, reports
from helpers.classroom.cli import own_progress_table
from helpers.classroom.grade import grade_all, open_state
from helpers.classroom.reports import report_html, write_tables
from helpers.classroom.results import (
    LOOK,
    Flag,
    GradedSubmission,
    GradedTask,
    WrittenAnswer,
    cleaned,
    flags_of,
    flags_summary,
    kept_flags,
    sorted_flags,
    submission_from_json,
    submission_to_json,
)
from helpers.classroom.similarity import SimilarPair
from helpers.classroom.submissions import find_submissions
from helpers.learner.progress import record
from tests.classroom import notebooks
from tests.timing import assert_one_of_three_is_within

HINT = "all_reduce adds up. For the mean, divide by the number of ranks."
START = GradedTask(key="03.start", state="passed", points=1.0, max_points=1.0, text="03.start  passed")
AVERAGE = GradedTask(key="03.average", state="failed", points=0.0, max_points=2.0, mistake="sum_for_mean", hint=HINT)
WRITTEN = WrittenAnswer(grade_id="explain", max_points=3.0, text="Because <b>1/28</b>.")
ADA = GradedSubmission(
    learner="ada", file="ada.ipynb", digest="1", lab="03_ddp", tasks=(START, AVERAGE), written=(WRITTEN,), seconds=3.0
)
FLAG = Flag(key="03.start", location="cell start, line 4", reason="it uses the network (socket)", certainty="certain")
FLAGGED = (replace(ADA.tasks[0], flags=(FLAG,)), ADA.tasks[1])
BOB = replace(ADA, learner="4711", name="Bob & Co", source="moodle", tasks=FLAGGED)
EVE = replace(ADA, learner="=1+1", problems=("It is not a notebook.",), tasks=())


def lines(path: Path) -> list[list[str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


def test_gradebooks_get_the_columns_that_they_import(tmp_path):
    write_tables([ADA, BOB], tmp_path, {})
    moodle, canvas = lines(tmp_path / "moodle.csv"), lines(tmp_path / "canvas.csv")
    assert moodle[0][:6] == ["Identifier", "Full name", "ID number", "Username", "Grade", "Maximum grade"]
    assert moodle[1][:5] == ["", "", "ada", "ada", "1"]
    assert moodle[2][:3] == ["Participant 4711", "Bob & Co", ""]
    assert canvas[0] == ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", "03_ddp"]
    assert canvas[1][0].strip() == "Points Possible" and canvas[1][-1] == "3"
    assert canvas[2] == ["ada", "", "ada", "ada", "", "1"]


def test_points_by_task_and_room_for_what_a_person_grades(tmp_path):
    write_tables([ADA, BOB], tmp_path, {"ada": {"03.start": 1, "03.average": 6}})
    head, ada, bob = lines(tmp_path / "grades.csv")
    assert [dict(zip(head, one, strict=True))["attempts"] for one in (ada, bob)] == ["7", "–"]
    assert dict(zip(head, ada, strict=True))["03.average"] == "0"
    assert dict(zip(head, ada, strict=True))["03_ddp.explain"] == ""
    assert "uses the network" in dict(zip(head, bob, strict=True))["remarks"]


def test_the_page_shows_each_flag_once_the_surest_first_and_how_sure_it_is():
    look = Flag(key="03.start", location="cell start, line 9", reason="it uses ‹x›", certainty=LOOK)
    flags = sorted_flags([look, FLAG, replace(FLAG, certainty=LOOK), look])
    assert flags == (FLAG, look)
    one = replace(ADA, tasks=(replace(ADA.tasks[0], flags=flags), ADA.tasks[1]))
    text = report_html([one], title="Class", isolation_text="", rubrics={}, is_complete=True, attempts={}, pairs=())
    row = "<td>03.start</td><td>cell start, line 4</td><td>it uses the network (socket)</td><td>certain</td>"
    assert row in text and "⚑ certain" in text and "A flag takes no points" in text
    assert submission_from_json(submission_to_json(one)) == one and one.points == 1


@pytest.mark.parametrize("name", ["=1", "+1", "-1", "@x", " =1", "\t=1", "＝1", "\n@x"])
def test_no_cell_begins_like_a_formula(name, tmp_path):
    write_tables([replace(ADA, learner=name, name=name, file=name, problems=(name,))], tmp_path, {})
    for file in ("grades.csv", "moodle.csv", "canvas.csv"):
        cells = [cell for row in lines(tmp_path / file) for cell in row]
        assert not [cell for cell in cells if cell.strip()[:1] in tuple("=+-@＝")] and f"'{name}" in cells


def test_three_thousand_flags_are_counted_and_the_first_are_named(tmp_path):
    flags = [replace(FLAG, location=f"cell start, line {line}") for line in range(1, 3_001)]
    kept, more = kept_flags(flags, 100)
    one = replace(ADA, tasks=(replace(ADA.tasks[0], flags=kept), ADA.tasks[1]), more_flags=more)
    summary = "3,000 certain (start:1, start:2, start:3, start:4, start:5, start:6 and 2,994 more)"
    assert flags_summary(flags_of(one), more) == summary
    text = report(one)
    assert text.count("it uses the network") < 50 and "and 2,980 more flags" in text
    assert len(reports.terminal_table([one], {})) < 400
    assert submission_from_json(json.loads(json.dumps(submission_to_json(one)))) == one


def test_what_a_learner_wrote_is_made_safe_before_it_is_stored(tmp_path):
    bad = "\x1b[2J\u202e\ud800"
    flag, task = replace(FLAG, location=bad, reason=bad), replace(ADA.tasks[0], text=bad, hint=bad)
    written = (WrittenAnswer(grade_id="explain", max_points=3, text=bad),)
    one = replace(ADA, file=bad, problems=(bad,) * 50, notes=(bad,), written=written)
    one = cleaned(replace(one, tasks=(replace(task, flags=(flag,)),)))
    open_state(tmp_path, 5).add(one)
    text = (tmp_path / "state.jsonl").read_text(encoding="utf-8") + report(one) + reports.terminal_table([one], {})
    write_tables([one], tmp_path, {})
    assert not [sign for sign in bad if sign in text and not sign.isprintable()] and "and 30 more" in text


def report(*results: GradedSubmission, **more) -> str:
    own = {"isolation_text": "Shut in.", "rubrics": {"03_ddp.explain": "1 point"}, "is_complete": True}
    return report_html(results, title="Class", **own | {"attempts": {}, "pairs": ()} | more)


def test_the_page_has_marks_in_words_hints_rubrics_and_nothing_from_elsewhere():
    text = report(ADA, BOB, is_complete=False)
    assert "✓ 1/1 <small>passed</small>" in text and "✗ 0/2 <small>failed</small>" in text
    assert f"2 × {HINT}" in text and "1 point" in text and "to be graded by hand" in text.lower()
    assert "Bob &amp; Co" in text and "&lt;b&gt;1/28&lt;/b&gt;" in text and "<b>1/28" not in text
    assert "interrupted" in text and "http" not in text and "<script" not in text


def test_the_page_begins_with_flags_their_lines_and_attempts():
    table = report(ADA, BOB, attempts={"ada": {"03.start": 1, "03.average": 6}}).split("</table>")[0]
    assert '<td>1 certain (start:4)</td><td class="number">–</td>' in table
    assert '<td>–</td><td class="number">7</td>' in table and "attempts: 6" in table


def test_similar_answers_stand_side_by_side_and_accuse_nobody():
    pair = SimilarPair(key="03.average", learners=("ada", "4711"), share=0.914, texts=("a < b", "c < d"))
    text = report(ADA, BOB, pairs=[pair])
    assert "03.average: ada and Bob &amp; Co <small>91% of the pieces equal</small>" in text
    assert "<pre>a &lt; b</pre><pre>c &lt; d</pre>" in text and "accuses nobody" in text
    assert "And 5 more" in report(ADA, BOB, pairs=[pair] * 105) and "accuses" not in report(ADA, BOB)


def test_words_are_sorted_by_question_and_stand_with_their_learner_too():
    first = WrittenAnswer(grade_id="explain", max_points=3, text="First.")
    second = WrittenAnswer(grade_id="why", max_points=2, text="Second.")
    silent = WrittenAnswer(grade_id="why", max_points=2, text=" YOUR ANSWER HERE")
    text = report(replace(ADA, written=(first, second)), replace(BOB, written=(first, silent)))
    by_hand, verdicts = text.split("<h2>Verdicts</h2>")
    one, other = by_hand.split("To be graded by hand: ")[1:]
    assert one.count("First.") == 2 and "Second." not in one and "1 point" in one
    assert other.count("Second.") == 1 and "(nothing written): Bob &amp; Co" in other
    assert verdicts.count("First.") == 2 and verdicts.count("Second.") == 1


def test_the_terminal_shows_one_table():
    wide = replace(ADA, learner="张伟\x1b[2J")
    attempts = {"ada": {"03.start": 1, "03.average": 6}}
    head, ada, bob, other = reports.terminal_table([ADA, BOB, wide], attempts).splitlines()
    assert head.split() == ["learner", "points", "start", "average", "attempts", "flags"]
    assert ada.split() == ["ada", "1/3", "✓", "✗", "7", "–"]
    assert bob.split("  ")[0] == "Bob & Co" and bob.endswith("–         1 certain (start:4)")
    assert other.startswith("张伟\\x1b[2J  1/3"), "a name steered the terminal, or its width is wrong"
    assert "03.start" in reports.terminal_table([ADA, replace(EVE, tasks=(replace(ADA.tasks[0], key="01.shift"),))], {})


def test_flags_come_the_surest_first_with_their_lines():
    def flag(sure, place):
        return Flag(key="03.average", location=place, reason="uses it", certainty=sure)

    flags = [flag("look", f"cell average, line {line}") for line in (15, 9)]
    flags += [flag("certain", "cell 7, line 2"), flag("look", "")]
    assert flags_summary(flags) == "1 certain (7:2), 3 look (average:9, average:15)" and flags_summary([]) == "–"
    assert flags_of(BOB)[0].location == "cell start, line 4" and not flags_of(ADA)


def test_a_result_goes_to_disk_and_back(tmp_path):
    assert submission_from_json(json.loads(json.dumps(submission_to_json(BOB)))) == BOB
    open_state(tmp_path, 5).add(BOB)
    with open(tmp_path / "state.jsonl", "a") as file:
        file.write('{"learner": "torn')
    state = open_state(tmp_path, None)
    assert state.seed == 5 and state.done == {"4711": BOB}
    state.add(ADA)
    assert open_state(tmp_path, 5).done == {"4711": BOB, "ada": ADA}
    assert os.stat(tmp_path / "state.jsonl").st_mode & 0o077 == 0, "others could read the seed"


def test_another_seed_in_the_same_folder_is_refused(tmp_path):
    open_state(tmp_path, 5)
    with pytest.raises(ValueError, match="another seed"):
        open_state(tmp_path, 6)


def test_what_is_graded_is_not_graded_again_unless_the_file_changed(tmp_path, settings):
    folder = tmp_path / "class"
    folder.mkdir()
    (folder / "ada.ipynb").write_text(json.dumps({"cells": [{"cell_type": "markdown", "source": "hello"}]}))
    (folder / "bob.ipynb").write_text("text")
    state, told = open_state(tmp_path / "out", 5), []

    def run() -> list[str]:
        told.clear()
        again, submissions = open_state(state.path.parent, None), find_submissions([folder])
        grade_all(submissions, settings(folder), again, jobs=2, on_graded=lambda one, *_: told.append(one.learner))
        return sorted(told)

    assert run() == ["ada", "bob"]
    assert run() == ["bob"], "a file that cannot be read is looked at again"
    (folder / "ada.ipynb").write_text(json.dumps({"cells": [{"cell_type": "markdown", "source": "more"}]}))
    assert run() == ["ada", "bob"]


@pytest.mark.parametrize(("begins", "num_graded"), [("2 submissions.", 0), ("[1/2]", 1)])
def test_ctrl_c_leaves_a_report_a_sentence_and_no_process(tmp_path, begins, num_graded):
    """Also while the process from which sandboxes are forked still imports torch and the labs."""
    folder = tmp_path / "class"
    (folder / "x").mkdir(parents=True)
    (folder / "a.ipynb").write_text("text")
    source = "import time\ndef average_gradients(model):\n    time.sleep(10**6)"
    notebooks.write(folder / "b.ipynb", notebooks.handed_in({"03.average": source}))

    def seconds_to_end(attempt: int) -> float:
        out = tmp_path / f"out{attempt}"
        command = notebooks.grade_command(folder, out, "--jobs", "1")
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            for line in process.stdout:
                if line.startswith(begins):
                    pressed = time.monotonic()
                    process.send_signal(signal.SIGINT)
                    break
            rest = process.stdout.read()
            took = time.monotonic() - pressed
        assert process.returncode == 130 and f"Interrupted: {num_graded} of 2 are graded" in rest
        assert "Traceback" not in rest and "interrupted" in (out / "report.html").read_text()
        return took

    assert_one_of_three_is_within(1.0, seconds_to_end)


def test_nothing_to_grade_is_a_sentence(tmp_path, capsys):
    assert cli.main([str(tmp_path / "nobody")]) == 1
    assert "there is no file or folder" in capsys.readouterr().err
    assert cli.main([]) == 1
    assert cli.main([str(tmp_path)]) == 1
    (tmp_path / "seed").write_text("many")
    (tmp_path / "a.ipynb").write_text("{}")
    assert cli.main([str(tmp_path / "a.ipynb"), "--seed-file", str(tmp_path / "seed"), "--lab", "03_ddp"]) == 1
    assert cli.main([str(tmp_path / "a.ipynb"), "--lab", "99_none"]) == 1


def test_the_weakest_isolation_needs_the_option_that_names_its_risk(tmp_path, monkeypatch, capsys):
    """On a machine that isolates nothing, and where a teacher asks for it."""
    (tmp_path / "a.ipynb").write_text("text")
    options = [str(tmp_path / "a.ipynb"), "--lab", "03_ddp", "--out", str(tmp_path / "out")]
    assert cli.main([*options, "--rung", "plain"]) == 1 and cli.RISK in capsys.readouterr().err
    monkeypatch.setattr(cli.isolation, "strictest_available", lambda: "plain")
    assert cli.main(options) == 1
    assert "learners' code would run as you" in capsys.readouterr().err and not (tmp_path / "out").exists()
    assert cli.main([*options, cli.RISK]) == 0 and "no JSON" in capsys.readouterr().out


def test_who_handed_in_something_else_has_missed_the_lab_of_the_others(tmp_path, lab_03):
    unread = replace(EVE, lab="", tasks=())
    for results, most in (([ADA, unread], 21), ([unread], 0), ([ADA, replace(BOB, lab="01_collectives"), unread], 0)):
        assert cli.with_tasks(results, (lab_03,))[-1].max_points == most


def test_mine_shows_each_lab_and_what_comes_next(tmp_path):
    path = tmp_path / "progress.jsonl"
    assert "Next: 01.cost, in labs/01_collectives.ipynb." in own_progress_table(path)
    record("check", "03.start", False, path=path)
    record("check", "03.start", True, path=path)
    record("check", "03.average", False, path=path)
    text = own_progress_table(path)
    row = next(line for line in text.splitlines() if line.startswith("03_ddp"))
    assert "1 of 7" in row and " 3 " in row and "start ✓" in row and "average ✗" in row and "buckets –" in row
