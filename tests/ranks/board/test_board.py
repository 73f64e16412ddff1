"""The board without ranks: what is written is read, what differs is found, and the words name who did what."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from helpers.learner.words import Words
from helpers.ranks.board import board as board_file
from helpers.ranks.board import report as words
from helpers.ranks.board.board import CHANNEL_RECORDS, RECEIVE, RECORDS, SEND, Board, BoardEntry, Channels

LOSS, STEP = ("/course/train.py", 12, "loss"), ("/course/train.py", 30, "step")
SUM4 = BoardEntry("all_reduce SUM float32 (4,)", site=LOSS)
SUM6 = BoardEntry("all_reduce SUM float32 (6,)", site=LOSS)


@pytest.fixture
def group(tmp_path):
    """The boards of four ranks of one group (the world), as each of them sees it."""
    path = Board.create(str(tmp_path), "0", (0, 1, 2, 3))
    boards = [Board(path, rank) for rank in range(4)]
    yield boards
    for board in boards:
        board.close()


def post(boards, *entries, sequence=0):
    for board, entry in zip(boards, entries, strict=False):
        if entry is not None:
            board.post(sequence, entry)


def test_what_one_rank_posts_every_rank_reads(group):
    entry = BoardEntry("all_to_all of rows float32 (2,)", ("1 row", "2 rows"), ("3 rows", "0 rows"), STEP, 12.5)
    group[1].post(0, entry)
    assert [board.read(1, 0) for board in group] == [entry] * 4
    assert [board.count(1) for board in group] == [1] * 4
    assert group[0].read(2, 0) is None and group[0].count(2) == 0


def test_an_operation_is_there_until_the_ring_comes_round(group):
    for sequence in range(RECORDS + 1):
        group[0].post(sequence, SUM4)
    assert group[1].read(0, 1) is not None
    assert group[1].read(0, 0) is None, "its place was taken by a later one"
    assert group[1].has_posted(0, 0), "it is long past, but it was posted"


def test_a_half_written_record_is_not_there_yet(group):
    group[0].post(0, SUM4)
    offset = group[0]._page(0) + board_file.PAGE + 30
    group[0].map[offset] ^= 0xFF
    assert group[1].read(0, 0) is None


def test_a_withdrawn_operation_counts_as_not_posted(group):
    group[0].post(0, SUM4)
    assert group[1].has_posted(0, 0)
    group[0].withdraw(0)
    assert not group[1].has_posted(0, 0)


@pytest.mark.parametrize("length", [10, 200, 5000])
def test_a_long_signature_is_compared_as_a_whole(group, length):
    same, other = BoardEntry("x" * length + "a", site=LOSS), BoardEntry("x" * length + "b", site=LOSS)
    post(group, same, same, other)
    stored = [group[3].read(rank, 0).what for rank in range(3)]
    assert stored[0] == stored[1] != stored[2]


def test_a_path_in_another_script_fits(group):
    group[0].post(0, BoardEntry("y" * 400, site=("/课程/" * 60 + "训练.py", 7, "函数" * 40)))
    assert group[1].read(0, 0).site[0].endswith("/训练.py")
    assert group[1].read(0, 0).site[1] == 7


@pytest.mark.parametrize(
    ("mine", "theirs", "differ"),
    [
        (SUM4, SUM4, False),
        (SUM4, SUM6, True),
        (SUM4, BoardEntry(SUM4.what, site=STEP), False),
        (BoardEntry("a", ("1", "2"), ("5", "6")), BoardEntry("a", ("6", "0"), ("2", "0")), False),
        (BoardEntry("a", ("1", "2"), ("5", "6")), BoardEntry("a", ("6", "0"), ("3", "0")), True),
        (BoardEntry("a", ("1", "2"), ("5", "6")), BoardEntry("a", ("7", "0"), ("2", "0")), True),
    ],
)
def test_what_is_compared_plainly_and_what_crosswise(mine, theirs, differ):
    assert mine.disagrees(theirs, 0, 1) is differ


def test_the_first_who_differs_is_found(group):
    post(group, SUM4, None, SUM6, SUM4)
    assert group[3].first_disagreement(0, SUM4) == 2
    assert group[0].first_disagreement(0, SUM4) == 2
    assert group[2].first_disagreement(0, SUM6) == 0


def test_a_flag_is_seen_by_all_and_the_first_one_stays(group):
    assert group[0].flagged() is None
    sentence = Words(en="a sentence", zh="一句话")
    group[2].flag(sentence, 1)
    group[2].flag(Words.of("another"), None)
    assert [board.flagged() for board in group] == [(sentence, 1)] * 4


def test_a_flag_longer_than_its_page_is_cut(group):
    group[3].flag(Words.of("很长" * 5000), None)
    message, _ = group[0].flagged()
    assert message.zh.startswith("很长很长") and group[3].count(3) == 0


@pytest.mark.parametrize("odd", range(4))
def test_the_one_against_three_is_to_blame(group, odd):
    post(group, *[SUM6 if rank == odd else SUM4 for rank in range(4)])
    sentence, culprit = words.explain_mismatch(group[0], 0, patience=0)
    sentence = str(sentence)
    assert culprit == odd
    assert f"rank {odd} calls all_reduce SUM float32 (6,) (train.py line 12)" in sentence
    assert "call all_reduce SUM float32 (4,)" in sentence


@pytest.mark.parametrize("entries", [(SUM4, SUM6), (SUM4, SUM4, SUM6, SUM6), (SUM4, BoardEntry("barrier"), SUM6)])
def test_nobody_is_blamed_without_a_majority(group, entries):
    post(group, *entries)
    assert words.explain_mismatch(group[0], 0, patience=0)[1] is None


def test_split_sizes_are_told_from_both_sides(group):
    what = "all_to_all of rows float32 ()"
    one = ("1 row",) * 4
    post(group, BoardEntry(what, one, one, STEP), BoardEntry(what, ("1 row", "1 row", "2 rows", "1 row"), one, STEP))
    post(group[2:], BoardEntry(what, one, one, LOSS), BoardEntry(what, one, one, STEP))
    sentence = str(words.explain_mismatch(group[0], 0, patience=0)[0])
    assert "rank 1 sends 2 rows to rank 2 (train.py line 30)" in sentence
    assert "rank 2 expects 1 row from it (train.py line 12)" in sentence


def test_a_sub_group_is_named_by_its_ranks(tmp_path):
    path = Board.create(str(tmp_path), "7", (1, 3))
    boards = [Board(path, 0), Board(path, 1)]
    post(boards, SUM4, SUM6)
    sentence = str(words.explain_mismatch(boards[0], 0, patience=0)[0])
    assert "the group of ranks 1, 3" in sentence and "rank 3 calls all_reduce SUM float32 (6,)" in sentence


# -- first_difference: what the kernel reads after the fact ------------------------------------------------------------
def test_ranks_that_did_the_same_do_not_differ(group, tmp_path):
    for sequence in range(3):
        post(group, SUM4, SUM4, SUM4, SUM4, sequence=sequence)
    assert words.first_difference(str(tmp_path)) is None


def test_an_empty_folder_has_no_difference(tmp_path):
    assert words.first_difference(str(tmp_path)) is None


def test_the_first_different_operation_is_told(group, tmp_path):
    post(group, SUM4, SUM4, SUM4, SUM4)
    post(group, SUM4, BoardEntry("barrier", site=STEP), SUM4, SUM4, sequence=1)
    post(group, SUM6, SUM4, SUM6, SUM6, sequence=2)
    sentence = str(words.first_difference(str(tmp_path)))
    assert "operation 2 of the world group" in sentence and "rank 1 calls barrier (train.py line 30)" in sentence


def test_a_skipped_call_whose_neighbour_looks_the_same_is_found_by_its_line(group, tmp_path):
    """Ranks 0, 2, 3 reduce the loss and then the step; rank 1 only the step: the signatures never differ."""
    step = BoardEntry(SUM4.what, site=STEP)
    post(group, SUM4, step, SUM4, SUM4)
    post(group, step, None, step, step, sequence=1)
    sentence = str(words.first_difference(str(tmp_path)))
    assert "rank 1" in sentence and "train.py line 12" in sentence and "train.py line 30" in sentence


def test_a_missing_last_call_is_told_with_its_line(group, tmp_path):
    post(group, SUM4, SUM4, SUM4, SUM4)
    post(group, SUM4, None, SUM4, SUM4, sequence=1)
    sentence = str(words.first_difference(str(tmp_path)))
    assert "rank 1" in sentence and "train.py line 12" in sentence


def test_the_kernel_reads_boards_without_torch(tmp_path):
    code = f"import sys\nfrom helpers.ranks.board.report import first_difference\nfirst_difference({str(tmp_path)!r})\n"
    code += "assert 'torch' not in sys.modules, 'torch was imported'"
    subprocess.run([sys.executable, "-c", code], check=True)


# -- point to point ----------------------------------------------------------------------------------------------------
@pytest.fixture
def channels(group):
    return [Channels(board) for board in group]


def test_a_message_meets_its_counterpart(channels):
    assert channels[0].post(SEND, 1, 5, "float32 x 4", LOSS, 1.0) == 0
    assert not channels[0].is_matched(SEND, 1, 5, 0)
    assert channels[1].post(RECEIVE, 0, 5, "float32 x 4", STEP, 2.0) == 0
    assert channels[0].is_matched(SEND, 1, 5, 0) and channels[1].is_matched(RECEIVE, 0, 5, 0)
    found = channels[1].counterpart(RECEIVE, 0, 5, 0)
    assert (found.what, found.site, found.time) == ("float32 x 4", LOSS, 1.0)


def test_messages_are_numbered_by_tag_and_peer(channels):
    numbers = [channels[0].post(SEND, peer, tag, "x", LOSS, 0.0) for peer, tag in [(1, 0), (1, 7), (1, 0), (2, 0)]]
    assert numbers == [0, 0, 1, 0]
    channels[1].post(RECEIVE, 0, 7, "x", LOSS, 0.0)
    assert channels[0].is_matched(SEND, 1, 7, 0)
    assert not channels[0].is_matched(SEND, 1, 0, 0)


def test_a_receive_from_anyone_can_take_any_send(channels):
    for source in (0, 2):
        channels[source].post(SEND, 1, 0, "x", LOSS, 0.0)
    channels[1].post(RECEIVE, 1, 0, "x", LOSS, 0.0)
    assert channels[0].is_matched(SEND, 1, 0, 0) and channels[2].is_matched(SEND, 1, 0, 0)
    assert channels[1].anyone_sent(0, 0) and channels[1].anyone_sent(0, 1)
    assert not channels[1].anyone_sent(0, 2), "both messages have arrived: nobody has sent a third one"
    assert channels[0].counterpart(SEND, 1, 0, 0) is None, "which send it takes is not known, so nothing is compared"


def test_a_ring_that_was_overrun_claims_nothing(channels):
    for _ in range(CHANNEL_RECORDS + 1):
        channels[0].post(SEND, 1, 0, "x", LOSS, 0.0)
    assert channels[1].is_matched(RECEIVE, 0, 0, 10_000), "nothing is known any more, so nobody is called missing"


def test_draining_keeps_up_with_any_number_of_messages(channels):
    channels[1].is_matched(RECEIVE, 0, 0, 0)
    for _ in range(3 * CHANNEL_RECORDS):
        channels[0].post(SEND, 1, 0, "x", LOSS, 0.0)
        channels[1].drain()
    assert channels[1].is_matched(RECEIVE, 0, 0, 3 * CHANNEL_RECORDS - 1)
    assert not channels[1].is_matched(RECEIVE, 0, 0, 3 * CHANNEL_RECORDS)


# -- the file ----------------------------------------------------------------------------------------------------------
def test_a_folder_without_room_falls_back_to_the_temporary_one(tmp_path, monkeypatch):
    real, full = board_file._reserve, str(tmp_path / "full")

    def reserve(folder, *rest):
        if folder == full:
            raise OSError(28, "No space left on device")
        return real(folder, *rest)

    monkeypatch.setattr(board_file, "_reserve", reserve)
    monkeypatch.setattr(board_file.tempfile, "gettempdir", lambda: str(tmp_path))
    assert os.path.dirname(Board.create(full, "0", (0, 1))) == str(tmp_path)


def test_no_room_anywhere_is_a_sentence(tmp_path, monkeypatch):
    def reserve(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(board_file, "_reserve", reserve)
    with pytest.raises(OSError, match="no room for a board of .* MB in"):
        Board.create(str(tmp_path), "0", (0, 1))


def test_a_failed_reservation_leaves_no_file(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    with pytest.raises(OSError):
        board_file._reserve(str(tmp_path), "0", 4096, b"{}")
    assert os.listdir(tmp_path) == []


def test_operations_of_both_kinds_are_counted_from_outside_and_withdrawn_ones_are_not(group, tmp_path):
    for sequence in range(RECORDS + 3):
        group[2].post(sequence, SUM4)
    group[2].withdraw(RECORDS + 2)
    channels = Channels(group[2])
    for _ in range(CHANNEL_RECORDS + 2):
        channels.post(SEND, 1, 0, "float32 (4,)", LOSS, 0.0)
    channels.post(RECEIVE, 3, 7, "float32 (4,)", LOSS, 0.0)
    ((board, counts),) = words.issued(str(tmp_path)).items()
    assert board == (group[2].path, "0") and counts == {0: 0, 1: 0, 2: RECORDS + 2 + CHANNEL_RECORDS + 3, 3: 0}
