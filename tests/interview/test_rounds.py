"""Rounds: each is true (its proof runs, its numbers are computed), judged right, wrong and empty, in both languages."""

import contextlib
import io
import re
import sys
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from helpers.commands.broken_jobs import broken_jobs
from helpers.interview import quiz_command
from helpers.interview.round_attempt import DesignAttempt, MarkingAttempt, new_attempt
from helpers.interview.round_items import FOLDER, choose_round, number_value, read_plan, rounds
from helpers.interview.round_items import rounds as read
from helpers.interview.steps import Ask, Reply, Tell
from helpers.learner import progress
from helpers.ranks import RankError, Ranks
from tests.interview.quiz_cards import Clock, played
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


def mark(line, why=""):
    return Reply((line, why), "mark")


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("name", MARKED)
def test_marks_are_judged(name, language):
    one = MARKED[name]
    marks = [mark(place.lines[-1], "because") for place in one.mistakes]
    every = [str(index) for index in range(len(one.mistakes))]
    sheet = played(MarkingAttempt(one, language=language, now=Clock()), "", *marks, "", every)[-1].document
    assert sheet.points == sheet.most == 3 * len(one.mistakes) and "0:00" in sheet.summary[1]
    assert all(one.filled(place.why).in_(language) in sheet.text for place in one.mistakes)
    assert one.filled(one.model).in_(language) in sheet.markdown()
    assert played(MarkingAttempt(one, language=language), "", "")[-1].document.points == 0
    right = {line for place in one.mistakes for line in place.lines}
    wrong = next(n for n in range(1, len(one.lines) + 1) if n not in right | one.gaps)
    attempt = MarkingAttempt(one, language=language)
    steps = played(attempt, "", mark(wrong), ":hint", mark(one.mistakes[0].lines[-1]), "", [])
    told = [step.text for step in steps if isinstance(step, Tell)]
    assert one.mistakes[0].hint.in_(language) in told[1] and attempt.found == (0,)
    title = f"{one.lines[one.mistakes[0].lines[-1] - 1].strip()}`"
    comparison = next(step for step in steps if isinstance(step, Ask) and step.form == "agree")
    assert [option.value for option in comparison.options] == ["0"] and title in comparison.options[0].details
    rows = steps[-1].document.items
    assert steps[-1].document.points == 0 and [row.points for row in rows][-2:] == [-1, -1]


@pytest.mark.parametrize("name", MARKED)
def test_a_hint_is_of_a_place_that_is_not_found(name):
    one = MARKED[name]
    hints = [":hint"] * len(one.mistakes)
    steps = played(MarkingAttempt(one, language="en"), "", mark(one.mistakes[0].lines[0], "because"), *hints)
    told = [step.text for step in steps if isinstance(step, Tell)][1:]
    expected = [f"Hint: {place.hint.en}" for place in one.mistakes[1:]]
    assert told == [*expected, "There is no further hint."]
    rows = steps[-1].document.items
    assert sum(row.points for row in rows) == 2 - len(expected)  # the last, of nothing, costs nothing


def as_text(plan):
    parts = ("dp", "tp", "pp", "cp", "zero", "micro_batch", "num_microbatches", "num_chunks", "recompute", "precision")
    return " ".join(f"{part}={getattr(plan, part)}" for part in parts)


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("name", DESIGNS)
def test_answers_are_judged_by_the_predictors(name, language):
    good, bad = [], []
    for question in DESIGNS[name].questions:
        if question.number:
            true = number_value(question.number, question.numbers, question.scene)
            good.append(question.numbers[question.number].format(true))
            bad.append(good[-1].replace(good[-1][0], "9" + good[-1][0], 1))
        else:
            good.append(as_text(question.scene.plan))
            bad.append(f"dp={question.scene.cluster.world_size} micro_batch=1")
    steps = played(DesignAttempt(DESIGNS[name], language=language), "", *good)
    assert {step.style for step in steps if isinstance(step, Tell)} == {"intro", "right", ""}
    sheet, worst = steps[-1].document, played(DesignAttempt(DESIGNS[name], language=language), "", *bad)[-1].document
    assert sheet.points == sheet.most and worst.points == 0
    assert "{" not in sheet.text and ("放不下" if language == "zh" else "does not fit") in worst.text


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
    gap = next(iter(one.item.gaps))
    steps = played(one, "", mark(99), mark(gap), Reply(1, "unmark"))
    problems = [step.problem for step in steps if isinstance(step, Ask) and step.problem]
    assert ["There is no line '99'" in problems[0], "has nothing that could" in problems[1]] == [True, True]
    assert problems[2] == "Line 1 is not marked: nothing was taken back."


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
