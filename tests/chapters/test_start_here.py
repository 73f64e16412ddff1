"""Chapter 00: its script runs by itself, and its functions return the failures that the ranks report."""

import inspect

import pytest

from helpers.chapters import first_script
from helpers.chapters.start_here import (
    broadcast_rounds,
    compared_with_one_process,
    failure_of,
    killed_scene,
    last_words,
    sent_in_a_ring,
    sent_scene,
)
from helpers.observe.torchrun import torchrun
from helpers.widgets import CollectiveExplorer
from tests.draw.scenes import texts


def test_the_script_runs_by_itself_on_as_many_processes_as_torchrun_starts():
    text = inspect.getsource(first_script)
    assert "helpers" not in text
    assert torchrun(text, ranks=2, silence=60).lines == ("rank 0 of 2 holds 3", "rank 1 of 2 holds 3")
    assert torchrun(text, ranks=None, silence=60).lines == ("rank 0 of 1 holds 1",)


def kills_itself():
    import os
    import signal

    import torch.distributed as dist

    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


def raises():
    raise KeyError("n/a")


def test_the_picture_names_the_killed_rank_and_its_line(ranks):
    scene = killed_scene(ranks[:2], kills_itself, step=3)
    assert {"rank 1", "killed", "step 3"} <= set(texts(scene)) and texts(scene).count("waits") == 1
    assert any("rank 1 died: killed by SIGKILL" in text for text in texts(scene))
    assert any("os.kill(os.getpid(), signal.SIGKILL)" in text for text in texts(scene))


def test_a_failure_is_returned_and_its_absence_is_an_error(ranks):
    error = failure_of(ranks[:2], raises)
    assert error.kind == "exception" and last_words(error) == "an error"
    assert last_words(failure_of(ranks[:2], kills_itself)) == "no line at all"
    with pytest.raises(AssertionError, match="int was expected to fail"):
        failure_of(ranks[:2], int)


def test_the_bar_of_sent_bytes_has_a_part_per_message():
    scene = sent_scene(4_000_000, 6_000_000)
    assert texts(scene).count("1 MB") == 10 and "6 MB = 2 × 3/4 × 4 MB" in texts(scene)


def test_a_mean_of_means_is_compared_with_the_mean():
    losses = [[1.0, 1.0], [4.0]]
    answers = [compared_with_one_process(reported, losses) for reported in (2.0, 2.5, 1.5)]
    assert answers == ["2.00, as in one process", "more than 2.00", "less than 2.00"]


def test_the_formulas_of_the_ring_and_of_the_tree():
    assert sent_in_a_ring(4_000_000, 4) == 6_000_000 and sent_in_a_ring(8, 1) == 0
    assert broadcast_rounds(64) == 6
    assert broadcast_rounds(8) == CollectiveExplorer("broadcast", algorithm="tree", ranks=8).num_steps == 3
