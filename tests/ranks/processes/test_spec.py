"""Each rank draws random numbers of its own, as the processes of a cluster do, and a restart repeats them."""

from __future__ import annotations

import os
import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from helpers.ranks import RankError, Ranks
from helpers.ranks.processes.spec import LaunchedRank, launched, process_seed, torchrun_variables


class Seeds(Dataset):
    """The seed of the DataLoader's worker that loads an item."""

    def __len__(self):
        return 1

    def __getitem__(self, index):
        return torch.initial_seed()


def draw():
    """One number from each generator that a program may use without a seed."""
    return {
        "torch": torch.rand(()).item(),
        "numpy": np.random.rand(),
        "random": random.random(),
        "card": torch.rand((), device="card").item(),
        "worker": next(iter(DataLoader(Seeds(), num_workers=1))).item(),
    }


def test_no_two_ranks_draw_the_same_and_ranks_that_are_started_anew_draw_it_again():
    with Ranks(2, device="card", memory="10 MB", quiet=True) as own:
        first, second = own.run(draw)
        assert all(first[kind] != second[kind] for kind in first), (first, second)
        assert first["card"] != first["torch"]  # a GPU has a generator of its own
        with pytest.raises(RankError, match="rank 1 died"):
            own.run(lambda: torch.distributed.get_rank() and os._exit(3))
        assert own.run(draw) == [first, second]


def test_no_two_processes_share_a_seed_even_with_close_bases():
    seeds = [process_seed(base, rank) for base in range(100) for rank in range(100)]
    assert len(set(seeds)) == len(seeds) and max(seeds) < 2**63 and process_seed(7, 1) == process_seed(7, 1)


def test_a_process_reads_its_place_as_torchrun_would_have_written_it(monkeypatch):
    variables = torchrun_variables(5, 8, per_node=4, port=29500)
    assert (variables["GROUP_RANK"], variables["GROUP_WORLD_SIZE"], variables["MASTER_PORT"]) == ("1", "2", "29500")
    assert launched() is None
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert launched() == LaunchedRank(rank=5, local_rank=1, world_size=8, local_world_size=4)
