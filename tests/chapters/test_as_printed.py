"""A line as printed: what came of it, in a line."""

from helpers.chapters.sources import attempt


def test_a_failure_and_a_warning_are_told_and_nothing_is_kept(capsys):
    names = {"x": 1}
    attempt("import warnings\nwarnings.warn('old')\nx = 2", **names)
    attempt("raise ValueError('[enforce fail at /a/b.cc:84] no ib0. \\nmore')")
    assert names == {"x": 1}
    said = capsys.readouterr().out
    assert said.startswith(
        ">>> import warnings\n>>> warnings.warn('old')\n>>> x = 2\n    runs\n    warns: old\n>>> raise"
    )
    assert said.endswith("\n    ValueError: no ib0. \n")
