"""Actions as PyTorch prints them, and schedules as PyTorch's CSV."""

import pytest
from torch.distributed.pipelining import schedules as torchs

from helpers.schedules import ORDERS, Action, Schedule, gpipe, interleaved, zb_h1
from tests.schedules.written import written

PAIR = "(1F3;2B0)OVERLAP_F_B"


@pytest.mark.parametrize("text", ["2F0", "0B12", "11I3", "3W7", PAIR])
def test_an_action_prints_as_pytorchs_and_reads_what_pytorch_prints(text):
    assert str(Action.parse(text)) == text == str(torchs._Action.from_str(text))


@pytest.mark.parametrize("text", ["", "F0", "2X0", "2F", "2F-1", "(1F3)OVERLAP_F_B", "(1F3;2B0)", "2SEND_F0"])
def test_other_text_gets_a_sentence(text):
    with pytest.raises(ValueError, match="write stage, kind and micro-batch|give two single actions"):
        Action.parse(text)


@pytest.mark.parametrize("name", ORDERS)
def test_csv_there_and_back(name):
    schedule = ORDERS[name](4, 4)
    again = written(schedule.to_csv(), name)
    assert again == schedule


def test_csv_keeps_overlapped_pairs():
    text = "0F0,0F1,(0F2;0B0)OVERLAP_F_B,0B1,0B2\n"
    schedule = written(text)
    assert schedule.to_csv() == text
    assert schedule.actions[0][2].singles == (Action(0, "F", 2), Action(0, "B", 0))


def test_gpipes_order_is_pytorchs():
    maker = torchs.ScheduleGPipe.__new__(torchs.ScheduleGPipe)
    maker._num_stages = maker.pp_group_size = 4
    maker._n_microbatches = 8
    assert computed(maker._get_pipeline_order()) == printed(gpipe(4, 8))


@pytest.mark.parametrize("num_ranks, num_chunks, num_microbatches", [(4, 2, 8), (2, 3, 4), (3, 1, 6), (4, 4, 4)])
def test_the_interleaved_order_is_pytorchs(num_ranks, num_chunks, num_microbatches):
    maker = torchs.ScheduleInterleaved1F1B.__new__(torchs.ScheduleInterleaved1F1B)
    maker.n_local_stages, maker.pp_group_size, maker._n_microbatches = num_chunks, num_ranks, num_microbatches
    maker.microbatches_per_round = num_ranks
    order = {rank: maker._calculate_single_rank_operations(rank) for rank in range(num_ranks)}
    assert computed(order) == printed(interleaved(num_ranks * num_chunks, num_microbatches, num_chunks))


def computed(order) -> list[list[str]]:
    return [[str(action) for action in order[rank] if action and action.is_compute_op] for rank in sorted(order)]


def printed(schedule) -> list[list[str]]:
    return [list(map(str, row)) for row in schedule.actions]


def test_rows_and_stages_must_agree():
    with pytest.raises(ValueError, match="2 rows of actions times 1 chunks are not its 3 stages"):
        Schedule("mine", 3, 1, gpipe(2, 1).actions)


def test_a_stage_on_two_ranks_gets_a_sentence():
    with pytest.raises(ValueError, match="0B0 is in rank 1's row, but stage 0 belongs to rank 0"):
        _ = written("0F0\n1F0,1B0,0B0\n").rank_of


def test_in_flight_counts_to_w_where_backward_is_split():
    assert zb_h1(1, 3).in_flight(0) == 1
    assert written("0F0,0F1,0I0,0I1,0W0,0W1\n").in_flight(0) == 2
