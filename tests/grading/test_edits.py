"""A mutant is an edit: it changes what it says, and whatever is wrong in a file of them is one sentence."""

from __future__ import annotations

import pytest

from tests.grading.edits import edited
from tests.grading.submissions import LABS, MUTANTS, cells_of, mutants

BASE = """\
def mean(tensor):
    total = tensor.clone()  # (n,)
    if total.ndim:
        dist.all_reduce(total)
    dist.all_reduce(total)
    return total / n
"""


@pytest.mark.parametrize(
    ("edits", "expected"),
    [
        ("- return total / n\n+ return total\n", BASE.replace(" / n", "")),
        ("- total = tensor.clone()\n+ total = tensor\n", BASE.replace("tensor.clone()  # (n,)", "tensor")),
        (
            "-     dist.all_reduce(total)\n= dist.all_reduce(total)\n",
            BASE.replace("        dist.all_reduce(total)\n", ""),
        ),
        ("= if total.ndim:\n+     total += 1\n", BASE.replace("ndim:\n", "ndim:\n        total += 1\n")),
        (
            "- if total.ndim:\n-     dist.all_reduce(total)\n",
            BASE.replace("    if total.ndim:\n        dist.all_reduce(total)\n", ""),
        ),
        (
            "- return total / n\n+ return tensor\n\n= def mean(tensor):\n+     return total / n\n",
            BASE.replace("return total / n", "return tensor").replace(
                "(tensor):\n", "(tensor):\n    return total / n\n"
            ),
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


# -- files of mutants ------------------------------------------------------------------------------------------------
WHOLE = {"who": "Whoever forgets.", "edit": "|\n      - steps = 2 * (world_size - 1)\n      + steps = world_size - 1"}


def read(folder, *entries: tuple[str, dict], task: str = "01.cost", top: str = ""):
    path = folder / "01_collectives.yaml"
    own = [
        f"  {name}:\n" + "".join(f"    {key}: {value}\n" for key, value in fields.items()) for name, fields in entries
    ]
    path.write_text(f"{top}{task}:\n" + "".join(own))
    return list(mutants(path))


def test_a_mutant_is_the_solution_with_its_edit(tmp_path):
    more = {"hint": "one_phase", "base": "one_phase", "who": "The same.", "edit": "|\n      - steps = world_size - 1"}
    one, other = read(tmp_path, ("one_phase", WHOLE), ("one_phase_less", more), top="imports: |\n  import math\n")
    solution = cells_of("01_collectives")["01.cost"]
    assert one.text == "import math\n" + solution.replace("2 * (world_size - 1)\n", "world_size - 1\n")
    assert "###" not in one.text
    assert (one.hint, one.task) == ("one_phase", "01.cost") and one.names()["all_reduce_cost"](8, 4, 0, 1)[0] == 6.0
    assert (other.hint, other.name) == ("one_phase", "one_phase_less") and "steps = w" not in other.text


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        (WHOLE | {"edits": "x"}, "line 3, one_phase: 'edits' is no field"),
        ({"edit": WHOLE["edit"]}, "line 3, one_phase: a mutant has `who`"),
        (WHOLE | {"text": "x = 1"}, "either `edit` or `text`"),
        ({"who": "Whoever."}, "either `edit` or `text`"),
        (WHOLE | {"base": "nothing"}, "`base` is 'nothing'"),
    ],
)
def test_a_wrong_entry_is_one_sentence(fields, says, tmp_path):
    with pytest.raises(ValueError, match=f"01_collectives.yaml, {says}|{says}"):
        read(tmp_path, ("one_phase", fields))


def test_a_wrong_file_is_one_sentence(tmp_path):
    with pytest.raises(ValueError, match="'01.costs' is no task of this lab"):
        read(tmp_path, ("one_phase", WHOLE), task="01.costs")
    with pytest.raises(ValueError, match="given twice"):
        read(tmp_path, ("one_phase", WHOLE), ("one_phase", WHOLE))
    with pytest.raises(ValueError, match="all_to_all_steps.*has this name"):
        read(tmp_path, ("all_to_all_steps", WHOLE))
    (mutant,) = read(tmp_path, ("one_phase", WHOLE | {"edit": "|\n      - steps = 3"}))
    with pytest.raises(ValueError, match="(?s)01_collectives.yaml, line 3, one_phase: these lines stand 0 times"):
        print(mutant.text)


@pytest.mark.parametrize("lab", LABS)
def test_every_edit_fits_and_no_two_mutants_are_the_same(lab):
    texts = [mutant.text for mutant in MUTANTS if mutant.lab == lab]
    assert len({*texts, *cells_of(lab).values()}) == len(texts) + len(cells_of(lab))
