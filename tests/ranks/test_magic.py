import sys

import pytest

from helpers.ranks import limits
from helpers.ranks.magic import _parse, without_our_frames


def test_the_line_of_the_magic():
    assert vars(_parse("")) == {"ranks": None, "timeout": None}
    assert vars(_parse("0,2 --timeout 60  # a comment")) == {"ranks": [0, 2], "timeout": 60.0}


@pytest.mark.parametrize("line", ["0-2", "0 1", "--time 3"])
def test_a_wrong_line(line):
    with pytest.raises(ValueError, match="write it as %%ranks"):
        _parse(line)


def frames(trace):
    while trace is not None:
        yield trace.tb_frame.f_code.co_name
        trace = trace.tb_next


def test_our_frames_are_left_out():
    try:
        limits.check_num_ranks(0)
    except ValueError:
        assert list(frames(without_our_frames(sys.exc_info()[2]))) == ["test_our_frames_are_left_out"]


def test_the_learners_own_error_is_shown_whole():
    def inner():
        raise ValueError

    try:
        inner()
    except ValueError:
        shown = list(frames(without_our_frames(sys.exc_info()[2])))
    assert shown == ["test_the_learners_own_error_is_shown_whole", "inner"]
