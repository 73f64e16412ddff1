"""Exercises in the pages of the web edition: how code is read, and what a page holds of a cell."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

BOOK = Path(__file__).resolve().parent.parent / "tools" / "book"
sys.path[:0] = [str(BOOK), str(BOOK / "page")]
import exercise_block  # noqa: E402
import exercises  # noqa: E402

STUB = "def cost(num_parameters, world_size, stage, num_microbatches):\n    # 2 < 3\n    ...\n"
CELL = f'from helpers.grading import exercise\n\n\n{STUB}\n\nexercise("08.cost", cost)'
ON_RANKS = 'def average_gradients(model):\n    ...\n\n\nexercise("03.average", average_gradients)'


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("def cost(:\n    pass", "line 1 is not valid Python (invalid syntax): `def cost(:`"),
        ("x = 1\nx / 0", "this code raised ZeroDivisionError: division by zero\n  at cell line 2: `x / 0`"),
        ("import sys\nsys.exit('over')", "raised SystemExit: over"),
        ("def costs(n):\n    pass", "defines no `cost`: begin with `def cost(num_parameters, world_size, stage, "),
        (STUB, "yours to write: put your lines in place of the `...`, then check again"),
        (CELL, "yours to write"),
        ("cost = 3", "but got int object, which cannot be called"),
        ("def cost(n):\n    return n", "but yours is cost(n)"),
        ("def cost(*sizes):\n    raise NotImplementedError", "NotImplementedError is still there"),
    ],
)
def test_what_cannot_be_judged_is_a_sentence(source, says):
    judged = exercises.judge("08.cost", source, "en")
    assert says in judged["text"] and judged["text"].startswith("08.cost  ")
    assert not judged["passed"] and "exercises.py" not in judged["text"]


def test_it_speaks_chinese_and_tells_what_was_printed():
    judged = exercises.judge("08.cost", "print('so far')\n" + STUB, "zh")
    assert judged == {
        "passed": False,
        "text": exercises.words("page.yours_to_write", "zh", key="08.cost"),
        "printed": "so far\n",
    }
    with pytest.raises(ValueError, match="no task '08.costs'"):
        exercises.judge("08.costs", STUB, "en")


def test_a_page_holds_the_stub_alone():
    opening, code, closing = exercise_block.exercise_blocks(CELL, "en")
    assert (opening, closing) == ('<div class="rr-exercise" data-key="08.cost">', "</div>")
    assert code == f"<pre>{STUB.replace('<', '&lt;')}</pre>"


def test_an_exercise_on_ranks_says_how_to_do_it():
    for language, command in (("en", "rank-by-rank course<"), ("zh", "rank-by-rank course LANGUAGE=zh<")):
        code, note = exercise_block.exercise_blocks(ON_RANKS, language)
        assert code == f"```python\n{ON_RANKS}\n```"
        assert "<code>git clone ADDRESS rank-by-rank</code>" in note and command in note


@pytest.mark.parametrize("cell", ["%%ranks\nexercise(3)", "x = 1", "", "exercise = 3\nexercise"])
def test_another_cell_is_no_exercise(cell):
    assert exercise_block.exercise_key(cell) == ""
