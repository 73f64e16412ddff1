"""What a thread saves is what was there at the call; it appears when every rank has written, and failures are told."""

import json
import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from helpers.chapters.fault_tolerance import full_tensors_of
from helpers.compose import Plan
from helpers.compose.checkpoint import AsyncSaver, Keeper, newest, step_folder
from tests.compose.checkpoint.small import TWO, said_by, saved_on, train, trainer_of

SAVE = torch.save


class Gate:
    """In here, torch.save of a rank waits: until `open` on any rank, through a named pipe."""

    def __init__(self, place: Path, rank: int):
        self.pipe, self.is_here = place / "gate", dist.get_rank() == rank

    def __enter__(self):
        if self.is_here:
            torch.save = self.write
        return self

    def write(self, *given):
        self.pipe.read_text()
        SAVE(*given)

    def open(self):
        self.pipe.write_text("go")

    def __exit__(self, *_):
        torch.save = SAVE


@pytest.fixture
def place(tmp_path):
    os.mkfifo(tmp_path / "gate")
    return tmp_path


def updated_while_written(place, plan):
    trainer = trainer_of(plan)
    saver = AsyncSaver(trainer)
    for number in range(2):  # the second save reuses the memory of the first one's copy
        train(trainer, 1)
        trainer.save(place / f"at_once_{number}")
        with Gate(place, rank=0) as gate:
            saver.save(place / f"later_{number}")
            train(trainer, 1)
            there = (place / f"later_{number}").exists()
            dist.barrier()  # every rank has looked
            if gate.is_here:
                gate.open()
            saver.wait()
        assert not there
    return trainer.steps


@pytest.mark.parametrize("plan", [TWO, Plan(dp=2, zero=3), Plan(tp=2)], ids=str)
def test_an_update_after_the_call_does_not_leak_in(ranks, place, plan):
    assert ranks[:2].run(updated_while_written, place, plan) == [4, 4]
    for number in range(2):
        expected, got = (full_tensors_of(place / f"{when}_{number}") for when in ("at_once", "later"))
        assert expected.keys() == got.keys() and all(torch.equal(expected[name], got[name]) for name in got)
        manifests = [json.loads((place / f"{n}_{number}" / "manifest.json").read_text()) for n in ("at_once", "later")]
        assert manifests[0] == manifests[1]
    assert sorted(path.name for path in (place / "later_0").iterdir()) == ["manifest.json", "rank_0.pt", "rank_1.pt"]


def slow_rank(place):
    """Rank 1 writes no more than when rank 0 has given up."""
    trainer = trainer_of(TWO)
    saver = AsyncSaver(trainer, limit=0.05)
    with Gate(place, rank=1) as gate:
        saver.save(step_folder(place, 2))
        if trainer.axes.rank == 0:
            saver.thread.join()
            gate.open()
        said = said_by(saver.wait)
    saver.wait()  # nothing is under way any more
    return said, train(trainer, 1)[0] > 0


def test_a_slow_rank_is_named_and_the_good_checkpoint_stays(ranks, place):
    saved_on(ranks, step_folder(place, 1))
    for said, trains in ranks[:2].run(slow_rank, place):
        assert "rank 1 did not write its part of" in said and "within 0.05 s" in said and trains
    assert newest(place).steps == 1
    assert sorted(path.name for path in place.iterdir()) == ["gate", "step_00001"]


def failed_then_saved(folder):
    trainer = trainer_of(TWO)
    saver = AsyncSaver(trainer)
    if trainer.axes.rank == 1:
        torch.save = refuse
    saver.save(folder / "step_00001")
    saver.thread.join()
    torch.save = SAVE
    said = said_by(lambda: saver.save(folder / "step_00002"))
    saver.save(folder / "step_00003")
    saver.wait()
    return said


def refuse(*_):
    raise OSError(28, "No space left on device")


def test_the_next_save_says_on_every_rank_what_went_wrong(ranks, tmp_path):
    for said in ranks[:2].run(failed_then_saved, tmp_path):
        assert "rank 1 could not write" in said and "No space left on device" in said
    assert [path.name for path in tmp_path.iterdir()] == ["step_00003"]


def abandoned(place, all_voted):
    trainer = trainer_of(TWO)
    saver = AsyncSaver(trainer)
    with Gate(place, rank=1) as gate:
        saver.save(step_folder(place, 1))
        thread = saver.thread
        if all_voted and trainer.axes.rank == 0:
            gate.open()
        if all_voted:
            saver.voted.wait()
            dist.barrier()
        if trainer.axes.rank == 0:
            saver.abandon()
        dist.barrier()
        there = step_folder(place, 1).exists()
        if not all_voted and trainer.axes.rank == 0:
            gate.open()
        thread.join()
    return there, thread.is_alive()


@pytest.mark.parametrize("all_voted", [True, False])
def test_after_a_death_nobody_waits_and_what_all_have_written_appears(ranks, place, all_voted):
    assert ranks[:2].run(abandoned, place, all_voted) == [(all_voted, False)] * 2


def kept(folder):
    trainer = trainer_of(TWO)
    saver = AsyncSaver(trainer, keeper=Keeper(keep=1))
    for _ in range(3):
        train(trainer, 1)
        saver.save(step_folder(folder, trainer.steps), also={"position": 8 * trainer.steps})
    saver.wait()
    return trainer_of(TWO, newest(folder).folder).also


def test_the_keeper_comes_after_the_new_one(ranks, tmp_path):
    assert ranks[:2].run(kept, tmp_path) == [{"position": 24}] * 2
    assert [path.name for path in tmp_path.iterdir()] == ["step_00003"]
