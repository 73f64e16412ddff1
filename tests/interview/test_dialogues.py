"""The worked interviews: whole, in two languages, with numbers that are computed or stated; and their players."""

import io
import re
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest

from helpers.interview import quiz_command
from helpers.interview.cards import UNITS, check_problems, evaluate, has_number, rounds_to
from helpers.interview.dialogue_talk import DialogueTalk
from helpers.interview.dialogues import (
    CANDIDATE,
    INTERVIEWER,
    MARKS,
    dialogue,
    dialogue_html,
    dialogue_names,
    write_page,
)
from helpers.interview.steps import Ask, Tell
from helpers.learner.words import LANGUAGES
from tests.interview.quiz_cards import played
from tests.test_translations import badly_written

NAMES = ["pretrain-70b", "experts-1024", "rl-30b", "mfu-fell-8"]
ALL = [dialogue(name) for name in NAMES]
each = pytest.mark.parametrize("one", ALL, ids=NAMES)
MOST_WORDS, MOST_NUMBERS = 90, 3  # of a spoken turn
NO_NUMBERS = re.compile(r"Llama 3(?: 70B)?|× 10[⁰¹²³⁴⁵⁶⁷⁸⁹]+")  # a name, and a power of ten behind its digits
UNIT = r"(?:[BTM](?![\w/])| ?(?:[KMGT]i?B(?:/s)?|Gb/s|TFLOP/s|B|ms|µs|s|min|h|%)(?![\w/]))"
NUMBER = r"(?<![A-Za-z0-9_.,-])\d+(?:,\d{3})*(?:\.\d+)?"
TOKEN = re.compile(rf"(?:[tpdec]p )?{NUMBER}{UNIT}?")


def tokens(text):
    """Each number of a text with its unit or its axis, as it stands there: "8.8 s", "70B", "tp 8"."""
    return TOKEN.findall(NO_NUMBERS.sub("", text))


def values(texts):
    """The bare numbers of texts: 1,024 and 1024 are one."""
    return {float(found.replace(",", "")) for text in texts for found in re.findall(NUMBER, NO_NUMBERS.sub("", text))}


def backed(one):
    """Every number that a check computes or that somebody states."""
    return {check.says for check in one.verify} | {says for given in one.given for says in given.says}


def texts_and_cells(one, language):
    """What is spoken or written in sentences, and what stands in the cells of whiteboards."""
    notes = [text for note in one.scorecard for text in (note.criterion, note.evidence, note.comment)]
    texts = [text.in_(language) for text in (*(turn.text for turn in one.turns), *notes, one.why)]
    return texts, [cell for turn in one.turns if turn.board for row in turn.board.lines(language) for cell in row]


def without_proof(one, language):
    """Numbers that nothing backs. In a sentence the unit must agree too; arithmetic on a board repeats bare numbers."""
    known = backed(one)
    texts, cells = texts_and_cells(one, language)
    spoken = [token for text in texts for token in tokens(text) if token not in known]
    return spoken + sorted(values(cells) - values(known))


def test_there_are_these_four():
    assert dialogue_names() == NAMES


@each
def test_a_dialogue_is_whole(one):
    assert 10 <= len(one.turns) <= 20 and one.turns[0].who == INTERVIEWER and one.turns[-1].who == CANDIDATE
    assert sum(turn.interrupts for turn in one.turns) == 2
    assert "?" in one.turns[1].text.en and "？" in one.turns[1].text.zh  # the candidate begins with questions
    assert 4 <= len(one.scorecard) <= 6 and {note.mark for note in one.scorecard} <= set(MARKS)
    assert any(note.mark == "weak" for note in one.scorecard) and any(note.mark == "strong" for note in one.scorecard)
    assert "reject" in " ".join(turn.text.en for turn in one.turns if turn.who == CANDIDATE)


@each
@pytest.mark.parametrize("language", LANGUAGES)
def test_evidence_is_quoted_from_the_candidate(one, language):
    said = [turn.text.in_(language) for turn in one.turns if turn.who == CANDIDATE]
    quotes = [note.evidence.in_(language) for note in one.scorecard]
    # A quote may end with a full stop where the sentence went on.
    assert [quote for quote in quotes if not any(quote.rstrip(".。") in text for text in said)] == []


@each
def test_a_turn_can_be_said(one):
    long = {turn.text.en: len(turn.text.en.split()) for turn in one.turns}
    assert {text: count for text, count in long.items() if count > MOST_WORDS} == {}
    counted = {turn.text.in_(lang): tokens(turn.text.in_(lang)) for turn in one.turns for lang in LANGUAGES}
    assert {text: found for text, found in counted.items() if len(found) > MOST_NUMBERS} == {}


@each
def test_both_languages_say_the_same_numbers(one):
    pairs = [(tokens(turn.text.en), tokens(turn.text.zh)) for turn in one.turns]
    assert [(en, zh) for en, zh in pairs if set(en) != set(zh)] == []


@each
def test_the_chinese_is_written_as_chinese_is(one):
    assert [found for text in texts_and_cells(one, "zh")[0] for found in badly_written(text)] == []


@each
def test_numbers_are_what_their_functions_return(one):
    assert [sentence for check in one.verify for sentence in check_problems(one, check)] == []


@each
@pytest.mark.parametrize("language", LANGUAGES)
def test_every_number_is_computed_or_stated(one, language):
    assert without_proof(one, language) == []


@each
def test_a_number_without_proof_is_found(one):
    """Each number that is taken out of the checks is missed, unless somebody states it or another check has it."""
    for check in one.verify:
        fewer = replace(one, verify=tuple(other for other in one.verify if other.says != check.says))
        bare = values([check.says])
        if bare.isdisjoint(values(backed(fewer))):
            assert without_proof(fewer, "en") and without_proof(fewer, "zh"), check.says
    turn = replace(one.turns[1], text=replace(one.turns[1].text, en="It takes 987,654 s."))
    assert without_proof(replace(one, turns=(one.turns[0], turn, *one.turns[2:])), "en") == ["987,654 s"]


@each
def test_a_wrong_number_in_the_text_is_found(one):
    for check in one.verify:
        text = one.full_answer("en")
        wrong = re.sub(r"\d+", lambda digits: str(int(digits[0]) + 1), check.says, count=1)
        assert has_number(check.says, text) and not rounds_to(wrong, check.value)


@each
def test_who_states_a_number_says_it_first(one):
    wrong = []
    for given in one.given:
        speaker = given.by if given.by in (INTERVIEWER, CANDIDATE) else None
        for says in given.says:
            standing = re.compile(rf"(?<![A-Za-z0-9.,-]){re.escape(says)}(?![0-9A-Za-z]|[.,][0-9])")
            saying = [turn for turn in one.turns if standing.search(NO_NUMBERS.sub("", turn.full_text("en")))]
            if not saying or speaker and saying[0].who != speaker:
                wrong.append((speaker, says))
    assert wrong == []


FACTORS = UNITS | {"TB/s": 1e12, "Gb/s": 1e9, "TFLOP/s": 1e12, "%": 0.01}
SHORT = {"B": 1e9, "T": 1e12}  # directly behind a number: 70B parameters, 15T tokens
SIZED = re.compile(rf"(?P<number>{NUMBER})(?:(?P<short>[BT])(?!\w)| (?P<unit>[A-Za-zµ%]+(?:/s)?))?")


def worked_out(how):
    """The value of arithmetic with units, such as "3 × 141 GB / 400 GB/s", in bytes and seconds; None for words."""
    plain = SIZED.sub(lambda found: f"({found['number']} × {factor(found)!r})", how) if how else ""
    return evaluate(plain) if re.search(r"[×/+]|\d[^-]* - ", how) and re.fullmatch(r"[0-9.,+\-×/() ]+", plain) else None


def factor(found):
    """What the unit behind a number multiplies it with."""
    factors = SHORT[found["short"]] if found["short"] else FACTORS.get(found["unit"] or "", 1)
    return int(factors) if factors >= 1 else factors


@each
@pytest.mark.parametrize("language", LANGUAGES)
def test_arithmetic_on_a_board_comes_to_its_result(one, language):
    rows = [row for turn in one.turns if turn.board for row in turn.board.lines(language) if len(row) >= 3]
    wrong, worked = [], 0
    for *_, how, result in rows:
        value, printed = worked_out(how), SIZED.match(result)
        if value is None or not printed or "10²" in result or "10¹" in result:
            continue  # a power of ten, whose digits have a check
        digits = len(printed["number"].partition(".")[2])
        worked += 1
        if abs(float(printed["number"].replace(",", "")) - value / factor(printed)) > 0.5001 * 10**-digits:
            wrong.append((how, result, value))
    assert wrong == [] and worked >= 8


def test_arithmetic_is_worked_out_with_its_units():
    assert worked_out("3 × 141 GB / 400 GB/s") == pytest.approx(1.0575)
    assert worked_out("6 × 70.6B × 8,192 / 395.6 TFLOP/s") == pytest.approx(8.77, rel=1e-3)
    assert worked_out("21.6 s - 19.9 s") == pytest.approx(1.7)
    assert worked_out("tp 8 × pp 4") is worked_out("once per step") is None


# -- the reader ------------------------------------------------------------------------------------------------------
@pytest.fixture
def changed(tmp_path):
    """A function that reads a dialogue in which one text is replaced."""

    def read(old, new):
        source = (dialogue_folder() / "rl-30b.yaml").read_text(encoding="utf-8")
        assert old in source
        (tmp_path / "rl-30b.yaml").write_text(source.replace(old, new, 1), encoding="utf-8")
        return dialogue("rl-30b", folder=tmp_path)

    return read


def dialogue_folder():
    from helpers.interview.dialogues import FOLDER

    return FOLDER


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("id: rl-30b", "id: other", "`id` is 'other' but the file is named rl-30b.yaml"),
        ("who: candidate", "who: interviewer", "turn 2 is the candidate's; the two speak alternately"),
        ("who: candidate", "interrupts: true\n    who: candidate", "only the interviewer interrupts"),
        ("interrupts: true", "interrupts: 1", "write true, or leave it out"),
        ("mark: strong", "mark: great", "it must be one of strong, adequate, weak"),
        ("level: senior", "level: boss", "it must be one of junior, senior, staff"),
        ("      zh: 单池简单", "      zz: 单池简单", "`turns.text` must hold `en:` and `zh:`"),
        ("call: helpers.interview.cards.evaluate", "call: os.getcwd", "must be a dotted name under helpers."),
    ],
)
def test_a_file_that_is_wrong_is_answered_with_a_sentence(changed, old, new, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)):
        changed(old, new)


def test_an_unknown_name_is_answered_with_those_there_are():
    with pytest.raises(
        ValueError, match="no dialogue 'pretrain': the dialogues are pretrain-70b, experts-1024, rl-30b"
    ):
        dialogue("pretrain", "en")
    with pytest.raises(ValueError, match="没有名为 'x' 的对话"):
        dialogue("x", "zh")


@each
def test_the_learner_is_asked_before_each_turn_of_the_candidate(one):
    steps = played(DialogueTalk(one, language="en"), *["my answer"] * len(one.turns))
    told = [part for step in steps if isinstance(step, Tell) for part in step.parts if part.name != "own"]
    assert [part.text for part in told] == [turn.text.en for turn in one.turns]
    for before, step in zip(steps, steps[1:], strict=False):
        is_candidate = isinstance(step, Tell) and CANDIDATE in [part.name for part in step.parts]
        assert (isinstance(before, Ask) and before.form == "notes") == is_candidate
    last = [step for step in steps if isinstance(step, Ask)][-1]
    assert last.form == "ready" and [part for part in last.parts if part.name != "own"] == told
    assert steps[-1].document.text.endswith(one.why.en) and not steps[-1].can_save


# -- the page and the terminal ---------------------------------------------------------------------------------------
@each
@pytest.mark.parametrize("language", LANGUAGES)
def test_the_page_has_every_turn_and_the_scorecard(one, language, tmp_path):
    page = write_page(one, tmp_path / "x.html", language).read_text(encoding="utf-8")
    whole = ElementTree.fromstring(dialogue_html(one, language))
    shown = "".join(whole.itertext())
    for turn in one.turns:
        assert turn.text.in_(language) in shown
        assert all(cell in shown for row in (turn.board.lines(language) if turn.board else []) for cell in row)
    assert all(note.comment.in_(language) in shown for note in one.scorecard) and one.why.in_(language) in shown
    assert all(source.url in page for source in one.sources)
    assert page.startswith("<!doctype html>") and f'<html lang="{language}" class="dialogue">' in page


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """A function that runs the command with scripted input, and returns its exit code and what it printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "80")

    def start(*arguments, typed=""):
        monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
        code = quiz_command.main(list(arguments))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return start


def test_the_rest_can_be_shown_at_once_and_an_early_end_shows_nothing_more(run):
    one = ALL[0]
    code, out, _ = run("--dialogue", one.id, typed="a\n")
    assert code == 0 and "What the interviewer wrote down" in out
    joined = "".join(out.split())
    assert all("".join(text.split()) in joined for text in (*(turn.text.en for turn in one.turns), one.why.en))
    code, out, _ = run("--dialogue", one.id, typed="\nq\n")
    assert code == 0 and "What the interviewer wrote down" not in out
    assert "I need a few facts" in out and "Then I start with time" not in out


def test_the_command_lists_writes_a_page_and_answers_wrong_names(run, tmp_path):
    code, out, _ = run("--dialogue")
    assert code == 0 and all(name in out for name in NAMES) and "--dialogue pretrain-70b" in out
    code, out, _ = run("--dialogue", "rl-30b", "--page", "x.html", "--lang", "zh")
    assert code == 0 and "已写到 x.html" in out and "面试官" in (tmp_path / "x.html").read_text(encoding="utf-8")
    code, _, error = run("--dialogue", "rl")
    assert code == 2 and "the dialogues are pretrain-70b, experts-1024, rl-30b and mfu-fell-8" in error
    code, _, error = run("--dialogue", "rl-30b", "--page", "none/x.html")
    assert code == 2 and "none/x.html could not be written" in error
    code, _, error = run("--page", "x.html")
    assert code == 2 and "name it with --dialogue" in error
    code, _, error = run("--mock", "--dialogue", "rl-30b")
    assert code == 2 and "cannot be asked for together" in error
