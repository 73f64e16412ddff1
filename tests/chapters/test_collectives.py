"""What chapter 01 counts and compares, and what chapters 01 and 03 run by NCCL's rules."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from helpers.chapters.collectives import compare_bits, compare_totals, edited_ring, outcomes_of_programs, sent_scene
from helpers.chapters.nccl_programs import e
from helpers.commands.rehearse import rehearse
from helpers.observe.torchrun import script_of


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
    x, y = torch.ones(3), torch.ones(3) + 2e-7
    assert compare_bits({"ring": [x, x], "tree": [x, x]})[0] == "everywhere"
    where, text = compare_bits({"ring": [x, x], "tree": [y, y]})
    assert where == "on all ranks, but not in both algorithms" and "of tree" in text
    assert compare_bits({"ring": [x, y], "tree": [x, x]})[0] == "not even on all ranks"
    with pytest.raises(AssertionError):
        compare_bits({"ring": [x], "tree": [x + 1]})


def test_a_ring_is_edited_only_where_the_source_has_the_old_piece_once():
    with pytest.raises(ValueError, match="occurs 0 times"):
        edited_ring("no such piece", "")
    with pytest.raises(ValueError, match="occurs . times"):
        edited_ring("arriving", "")


def doubled(device):
    x = torch.ones(2, device=device)
    dist.all_reduce(x)
    return x.numpy()


def test_a_function_becomes_a_script_whose_mistake_stands_at_its_own_line():
    script = script_of(doubled)
    report = rehearse(script, nproc=2)
    assert [one.sites[0][1] for one in report.findings] == [4] and "numpy" in str(report)
    assert rehearse(script.replace("x.numpy()", "x.cpu().numpy()"), nproc=2).ok
