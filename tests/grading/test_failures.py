"""What a learner reads about a run that failed."""

from __future__ import annotations

from helpers.grading.failures import without_grader_lines


def test_places_in_our_files_are_left_out():
    text = "rank 0 raised TypeError: no\n  at sampler.py line 3: `f()`\nrank 1 waits in recv, communication.py line 9"
    assert without_grader_lines(text) == "rank 0 raised TypeError: no\nrank 1 waits in recv"
    assert without_grader_lines("  at sampler.py line 3: `f()`, under cell line 2: `x`") == "  at cell line 2: `x`"
