"""Texts of strangers: what steers a terminal is escaped, letters of every language stay, long texts are cut."""

from __future__ import annotations

import pytest

from helpers.classroom.plain_text import counted, one_line, plain_lines


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J\r\n\x07", "\\x1b[2J\\r\\n\\x07"),
        ("a\u202eb\u2028c\ud800", "a\\u202eb\\u2028c\\ud800"),  # right to left, a break of lines, half of a pair
        ("张伟 Größe　é", "张伟 Größe　é"),
        ("👩\u200d💻 می\u200cخواهم", "👩\u200d💻 می\u200cخواهم"),
    ],
)
def test_what_does_not_print_is_escaped(text, shown):
    assert one_line(text) == shown
    shown.encode()  # it can be written to a file


def test_lines_and_tabs_stay_where_a_text_may_have_several():
    assert plain_lines("a\r\n\tb\x00\x85") == "a\n\tb\\x00\\x85"


def test_long_texts_and_lists_are_cut():
    assert one_line("x" * 10**7, 5) == "xxxx…" and one_line("x" * 5, 5) == "xxxxx"
    assert counted(list("abcd"), 2) == ["a", "b", "and 2 more"] and counted(["a"], 2) == ["a"]
    assert counted(["a"] * 3_000, 6)[-1] == "and 2,994 more"
