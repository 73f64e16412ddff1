"""Rounds: each is true (its proof runs, its numbers are computed), judged right, wrong and empty, in both languages."""

import contextlib
import io
import re
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from helpers.commands.broken_jobs import broken_jobs
from helpers.interview import quiz_command
from helpers.interview.round_attempt import DesignAttempt, MarkingAttempt, choose_round, new_attempt, read_plan
from helpers.interview.round_items import FOLDER, number_value, rounds
from helpers.interview.round_items import rounds as read
from helpers.learner import progress
from helpers.ranks import RankError, Ranks
from helpers.widgets import RoundView
from tests.interview.quiz_cards import Clock
from tests.interview.shown_cells import missing


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """Rounds that are done are noted there."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


MARKED = {one.id: one for kind in ("debugging", "review") for one in rounds(kind)}
PROVEN = [name for name, one in MARKED.items() if one.proof]  # a broken job is proven by tests/commands/broken_jobs
DESIGNS = {one.id: one for one in rounds("design")}
NAMES = re.compile(
    r"`[^`]*`|\b(?:[a-z]{1,2}\d+|ZeRO-\d|1F1B|[AHBV]\d00s?|AdamW|Llama-3 \d+B|torch 2\.3|rank \d|PP \d|7)\b"
)


def prose(one):
    """What a person reads of a round, before braces are filled."""
    places = [text for place in getattr(one, "mistakes", ()) for text in (place.hint, place.why)]
    questions = [text for question in getattr(one, "questions", ()) for text in (question.text, question.why)]
    return [one.title, one.prompt, one.model, *places, *questions]


def typed_numbers(one):
    """Numbers in prose that are neither names nor in the text that is marked, nor computed."""
    known = set(re.findall(r"\d+(?:\.\d+)?", getattr(one, "text", "")))
    texts = [part for words in prose(one) for part in (words.en, words.zh)]
    return [n for text in texts for n in re.findall(r"\d+(?:\.\d+)?", NAMES.sub(" ", text)) if n not in known]


def test_there_are_as_many_as_promised():
    assert [len(rounds(kind)) >= least for kind, least in (("debugging", 4), ("review", 3), ("design", 3))] == [
        True
    ] * 3


@pytest.fixture
def anew():
    """Ranks whose operations are counted from 1, as in a log."""
    with Ranks(4, device="cpu", timeout=60, quiet=True) as pool:
        yield pool


def test_every_patient_of_the_zoo_is_a_debugging_round():
    assert set(MARKED) - set(PROVEN) == {one.name.replace("_", "-") for one in broken_jobs()}
    one = MARKED["patient-06"]
    assert (
        one.kind == "debugging" and one.lines[one.mistakes[0].lines[0] - 1].strip() == "dist.all_reduce(parameter.grad)"
    )


@pytest.mark.parametrize("name", PROVEN)
def test_the_proof_shows_what_is_wrong_and_prints_what_stands_in_the_log(name, anew):
    one, ranks = MARKED[name], anew
    program = one.text.partition("\n----\n")[0]
    names = {"torch": torch, "dist": dist, "re": re, "ranks": ranks, "RankError": RankError, "text": one.text}
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(one.proof, names | {"program": program})
    assert [line for line in out.getvalue().splitlines() if line not in one.lines] == []
    assert ("----" in one.text) == bool(out.getvalue())


@pytest.mark.parametrize("name", MARKED | DESIGNS)
def test_no_number_is_typed_and_one_that_is_planted_is_found(name):
    one = (MARKED | DESIGNS)[name]
    assert typed_numbers(one) == []
    for language in ("en", "zh"):
        text = getattr(one.prompt, language)
        planted = replace(one, prompt=replace(one.prompt, **{language: f"{text} 987.5"}))
        assert typed_numbers(planted) == ["987.5"]
    if "----" in getattr(one, "text", ""):  # a number of the log is what the program prints
        log = one.text.partition("----")[2]
        assert re.search(r"\d", log)


def test_a_round_leads_to_a_cell_that_is_there():
    assert [told for one in rounds() if (told := missing(one.id, one.shown_by))] == []


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("name", MARKED)
def test_marks_are_judged(name, language):
    one, clock = MARKED[name], Clock()
    everything = MarkingAttempt(one, language=language, now=clock).begin()
    for place in one.mistakes:
        everything.mark(place.lines[-1], "because")
    clock.forward(minutes=3)
    for place in everything.hand_in():
        everything.confirm_reason(place)
    sheet = everything.finish()
    assert sheet.points == sheet.most == 3 * len(one.mistakes) and "3:00" in sheet.summary[1]
    assert all(one.filled(place.why).in_(language) in sheet.text for place in one.mistakes)
    assert one.filled(one.model).in_(language) in sheet.markdown()
    nothing = MarkingAttempt(one, language=language).begin()
    assert nothing.hand_in() == () and nothing.finish().points == 0
    right = {line for place in one.mistakes for line in place.lines}
    wrong = MarkingAttempt(one, language=language).begin()
    wrong.mark(next(n for n in range(1, len(one.lines) + 1) if n not in right | one.gaps))
    assert wrong.hint() == one.mistakes[0].hint.in_(language)
    wrong.mark(one.mistakes[0].lines[-1])
    assert (
        wrong.hand_in() == (0,) and f"{one.lines[one.mistakes[0].lines[-1] - 1].strip()}`" in next(wrong.rows()).title
    )
    assert wrong.finish().points == 0 and [row.points for row in wrong.rows()][-2:] == [-1, -1]


@pytest.mark.parametrize("name", MARKED)
def test_a_hint_is_of_a_place_that_is_not_found(name):
    one = MarkingAttempt(MARKED[name], language="en").begin()
    one.mark(one.item.mistakes[0].lines[0], "because")
    hints = [one.hint() for _ in one.item.mistakes]
    assert hints == [place.hint.en for place in one.item.mistakes[1:]] + [""]
    assert sum(row.points for row in one.rows()) == 2 - len(hints[:-1])  # the last, of nothing, costs nothing


def as_text(plan):
    parts = ("dp", "tp", "pp", "cp", "zero", "micro_batch", "num_microbatches", "num_chunks", "recompute", "precision")
    return " ".join(f"{part}={getattr(plan, part)}" for part in parts)


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("name", DESIGNS)
def test_answers_are_judged_by_the_predictors(name, language):
    good, bad = (DesignAttempt(DESIGNS[name], language=language).begin() for _ in range(2))
    for question in good.item.questions:
        if question.number:
            true = number_value(question.number, question.numbers, question.scene)
            given = question.numbers[question.number].format(true)
            assert good.answer(given).points == 2 and bad.answer(given.replace(given[0], "9" + given[0], 1)).points == 0
        else:
            assert good.answer(as_text(question.scene.plan)).points == 3
            assert bad.answer(f"dp={question.scene.cluster.world_size} micro_batch=1").points == 0
    assert good.finish().points == good.sheet.most and bad.finish().points == 0
    assert "{" not in good.sheet.text and ("放不下" if language == "zh" else "does not fit") in bad.sheet.text


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("", "it sets none of dp, tp and pp"),
        ("dp=4", "it is for 4 GPUs, but the cluster has 8"),
        ("dp=8 edp=2", "'edp' is not one of dp, tp"),
        ("dp=8 ep=2", "ep=2 does not divide num_experts=1"),
        ("dp=x", "dp is 'x', and a whole number is expected"),
        ("dp=8 zero=5", "zero"),
        ("dp=8 num_microbatches=3", "a step has 512 sequences, but it trains 24"),
    ],
)
def test_what_is_no_plan_is_a_sentence(given, sentence):
    with pytest.raises(ValueError, match=f"is not a plan here: .*{re.escape(sentence)}"):
        read_plan(given, DESIGNS["eight-gpus"].scene, "en")


def test_names_and_lines_that_are_not_there_are_sentences():
    with pytest.raises(
        ValueError, match="There is no round 'x': give debugging, review or design, or one of only-rank-0"
    ):
        choose_round("x", "en")
    assert choose_round("方案设计").kind == "design" and new_attempt(choose_round("ddp-post")).item.kind == "review"
    one = MarkingAttempt(choose_round("debugging", seed=1), language="en")
    with pytest.raises(ValueError, match="No round is open"):
        one.mark(1)
    with pytest.raises(ValueError, match="There is no line '99'"):
        one.begin().mark(99)
    with pytest.raises(ValueError, match="has nothing that could be wrong"):
        one.mark(next(iter(one.item.gaps)))
    with pytest.raises(ValueError, match="Line 1 is not marked"):
        one.unmark(1)


@pytest.mark.parametrize(
    ("file", "old", "new", "sentence"),
    [
        (
            "marked",
            "lines: [if rank == 0 and",
            "lines: [optimizer",
            r"marked_rounds.yaml line \d+ \(only.*stands in 3 lines",
        ),
        ("marked", "kind: review", "kind: poetry", "`kind` is 'poetry'; it must be one of debugging, review"),
        ("design", "change: {seq:", "change: {colour:", "`change` has 'colour'; a follow-up changes network"),
        ("design", "cluster: 8 H100", "cluster: a cloud", "`scene.cluster` is 'a cloud'"),
        ("design", "number: states", "number: stars", "`number` is 'stars'"),
    ],
)
def test_a_wrong_file_is_told_in_one_sentence(tmp_path, file, old, new, sentence):
    for name in ("marked", "design"):
        text = (FOLDER / f"{name}_rounds.yaml").read_text(encoding="utf-8")
        (tmp_path / f"{name}_rounds.yaml").write_text(
            text.replace(old, new, 1) if name == file else text, encoding="utf-8"
        )
    with pytest.raises(ValueError, match=sentence):
        read(folder=tmp_path)


# -- in a terminal ---------------------------------------------------------------------------------------------------
def in_terminal(monkeypatch, tmp_path, capsys, typed, *arguments):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    assert quiz_command.main(["--round", *arguments]) == 0
    return capsys.readouterr().out


def test_a_marked_round_in_a_terminal(monkeypatch, tmp_path, capsys):
    typed = "\n99\nh\n3\n-3\n16 only rank 0 calls it\n\nmaybe\ny\nsheet.md\n"
    said = in_terminal(monkeypatch, tmp_path, capsys, typed, "only-rank-0-reports")
    for sentence in (
        "There is no line '99'",
        "Hint: Count",
        "Marked so far: 3.",
        "Nothing is marked.",
        "'maybe' is not an answer",
    ):
        assert sentence in said
    assert "Points: 2 of 3" in said and "marked: only rank 0 calls it" in said and "Kept as sheet.md." in said
    model = said.partition("Model answer\n\n")[2].partition("\n\nNext steps")[0].splitlines()
    assert len(model) > 1 and not any(line.startswith(" ") for line in model)  # prose does not hang as rows do
    assert "## Model answer" in (tmp_path / "sheet.md").read_text(encoding="utf-8")


def test_a_design_round_in_chinese_keeps_what_was_done_when_it_is_ended(monkeypatch, tmp_path, capsys):
    said = in_terminal(monkeypatch, tmp_path, capsys, "\n128.5\ndp=3\nq\n", "eight-gpus", "--lang", "zh")
    assert "答对了：是 128.5 GB" in said and "它用 3 张卡，而这里有 8 张" in said
    assert "得分：2 / 10" in said and said.count("未作答") == 3


def test_a_round_done_to_its_end_is_noted_and_the_best_is_listed(monkeypatch, tmp_path, capsys):
    path = tmp_path / "home" / ".rank-by-rank" / "progress.jsonl"
    in_terminal(monkeypatch, tmp_path, capsys, "\n16 only rank 0 calls it\n\ny\n\n", "only-rank-0-reports")
    in_terminal(monkeypatch, tmp_path, capsys, "\n1\n\n\n", "only-rank-0-reports")
    in_terminal(monkeypatch, tmp_path, capsys, "\n128.5\nq\n", "eight-gpus")
    first, second = progress.read(path).entries
    assert (first.kind, first.key, first.passed) == ("round", "only-rank-0-reports", True)
    assert (first.more["points"], first.more["most"], second.more["points"], second.passed) == (3, 3, 0, False)
    assert 0 <= first.more["seconds"] < 600
    path.write_text(path.read_text() + '{"time": "2026-01-01", "kind": "round", "key": "x", "passed": true}\n')
    said = " ".join(in_terminal(monkeypatch, tmp_path, capsys, "").split())
    assert said.count("best ") == 1 and "best 3 of 3 in 0:0" in said and "done 2 times" in said


def test_a_disk_that_cannot_be_written_costs_no_sheet(monkeypatch, tmp_path, capsys):
    (tmp_path / "home").write_text("a file where the home should be")
    said = in_terminal(monkeypatch, tmp_path, capsys, "\n\n\n", "only-rank-0-reports")
    assert "could not be noted" in said and "Points: 0 of 3" in said


def test_rounds_are_listed_and_an_unknown_one_is_a_sentence(monkeypatch, tmp_path, capsys):
    assert all(one.id in in_terminal(monkeypatch, tmp_path, capsys, "") for one in rounds())
    assert quiz_command.main(["--round", "nonsense"]) == 2
    assert "There is no round 'nonsense'" in capsys.readouterr().err


# -- in a notebook, without a front end --------------------------------------------------------------------------------
def test_the_widget_marks_compares_and_shows_the_sheet(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    view = RoundView("accumulated-and-repeated", language="en")
    assert view.text.startswith("Choose a round") and not view.reasons.children
    view.buttons["begin"].click()
    view.buttons["hint"].click()
    assert "Hint: Compare" in view.feedback.value
    view.lines.children[7].value = True
    view.lines.children[3].value = view.lines.children[0].value = True
    view.lines.children[0].value = False
    view.reasons.children[1].value = "means add up"
    assert [field.line for field in view.reasons.children] == [4, 8] and view.attempt.marks[8] == "means add up"
    view.buttons["hint"].click()
    assert "There is no further hint" in view.feedback.value  # both are found
    view.buttons["hand_in"].click()
    assert [len(box.children) for box in view.reasons.children] == [2, 2]
    assert "model answer: Gradients add up" in view.reasons.children[0].children[0].value
    view.reasons.children[0].children[1].children[0].value = True
    view.buttons["sheet"].click()
    assert view.sheet.points == 4 and "<table" in view.sheet_page.outputs[0]["data"]["text/html"]
    view.buttons["save"].click()
    assert "Saved as round.md" in view.note.value and (tmp_path / "round.md").exists()
    view.buttons["again"].click()
    assert view.attempt.stage == "ready" and not view.attempt.marks


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_widget_asks_judges_and_refuses_in_each_language(language):
    view = RoundView("eight-gpus", language=language).begin()
    view.field.value = "many"
    view.buttons["answer"].click()
    assert 'role="alert"' in view.note.value and len(view.attempt.answers) == 0
    view.answer("128.5 GB")
    view.answer("dp=8")
    assert (
        "2 of 4 · " if language == "en" else "第 2 / 4 题 · "
    ) in view.feedback.value  # the third is asked meanwhile
    assert (
        'data-right="false"' in view.feedback.value
        and ("放不下" if language == "zh" else "not fit") in view.feedback.value
    )
    for part in (view.prompt, view.feedback, view.note):
        ElementTree.fromstring(f"<div>{part.value}</div>")
    view.buttons["finish"].click()
    assert view.sheet.points == 2 and ("未作答" if language == "zh" else "no answer") in view.text
    assert view._repr_mimebundle_()["text/plain"] == RoundView.TEXT
