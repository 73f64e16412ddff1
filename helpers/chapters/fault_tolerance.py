"""Runs chapter 12's checkpoints: ours compared with PyTorch's, and checkpoints that are damaged in every way.

A `Trainer` trains a model under a `Plan`: how many data parallel (dp) and tensor parallel (tp) ranks, and which stage
of ZeRO. Its checkpoint is a folder with one file per rank and a manifest, which names every file with its checksum; a
folder without a manifest is not complete. `AsyncSaver.save` starts to write one while training goes on, and `wait`
returns when it is on the disk. `newest(parent)` is the newest complete checkpoint of a folder.

`ranks.run(f)` calls f on every rank of a pool of processes. `damage_checkpoints` has ranks of its own, because it kills
them. The chapter's jobs under torchrun are in observe/torchrun.py.
"""

from __future__ import annotations

import errno
import io
import os
import re
import resource
import shutil
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import AdamW

from helpers.chapters.composing import global_batch
from helpers.compose import Plan, Trainer
from helpers.compose.checkpoint import AsyncSaver, newest, saving, step_folder
from helpers.compose.checkpoint.manifest import MANIFEST, CheckpointTensors, Manifest, read_manifest
from helpers.learner.words import Words, book
from helpers.observe.equality import assert_equal
from helpers.ranks import RankError, Ranks
from helpers.workloads import GPT, GPTConfig, token_loss

words = book("checkpoint").section("harm")  # name of a harm -> what is done, in both languages
MEDIUM, TINY = GPTConfig.tiny(num_layers=1, hidden=128, context=16), GPTConfig.tiny(context=16)
SHARDED = Plan(dp=2, zero=1)  # of the checkpoints that are damaged; both ranks write data, so either can be harmed


def trainer_of(plan: Plan, config: GPTConfig, folder: Path | None = None) -> Trainer:
    """On a rank: a Trainer after one step, so that the optimizer has its state; or loaded from `folder`."""
    torch.manual_seed(0)
    options = dict(loss=token_loss, optimizer=AdamW, lr=3e-3)
    if folder is not None:
        return Trainer.load(folder, GPT(config), plan, **options)
    trainer = Trainer(GPT(config), plan, **options)
    trainer.step(*global_batch(0))
    return trainer


# ---- compared with torch.distributed.checkpoint ----


class SaveTimes(NamedTuple):
    """Seconds until an asynchronous save is on the disk, and for how long it stops the step (stall).

    equal: the verdict on all tensors of both checkpoints, after loading them with another sharding, as one line, which
    stands once if both checkpoints have the same one.
    """

    ours: float
    torch: float
    our_stall: float
    torch_stall: float
    equal: str


def compare_with_torch(ranks: Ranks, config: GPTConfig = MEDIUM, repeats: int = 3) -> SaveTimes:
    """Asynchronous checkpoints of 2 ranks, ours and PyTorch's.

    They are saved as ZeRO-3 shards them (torch: Shard(0)), and loaded as tp 2 does (torch: Shard(-1)). The seconds are
    medians of `repeats` saves, each as long as its slowest rank takes; the first save does not count.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ours = ranks[:2].run(_time_our_saves, folder, config, repeats)
        by_torch = ranks[:2].run(_time_torch_saves, folder, repeats)
        loaded = ranks[:2].run(_reshard, folder, config)
        expected = full_tensors_of(folder / "ours_0")
        verdicts = [assert_equal(expected, of_ranks, rtol=0) for of_ranks in (loaded, [one for one, _ in by_torch])]

    def median_of_slowest(times: list[tuple[list[float], list[float]]]) -> list[float]:
        """Of the seconds, and of the stalls: the median of all saves, each as long as on its slowest rank."""
        return [statistics.median(map(max, *by_rank)) for by_rank in zip(*times, strict=True)]

    our_seconds, our_stall = median_of_slowest(ours)
    torch_seconds, torch_stall = median_of_slowest([times for _, times in by_torch])
    return SaveTimes(our_seconds, torch_seconds, our_stall, torch_stall, "; ".join(dict.fromkeys(verdicts)))


def _time_our_saves(folder: Path, config: GPTConfig, repeats: int) -> tuple[list[float], list[float]]:
    """On a rank: the seconds and the stalls of our saves, as `time_saves` returns them."""
    saver = AsyncSaver(trainer_of(Plan(dp=2, zero=3), config))
    return time_saves(lambda i: saver.save(folder / f"ours_{i}"), lambda _: saver.wait(), repeats)


def _time_torch_saves(folder: Path, repeats: int) -> tuple[dict[str, Tensor], tuple[list[float], list[float]]]:
    """On a rank: the full tensors that PyTorch loads with another sharding, and the seconds and stalls of its saves."""
    import torch.distributed.checkpoint as dcp  # with DTensor, seconds that only this needs
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh, values = init_device_mesh("cpu", (2,)), full_tensors_of(folder / "ours_0")

    def shard(dim: int, full: dict[str, Tensor]) -> dict[str, Tensor]:
        """Each tensor divided along this dimension, 0 or -1. Scalars are not divided."""
        return {
            name: distribute_tensor(one, mesh, [Shard(dim % one.dim())], src_data_rank=None) if one.dim() else one
            for name, one in full.items()
        }

    rows, columns = shard(0, values), shard(-1, {name: torch.zeros_like(one) for name, one in values.items()})
    times = time_saves(
        lambda i: dcp.async_save(rows, checkpoint_id=folder / f"torch_{i}"), lambda future: future.result(), repeats
    )
    dcp.load(columns, checkpoint_id=folder / "torch_0")
    return {name: one.full_tensor() if one.dim() else one for name, one in columns.items()}, times


def time_saves(begin: Callable, wait: Callable, repeats: int) -> tuple[list[float], list[float]]:
    """Seconds until each save is on the disk, and for how long it stopped the step. begin(number) starts a save."""
    totals, stalls = [], []
    for i in range(repeats + 1):
        dist.barrier()
        start = time.perf_counter()
        save = begin(i)
        stalls.append(time.perf_counter() - start)
        wait(save)
        totals.append(time.perf_counter() - start)
    return totals[1:], stalls[1:]


def _reshard(folder: Path, config: GPTConfig) -> dict[str, Tensor]:
    """The tensors of our checkpoint after loading it under another plan and saving it there."""
    trainer_of(Plan(tp=2), config, folder / "ours_0").save(folder / "resharded")
    return full_tensors_of(folder / "resharded")


def full_tensors_of(folder: Path) -> dict[str, Tensor]:
    """Every full tensor of a checkpoint: "key of name", where key is the weight, or part of its optimizer state."""
    contents = CheckpointTensors(folder, read_manifest(folder))
    return {f"{key} of {name}": contents.value(name, key) for name in contents.pieces for key in contents.keys(name)}


# ---- damaged checkpoints ----


class DamagedCheckpoint(NamedTuple):
    """What was done to the second of two checkpoints, and what came of it.

    done: what was done, in words. error: the message of the save, or of the load. offered: the name of the folder of
    the newest complete checkpoint, from which a job would go on, or "".
    """

    done: Words
    error: str
    offered: str


def kill_process(*_) -> None:
    """Kill this process, whatever it was called with."""
    os.kill(os.getpid(), signal.SIGKILL)


def save_half(tensors: list[Tensor], file: io.BufferedWriter, *, killed: bool) -> None:
    """Like torch.save until half of the bytes are written; then the process dies, or the disk is full."""
    content = io.BytesIO()
    torch_save(tensors, content)
    file.write(content.getvalue()[: content.tell() // 2])
    file.flush()
    if killed:
        kill_process()
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def save_late(*arguments) -> None:
    """Like torch.save, two seconds later."""
    time.sleep(2)
    torch_save(*arguments)


@contextmanager
def small_files() -> Iterator[None]:
    """Inside, the system refuses to let a file grow beyond 4 KiB, as it does where a quota is used up."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def flip_bit(path: Path, at: int | None = None) -> None:
    """Flip one bit of the byte at index `at`, or of the one in the middle."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2 if at is None else at] ^= 1
    path.write_bytes(content)


# What can happen to a checkpoint, by name. A harm to a save is (rank, function that makes a context), in which the save
# of that rank goes wrong. Rank 1 only writes its data; rank 0 then writes the manifest, and gives the folder its name.
torch_save = torch.save  # which the patches below replace
KILLED = {  # the process of the rank is killed in the middle of a save
    "before_data": (1, lambda: patch.object(torch, "save", kill_process)),
    "amid_data": (1, lambda: patch.object(torch, "save", partial(save_half, killed=True))),
    "before_manifest": (0, lambda: patch.object(Manifest, "write", kill_process)),
    # The folder is synced just before it gets its name.
    "before_name": (0, lambda: patch.object(saving, "_sync_folder", kill_process)),
}
REFUSED = {  # the rank cannot write, or not in time
    "no_space": (1, lambda: patch.object(torch, "save", partial(save_half, killed=False))),
    "small_files": (1, small_files),
    "slow_rank": (1, lambda: patch.object(torch, "save", save_late)),
}
DAMAGED: dict[str, Callable[[Path], object]] = {  # what happens to a complete checkpoint
    "flipped": lambda folder: flip_bit(folder / "rank_1.pt"),
    "half": lambda folder: os.truncate(folder / "rank_1.pt", (folder / "rank_1.pt").stat().st_size // 2),
    "no_file": lambda folder: (folder / "rank_0.pt").unlink(),
    "flipped_manifest": lambda folder: flip_bit(folder / MANIFEST),
    "no_manifest": lambda folder: (folder / MANIFEST).unlink(),
}


def attempt_save_or_load(folder: Path, *, harm: str = "", load: bool = False) -> str:
    """On a rank: the error of a load, or of an asynchronous save hit by `harm`; "" if there is none.

    harm: a key of KILLED or REFUSED. load: whether to load instead of saving.
    """
    rank, make_harm = (KILLED | REFUSED).get(harm, (0, nullcontext))
    try:
        trainer = trainer_of(SHARDED, TINY, folder if load else None)
        if not load:
            saver = AsyncSaver(trainer, limit=0.5 if harm == "slow_rank" else 60)  # seconds; `save_late` takes 2
            with make_harm() if dist.get_rank() == rank else nullcontext():
                saver.save(folder)
                saver.wait()
    except ValueError as error:
        return str(error)
    return ""


def damage_checkpoints(*only: str) -> list[DamagedCheckpoint]:
    """What happens to the second of two checkpoints on 2 ranks if its writer or its files are harmed.

    A writer is killed, cannot write or is slow, or what was written is damaged. only: names of KILLED, REFUSED and
    DAMAGED; all if none is given. The ranks are new ones, because some are killed.
    """
    with Ranks(2, device="cpu", quiet=True) as ranks, tempfile.TemporaryDirectory() as parent:
        ranks.run(attempt_save_or_load, Path(parent) / "complete")
        return [_damage_one(ranks, harm, Path(parent) / "complete") for harm in only or (*KILLED, *REFUSED, *DAMAGED)]


def what_finds_a_flipped_bit(error: str) -> str:
    """Say what finds a flipped bit of a weight, as a choice of 12.bitflip. error: of the Trainer's load."""
    file = io.BytesIO()
    torch.save(torch.ones(1000), file)
    content = bytearray(file.getvalue())
    content[len(content) // 2] ^= 1
    try:
        assert not torch.load(io.BytesIO(content)).equal(torch.ones(1000)), "the bit that flipped is not in the weights"
    except RuntimeError:
        return "torch.load, which raises an error"
    return "only a checksum of the file" if "SHA-256" in error else "the size of the file"


def _damage_one(ranks: Ranks, harm: str, complete: Path) -> DamagedCheckpoint:
    """Copy a complete checkpoint as step 10, make a damaged one as step 20, and load that."""
    with tempfile.TemporaryDirectory() as parent:
        second, error = step_folder(parent, 20), ""
        shutil.copytree(complete, step_folder(parent, 10))
        if harm in DAMAGED:
            DAMAGED[harm](shutil.copytree(complete, second))
        else:
            with suppress(RankError) if harm in KILLED else nullcontext():
                error = ranks.run(attempt_save_or_load, second, harm=harm)[0]
        newest_complete = newest(parent)  # None if there is none
        error = error or ranks.run(attempt_save_or_load, second, load=True)[0]
    # Without the folder's path and the random part of a temporary name, so that each run gives the same message.
    short = re.sub(r"\.\w{8}\.partial", ".partial", error.replace(f"{parent}{os.sep}", ""))
    return DamagedCheckpoint(words[harm], short, newest_complete.folder.name if newest_complete else "")
