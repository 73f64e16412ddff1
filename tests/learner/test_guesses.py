"""The declared answers: well written, each asked once and revealed after it, and given away nowhere before."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import nbformat
import pytest

from helpers.learner.guesses import questions as files
from helpers.learner.guesses.calibration import format_answer
from helpers.learner.guesses.questions import Declaration, all_declarations, declarations_in, key_of, make_question
from tests.guess_leaks import calls, given_away, leaks

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
CHAPTERS = [path for path in NOTEBOOKS if path.stem[:2].isdigit()]
# A number that is as large as the answer and counts another thing: AdamW's two moments, in the error of a full card;
# what eight GPUs lost; the states between two steps, which station B says are fewer at the peak.
COINCIDENCES = {
    "05.offload": "8.18 MiB",
    "05.few_tokens": "16 B",
    "11.mfu": "29 % to 45 %",
    "14.factor": "4 times the mea",
    "interview.idle": "43 %    operatio",
}


@cache
def read(path: Path):
    return nbformat.read(path, 4)


def test_the_files_are_written_well_and_named_as_their_chapter():
    all_declarations()
    names = {path.stem for path in files.FOLDER.glob("*.yaml")}
    assert names <= {path.stem for path in NOTEBOOKS}


def test_every_declared_question_has_its_chinese():
    lacking = [key for key, one in all_declarations().items() if not one.zh]
    assert not lacking


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_is_declared_is_asked_once_and_revealed_after_it(path):
    declared = {one.key for one in declarations_in(path.stem.partition("_")[0])}
    assert not wrongly_asked(read(path), declared, set(all_declarations()))


def wrongly_asked(notebook, declared: set[str], known: set[str]) -> list[str]:
    """What is wrong with the guesses of a notebook. declared: those of its chapter; known: those of all chapters."""
    found = calls(notebook)
    guesses, reveals = ([one for one in found if one.name == name] for name in ("guess", "reveal"))
    places: dict[str, list[int]] = {}
    for one in guesses:
        places.setdefault(one.key, []).append(one.cell)
    wrong = [f"{key} is asked {len(places.get(key, []))} times" for key in declared if len(places.get(key, [])) != 1]
    wrong += [f"{one.key} is not declared" for one in found if one.key not in known]
    wrong += [f"{one.key} is no key of this chapter" for one in guesses if one.key in known - declared]
    shown = {one.key: one.cell for one in reversed(reveals)}
    wrong += [f"{key} is never revealed" for key in places if key not in shown]
    wrong += [
        f"{key} is revealed before it is asked" for key, cell in shown.items() if cell < min(places.get(key, [0]))
    ]
    return wrong + [f"{one.key}: {one.name} is not the last line of its cell" for one in found if not one.is_last]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_nothing_before_a_guess_gives_its_answer_away(path):
    found = spoiled(read(path), {one.key: one for one in declarations_in(path.stem.partition("_")[0])})
    for key in COINCIDENCES.keys() & found.keys():
        found[key] = [one for one in found[key] if COINCIDENCES[key] not in one]
    assert not {key: places for key, places in found.items() if places}


def spoiled(notebook, known: dict[str, Declaration]) -> dict[str, list[str]]:
    found = calls(notebook)
    shown = {one.key: one.cell for one in reversed(found) if one.name == "reveal"}
    asked = [one for one in found if one.name == "guess" and one.key in known]
    every = {one.key: leaks(notebook, one, known[one.key], shown.get(one.key)) for one in asked}
    return {key: places for key, places in every.items() if places}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_each_question_can_have_its_declared_answer(path):
    wrong = []
    for cell in read(path).cells:
        for node in ast.walk(parsed(cell)) if cell.cell_type == "code" else ():
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "guess":
                literal = {one.arg: ast.literal_eval(one.value) for one in node.keywords if one.arg != "path"}
                literal.pop("default", None)
                wrong += [make_question(ast.literal_eval(node.args[0]), **literal).wrong]
    assert not [one for one in wrong if one]


def parsed(cell):
    try:
        return ast.parse(cell.source)
    except SyntaxError:
        return ast.Module(body=[], type_ignores=[])


# -- the tests above can fail ------------------------------------------------------------------------------------------
SEVEN = Declaration(key="77.bytes", answer=7.0, zh="多少？", spoils=("four and one and two",))
CHOICE = Declaration(key="77.grow", answer="nothing: the loss falls", zh="？")
ORDER = Declaration(key="77.walk", answer=("gather", "compute", "free"), zh="？")
ASK = 'guess("bytes per parameter", unit="B", kind="memory", key="77.bytes")'
SHOW = 'reveal("77.bytes", predicted=7.0)'
RESULT = 'reveal("77.bytes")'
WHY = "<details><summary>Why?</summary>\n\nSeven bytes.\n\n</details>"


def chapter(*cells, outputs=()):
    """Cells as texts, code where they call something; the first code cell has these outputs."""
    made = nbformat.v4.new_notebook()
    for text in cells:
        is_code = text.startswith(("guess(", "reveal(", "show", "x =", "# seven", "ZeroExplorer"))
        made.cells.append((nbformat.v4.new_code_cell if is_code else nbformat.v4.new_markdown_cell)(text))
    first = next(cell for cell in made.cells if cell.cell_type == "code")
    first.outputs = [nbformat.v4.new_output("stream", text=text) for text in outputs]
    return made


LEAKS = ("7 B", "7 bytes", "seven bytes", "7.0 B", "**7** bytes", "7\u00a0B", "7-byte", "0.007 kB", "Seven bytes")


@pytest.mark.parametrize("leak", [*LEAKS, "7 字节", "七字节", "four and one and two"])
def test_a_planted_leak_is_found_wherever_it_stands(leak):
    text = f"A rank holds {leak} then."
    known = {"77.bytes": SEVEN}
    assert spoiled(chapter(f"# {text}", ASK, RESULT), known)
    assert spoiled(chapter(text, ASK, RESULT), known)
    assert spoiled(chapter(f'x = 1  # "{text}"', ASK, RESULT), known)
    assert spoiled(chapter("show(1)", ASK, RESULT, outputs=[text]), known)
    assert spoiled(chapter(ASK, text, RESULT), known) and spoiled(chapter(ASK, RESULT, f"Why? {text}"), known)
    assert not spoiled(chapter("# A", ASK, RESULT, f"<details><summary>Why?</summary>\n\n{text}\n\n</details>"), known)
    assert not spoiled(chapter(ASK, RESULT, WHY, f"## B\n\n{text}"), known)


@pytest.mark.parametrize(
    "cell",
    [SHOW, 'reveal("77.bytes", predicted=3 + 4)', f"x = 1\nassert x == [7.0]\n{RESULT}", f"# seven bytes\n{RESULT}"],
)
def test_the_code_of_the_result_holds_no_answer(cell):
    assert spoiled(chapter("show(1)", ASK, cell), {"77.bytes": SEVEN})
    folded = chapter("show(1)", ASK, cell)
    folded.cells[2].metadata["jupyter"] = {"source_hidden": True}
    assert not spoiled(folded, {"77.bytes": SEVEN})
    assert not spoiled(chapter("show(1)", ASK, 'x = 7\nreveal("77.bytes", measured=x)'), {"77.bytes": SEVEN})


def test_a_choice_or_another_unit_in_the_code_of_the_result_is_found():
    ask = ASK.replace("77.bytes", "77.grow")
    assert spoiled(chapter(ask, f'reveal("77.grow", measured="{CHOICE.answer}")'), {"77.grow": CHOICE})
    ask, six = ASK.replace('unit="B"', 'unit="MB"'), Declaration(key="77.bytes", answer=6.0, zh="？")
    assert spoiled(chapter(ask, 'x = (6e6, 1)\nreveal("77.bytes")'), {"77.bytes": six})


def test_an_explorer_that_shows_the_answer_is_found(monkeypatch):
    from helpers import widgets

    class LeakyExplorer:
        TEXT, text, saved = "[widget]", "each rank holds 7.00 B", None

    monkeypatch.setattr(widgets, "ZeroExplorer", LeakyExplorer)
    from tests import guess_leaks

    guess_leaks._explorer.cache_clear()
    found = spoiled(chapter("ZeroExplorer()", ASK, RESULT), {"77.bytes": SEVEN})
    guess_leaks._explorer.cache_clear()
    assert found


@pytest.mark.parametrize("text", ["77 B", "7 ranks", "17 bytes", "7.5 B", "7 GB", "7 Bs and so on", "chapter 7. Bytes"])
def test_other_numbers_are_no_leak(text):
    assert not given_away(text, "B", SEVEN)


def test_units_that_scale_and_units_of_this_course():
    one = Declaration(key="77.x", answer=64.19, zh="？")
    assert given_away("it sends 64.2 MB", "MB", one) and given_away("64,189,440 bytes", "MB", one)
    assert given_away("1.5 P of messages", "P", Declaration(key="77.y", answer=1.5, zh="？"))
    assert given_away("it is 1.5 times as much", "x", Declaration(key="77.y", answer=1.5, zh="？"))
    assert not given_away("112", "", Declaration(key="77.z", answer=112.0, zh="？"))


def test_choices_and_orders_in_their_own_words():
    assert given_away("Look: Nothing: the loss falls.", "", CHOICE) and not given_away("nothing falls", "", CHOICE)
    assert given_away("gather, compute, free", "", ORDER) and given_away("gather → compute → free", "", ORDER)


@pytest.mark.parametrize(
    ("cells", "says"),
    [
        ((ASK, ASK, SHOW), "77.bytes is asked 2 times"),
        ((SHOW,), "77.bytes is asked 0 times"),
        ((ASK,), "77.bytes is never revealed"),
        ((SHOW, ASK), "77.bytes is revealed before it is asked"),
        ((ASK, SHOW, ASK.replace("77.bytes", "77.more")), "77.more is not declared"),
        ((f"x = 1\n{ASK}\nx = 2", SHOW), "77.bytes: guess is not the last line of its cell"),
    ],
)
def test_a_guess_that_is_asked_wrongly_is_named(cells, says):
    assert says in wrongly_asked(chapter(*cells), {"77.bytes"}, {"77.bytes"})
    assert not wrongly_asked(chapter(ASK, SHOW), {"77.bytes"}, {"77.bytes"})


# -- the files ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("yaml", "says"),
    [
        ("08.x: {answer: 1}", "should be a text such as \"77.name\""),
        ("77.x: 7", "77.x needs `answer`"),
        ("77.x: {answer: 1, unit: B}", "77.x needs `answer`, and may have answer, spoils, zh"),
        ("77.x: {answer: yes}", "the answer of 77.x is True; write a number, a choice in quotes"),
        ("77.x: {answer: 1, zh: [a]}", "zh of 77.x is"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_file_is_named(tmp_path, yaml, says):
    (tmp_path / "77_made_up.yaml").write_text(yaml, encoding="utf-8")
    with pytest.raises(ValueError, match=says):
        all_declarations(tmp_path)


def test_numbers_are_told_with_four_digits_and_their_unit():
    given = [(7.0, "B"), (64.18944, "MB"), (10_698_240,), (0.27272727,), ([5, 8.0], "ms")]
    assert [format_answer(*one) for one in given] == [
        "7 B", "64.19 MB", "10,698,240", "0.2727", "5 – 8 ms",
    ]  # fmt: skip
    assert key_of("A B?") == "a-b"
