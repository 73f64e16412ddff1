"""Inside the sandbox: cells and prints."""

from __future__ import annotations

import io

from helpers.classroom.sandbox_worker import TruncatedOutput, run_cell


def test_what_is_printed_is_cut():
    inner = io.StringIO()
    truncated = TruncatedOutput(inner, max_characters=10)
    for _ in range(3):
        print("1234567", file=truncated)
    assert inner.getvalue() == "1234567\n12"


def test_only_the_chosen_statements_of_a_cell_run():
    names = {"seen": []}
    source = "seen.append(1)\nseen.append(2)\nseen.append(3)"
    assert run_cell("cell a", source, [1, 3], names, 5.0) is None
    assert names["seen"] == [1, 3]


def test_a_cell_that_raises_exits_or_never_ends_is_told_with_its_line():
    assert run_cell("cell a", "x = 1\ny = x.no", [1, 2], {}, 5.0).startswith("cell a, line 2 raises AttributeError")
    assert run_cell("cell a", "raise SystemExit(3)", [1], {}, 5.0) == "cell a ends the process (exit 3)."
    assert run_cell("cell a", "x = " + "-" * 50_000 + "1", [1], {}, 5.0).startswith("cell a raises ")
    loop = "while True:\n    try:\n        while True: pass\n    except Exception: pass"
    assert run_cell("cell a", loop, [1], {}, 0.2) == "cell a computes for more than 0.2 s, so it was ended."
