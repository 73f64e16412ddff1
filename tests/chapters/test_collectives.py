"""What chapter 01 counts and compares, and what chapters 01 and 03 run by NCCL's rules."""

import pytest
import torch
import torch.distributed as dist

from helpers.chapters.collectives import (
    compare_totals,
    outcomes_of_programs,
    programs_scene,
    sent_scene,
    what_comparing_shows,
    what_happened,
    where_bits_are_equal,
    who_raised,
)
from helpers.chapters.nccl_programs import e


def test_six_programs_do_on_gloo_and_on_nccl_what_chapter_01_says():
    waits, above = "hangs", "hangs with a large x"
    assert outcomes_of_programs() == {
        "a": (waits, above),
        "b": ("runs", above),
        "c": ("runs", "runs"),
        "d": ("runs", "runs"),
        "e": ("runs", "runs, x and y exchanged"),
        "f": (waits, waits),
    }


def test_the_picture_of_the_programs_says_what_each_does():
    scene, hanging = programs_scene()
    assert hanging == "a, b and f" and "b: isend, irecv: gloo: runs, NCCL: hangs with a large x." in scene.summary


def test_gloo_brings_x_to_x_and_y_to_y_in_program_e(ranks):
    assert ranks[:2].run(e_of_twos_and_threes) == [[2, 3], [2, 3]]


def e_of_twos_and_threes():
    rank = dist.get_rank()
    x, y = (torch.tensor(number if rank == 0 else 0) for number in (2, 3))
    e(rank, x, y)
    return [x.item(), y.item()]


def test_bytes_of_a_server_and_of_a_ring_are_compared_and_drawn():
    server, ring = [120, 40, 40, 40], [60, 60, 60, 60]
    assert compare_totals(server, ring) == "the same number of bytes"
    assert compare_totals(server, [120] * 4) == "2.0 times as many bytes"
    assert "ring: every rank: 60 B = 2 · 3/4 · 40 B." in sent_scene(server, ring).summary


def test_bits_are_compared_between_ranks_and_between_algorithms():
    assert where_bits_are_equal(True, True) == "everywhere"
    assert where_bits_are_equal(True, False) == "on all ranks, but not in both algorithms"
    assert where_bits_are_equal(False, False) == where_bits_are_equal(False, True) == "not even on all ranks"


def test_wrong_sums_show_only_where_the_ranks_differ():
    assert what_comparing_shows([[1110], [1110]]) == "no: they all agree"
    assert what_comparing_shows([[1110], [1111]]) == "yes: they hold different sums"


@pytest.mark.parametrize(
    ("function", "outcome"),
    [
        ("sends_first", "all four wait for ever"),
        ("fails", "an exception from torch on every rank"),
        ("dist.get_rank", "each has its left neighbour's tensor"),
    ],
)
def test_what_a_run_of_sends_ends_with(ranks, function, outcome):
    assert what_happened(ranks, eval(function))[0] == outcome


def sends_first():
    dist.send(torch.ones(3), (dist.get_rank() + 1) % dist.get_world_size())


def fails():
    raise ValueError("no")


def fails_on_odd_ranks():
    if dist.get_rank() % 2:
        raise ValueError("no")


def test_the_ranks_that_raise_are_named(ranks):
    odd = " and ".join(str(rank) for rank in range(1, len(ranks), 2))
    assert who_raised(ranks, fails_on_odd_ranks)[0] == f"ranks {odd}"
    assert who_raised(ranks, fails)[0] == "all four"
    assert who_raised(ranks, dist.get_rank)[0] == "no rank"
