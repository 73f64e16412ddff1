"""Lines in a terminal: no wider than asked, Chinese two columns wide, marks where a typesetter puts them."""

import pytest

from helpers.learner.words.wrapping import NO_END, NO_START, padded, width, wrap

ENGLISH = (
    "A rank is one process of a distributed job; `dist.get_world_size()` tells how many there are (N, at least 1)."
)
CHINESE = "rank 是分布式作业中的一个进程（编号从 0 到 N-1），“数据并行”里每个 rank 有完整模型；world size 是进程总数。"


def test_chinese_is_two_columns_wide_and_colour_none():
    assert (width("rank 是"), width("（）"), width("\x1b[1mrank\x1b[0m"), width("e\u0301")) == (7, 4, 4, 1)
    assert padded("是", 4) + "|" == "是  |" and padded("7", 3, right=True) == "  7"


@pytest.mark.parametrize("text", [ENGLISH, CHINESE])
def test_no_line_is_wider_and_nothing_is_lost(text):
    for columns in range(20, 100, 3):
        lines = wrap(text, columns, first="  a) ")
        assert max(map(width, lines)) <= columns
        assert lines[0].startswith("  a) ") and all(line.startswith("     ") for line in lines[1:])
        assert "".join(line[5:] for line in lines).replace(" ", "") == text.replace(" ", "")


def test_no_line_starts_with_a_closing_mark_or_ends_with_an_opening_one():
    for line in (line for columns in range(30, 60) for line in wrap(CHINESE, columns)):
        assert line[0] not in NO_START and line[-1] not in NO_END


def test_english_breaks_at_spaces_alone():
    assert wrap("one two three", 10, rest="") == ["one two", "three"]


def test_a_word_longer_than_a_line_is_cut_or_stands_out():
    assert wrap("x" * 25, 10) == ["x" * 10, "x" * 10, "x" * 5]
    assert wrap("x" * 25, 10, cut=False) == ["x" * 25]


def test_a_colour_is_not_parted():
    lines = wrap("\x1b[1mone two\x1b[0m three \x1b[36mfour\x1b[0m", 10)
    assert lines == ["\x1b[1mone two\x1b[0m", "three \x1b[36mfour\x1b[0m"]
