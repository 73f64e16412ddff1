"""A mutant is an edit: it changes what it says, and whatever is wrong in a file of them is one sentence."""

from __future__ import annotations

import re
import textwrap

import pytest

from helpers.grading.mistakes import edited, mistakes_file, read_mistakes
from tests.grading.submissions import LABS, answer_to

BASE = """\
def mean(tensor):
    total = tensor.clone()  # (n,)
    if total.ndim:
        dist.all_reduce(total)
    dist.all_reduce(total)
    return total / n
"""
REDUCE = "dist.all_reduce(total)\n"


@pytest.mark.parametrize(
    ("edits", "expected"),
    [
        ("- return total / n\n+ return total\n", BASE.replace(" / n", "")),
        ("- total = tensor.clone()\n+ total = tensor\n", BASE.replace("tensor.clone()  # (n,)", "tensor")),
        (f"-     {REDUCE}= {REDUCE}", BASE.replace(f"        {REDUCE}", "")),
        ("= if total.ndim:\n+     total += 1\n", BASE.replace("ndim:\n", "ndim:\n        total += 1\n")),
        (f"- if total.ndim:\n-     {REDUCE}", BASE.replace(f"    if total.ndim:\n        {REDUCE}", "")),
        (
            "- return total / n\n+ return tensor\n\n= def mean(tensor):\n+     return total / n\n",
            "def mean(tensor):\n    return total / n\n" + BASE.partition("\n")[2].replace("total / n", "tensor"),
        ),
    ],
)
def test_an_edit_changes_what_it_says(edits, expected):
    assert edited(BASE, edits) == expected != BASE


@pytest.mark.parametrize(
    ("edits", "says"),
    [
        ("- dist.all_reduce(total)\n", "stand 2 times"),
        ("- total = tensor.double()\n", "stand 0 times.*total = tensor.double"),
        ("- if total.ndim:\n- dist.all_reduce(total)\n", "stand 0 times"),
        ("return total\n", "begins with '- '"),
        ("-return total / n\n", "begins with '- '"),
        ("+ return total\n", "add the line beside it"),
        ("= return total / n\n+ x\n\n- return total / n\n", "two edits change the line 'return total / n'"),
    ],
)
def test_an_edit_that_fits_nowhere_says_so(edits, says):
    with pytest.raises(ValueError, match=f"(?s){says}"):
        edited(BASE, edits)


# -- mistakes.yaml ---------------------------------------------------------------------------------------------------
ANSWER = "def all_reduce_cost(n):\n    steps = 2 * (n - 1)\n    return steps\n"
WHOLE = {"who": "Whoever forgets.", "edit": "|\n      - steps = 2 * (n - 1)\n      + steps = n - 1"}


def read(folder, *entries: tuple[str, dict], top: str = "", answer: str = ANSWER):
    path = folder / f"{len(list(folder.iterdir()))}.yaml"
    text = f"{top}01.cost:\n" + (f"  answer: |\n{textwrap.indent(answer, '    ')}" if answer else "")
    for name, fields in entries:
        text += f"  {name}:\n" + "".join(f"    {key}: {value}\n" for key, value in fields.items())
    path.write_text(text)
    return read_mistakes(path)["01.cost"]


def test_a_mistake_is_the_answer_with_its_edit(tmp_path):
    more = {"hint": "one_phase", "base": "one_phase", "who": "The same."}
    more |= {"edit": "|\n      - steps = n - 1\n      + steps = n"}
    known = read(tmp_path, ("one_phase", WHOLE), ("one_phase_less", more), top="imports: |\n  import math\n")
    one, other = known.mistakes
    assert (known.imports, known.answer, known.others) == ("import math\n", ANSWER, "")
    assert one.text == ANSWER.replace("2 * (n - 1)", "n - 1")
    assert (one.hint, other.hint, other.name, other.is_run) == ("one_phase", "one_phase", "one_phase_less", True)
    assert other.text == ANSWER.replace("2 * (n - 1)", "n")


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        (WHOLE | {"edits": "x"}, "line 7, one_phase: 'edits' is no field"),
        ({"edit": WHOLE["edit"]}, "line 7, one_phase: a mistake has `who`"),
        (WHOLE | {"text": "x = 1"}, "either `edit` or `text`"),
        ({"who": "Whoever."}, "either `edit` or `text`"),
        (WHOLE | {"base": "nothing"}, "`base` is 'nothing'"),
        (WHOLE | {"edit": "|\n      - steps = 3"}, "(?s)line 7, one_phase: these lines stand 0 times"),
    ],
)
def test_a_wrong_entry_is_one_sentence(fields, says, tmp_path):
    with pytest.raises(ValueError, match=says):
        read(tmp_path, ("one_phase", fields))


def test_a_wrong_file_is_one_sentence(tmp_path):
    with pytest.raises(ValueError, match="a task has an `answer`"):
        read(tmp_path, ("one_phase", WHOLE), answer="")
    with pytest.raises(ValueError, match="given twice"):
        read(tmp_path, ("one_phase", WHOLE), ("one_phase", WHOLE))


@pytest.mark.parametrize("lab", LABS)
def test_the_answer_is_the_lab_s_own_and_no_two_mistakes_are_the_same(lab):
    for key, known in read_mistakes(mistakes_file(lab[:2])).items():
        # What the chapter imports above its answer takes seconds on a rank, and what an answer needs is in the imports.
        right = re.sub(r"(?m)^(from|import) .*\n", "", answer_to(lab, key))
        assert known.answer.strip() in (answer_to(lab, key).strip(), right.strip()), key
        texts = [known.answer, *(one.text for one in known.mistakes)]
        assert len({text.strip() for text in texts}) == len(texts), key
