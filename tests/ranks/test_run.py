"""What `run` and cells give when nothing goes wrong, and sentences for what cannot be run."""

from __future__ import annotations

import os
import signal
import sys

import pytest
import torch
import torch.distributed as dist

from helpers.ranks import RankError, Ranks, current
from helpers.ranks.processes import pool
from helpers.ranks.processes.messages import print_by_rank
from helpers.ranks.processes.zygote import FORKS


def test_results_come_in_rank_order(world):
    assert world.run(lambda: dist.get_rank()) == list(range(len(world)))


def test_every_argument_goes_to_the_function(ranks):
    assert (
        ranks[:2].run(lambda *a, **k: (a, k), 1, timeout=2, num_ranks=3) == [((1,), {"timeout": 2, "num_ranks": 3})] * 2
    )


def test_the_first_all_reduce(world):
    def add_ranks():
        x = torch.full((2,), float(dist.get_rank()))
        dist.all_reduce(x)
        return x

    n = len(world)
    for result in world.run(add_ranks):
        assert torch.equal(result, torch.full((2,), n * (n - 1) / 2))


def test_a_slice_is_a_world_of_its_own(ranks):
    assert ranks[:3].run(dist.get_world_size) == [3, 3, 3]
    assert ranks[:3] is ranks[:3]
    assert ranks[:4] is ranks


def test_making_a_slice_does_not_take_the_cells(ranks):
    before = current()
    _ = ranks[:2]
    assert current() is before


@pytest.mark.parametrize("which", [slice(1, 3), slice(0, 0), slice(None, None, 2)])
def test_a_slice_that_is_no_world_is_explained(ranks, which):
    with pytest.raises(ValueError, match=r"ranks\["):
        ranks[which]


def test_each_rank_computes_on_one_thread(ranks):
    assert ranks[:2].run(torch.get_num_threads) == [1, 1]


def test_what_ranks_print_is_grouped(ranks, capsys):
    ranks.run(lambda: print("same\nlines"))
    assert capsys.readouterr().out == "ranks 0-3 │ same\nranks 0-3 │ lines\n"
    ranks.run(lambda: print("parity", dist.get_rank() % 2))
    assert capsys.readouterr().out == "ranks 0, 2 │ parity 0\nranks 1, 3 │ parity 1\n"


def test_labels_are_aligned(capsys):
    print_by_rank({0: "a\n", 1: "a\n", 2: "b\n"})
    assert capsys.readouterr().out == "ranks 0, 1 │ a\nrank 2     │ b\n"


def test_a_cell_keeps_its_variables_and_shows_its_last_expression(ranks, capsys):
    ranks.cell("x = rank * 10")
    ranks.cell("x + world_size")
    assert capsys.readouterr().out == "rank 0 │ 4\nrank 1 │ 14\nrank 2 │ 24\nrank 3 │ 34\n"
    ranks.cell("x;")
    assert capsys.readouterr().out == ""


def test_a_cell_on_some_ranks(ranks, capsys):
    ranks.cell("rank", ranks=[2, 0])
    assert capsys.readouterr().out == "rank 0 │ 0\nrank 2 │ 2\n"


def test_a_cell_finds_torch_dist_and_the_device(ranks, capsys):
    ranks.cell("torch.zeros(1, device=device).device.type, dist.get_world_size()")
    assert capsys.readouterr().out == "ranks 0-3 │ ('cpu', 4)\n"


def test_a_class_made_in_a_cell_can_come_back_in_a_later_one(ranks, capsys):
    ranks.cell("class Point:\n    def __init__(self, x): self.x = x\np = Point(rank)")
    ranks.cell("import pickle\npickle.loads(pickle.dumps(p)).x == rank")
    assert capsys.readouterr().out == "ranks 0-3 │ True\n"


def test_a_rank_that_does_not_exist(ranks):
    with pytest.raises(ValueError, match="there is no rank 7: these are ranks 0 to 3"):
        ranks.cell("1", ranks=[0, 7])


def test_ranks_within_a_rank_are_refused(ranks):
    with pytest.raises(RankError, match="already runs on rank 0, and a rank cannot start ranks of its own"):
        ranks[:1].run(lambda: Ranks(2))


def test_a_timeout_of_no_seconds():
    with pytest.raises(ValueError, match="timeout is the seconds"):
        Ranks(2, timeout=0)


def test_closed_ranks_start_again():
    with Ranks(2, device="cpu", quiet=True) as pair:
        first = pair.pids
        pair.close()
        assert pair.run(dist.get_rank) == [0, 1]
        assert set(pair.pids).isdisjoint(first)


def test_the_first_line_says_what_there_is(capsys):
    with Ranks(1, device="cpu"):
        line = capsys.readouterr().out
    assert line.startswith("1 rank on CPU (gloo), ready in ") and line.endswith(" MB each\n")


def test_two_runs_at_once_are_refused(ranks):
    pair = ranks[:2]
    with pair._lock, pytest.raises(ValueError, match="busy with another run"):
        pair.run(dist.get_rank)


def test_no_file_stays_behind(tmp_path):
    with Ranks(2, device="cpu", quiet=True) as pair:
        folders = {pair._pool.folder, pair._pool.board}
        assert all(os.path.isdir(folder) for folder in folders)
    assert not any(os.path.exists(folder) for folder in folders)


def test_idle_ranks_stop_and_come_back(monkeypatch):
    from helpers.ranks import live

    monkeypatch.setattr(live, "IDLE_LIMIT", 0.05)
    with Ranks(1, device="cpu", quiet=True) as single:
        assert single.run(lambda: 1) == [1]
        single._timer.join(10)
        assert single.pids == []
        assert single.run(lambda: 2) == [2]


def test_ranks_that_hold_variables_are_not_stopped(monkeypatch):
    from helpers.ranks import live

    monkeypatch.setattr(live, "IDLE_LIMIT", 0.0)
    with Ranks(1, device="cpu", quiet=True) as single:
        single.cell("x = 1")
        assert single._timer is None and single.pids


def has_compiler():
    return "torch._dynamo" in sys.modules


@pytest.mark.skipif(not FORKS, reason="only forked ranks share memory")
def test_ranks_share_what_their_first_optimizer_imports():
    """What each would import by itself is imported once, before they are forked."""
    with Ranks(1, device="cpu", quiet=True, timeout=120) as fresh:
        assert fresh.run(has_compiler) == [True]


def test_a_rank_that_hears_no_interrupt_is_ended_within_a_limit_however_crowded_the_machine_is(monkeypatch):
    monkeypatch.setattr(pool, "load_per_core", lambda: 1e6)
    monkeypatch.setattr(pool, "MAX_END_LIMIT", 0.5)

    def hears_nothing():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        while True:
            pass

    with Ranks(1, timeout=1) as ranks:
        with pytest.raises(RankError, match="variables are lost"):
            ranks.run(hears_nothing)
        assert ranks.run(lambda: dist.get_rank()) == [0]


def leaves_a_message(raises: bool) -> None:
    """Rank 0 sends what rank 1 never receives; then both raise, or neither does."""
    if dist.get_rank() == 0:
        dist.isend(torch.full((2,), 7.0), 1)
    if raises:
        raise ValueError("on every rank")


def passes_a_message_on(length: int) -> float:
    """What rank 1 receives from rank 0, which sends 1.0 so many times."""
    x = torch.ones(length) if dist.get_rank() == 0 else torch.zeros(length)
    dist.send(x, 1) if dist.get_rank() == 0 else dist.recv(x, 0)
    return x[0].item()


def test_a_message_that_a_failed_task_left_reaches_no_later_one(ranks):
    with pytest.raises(RankError, match="on every rank"):
        ranks[:2].run(leaves_a_message, True)
    assert ranks[:2].run(passes_a_message_on, 3) == [1.0, 1.0]


def test_ranks_that_check_answers_keep_no_message():
    with Ranks(2, device="cpu", quiet=True, apart=pool.__name__) as apart:
        apart.run(leaves_a_message, False)
        assert apart.run(passes_a_message_on, 2) == [1.0, 1.0]
