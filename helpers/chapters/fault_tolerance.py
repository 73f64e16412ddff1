"""What chapter 12 does to checkpoints: saved beside torch's own, and damaged in every way.

`damages` has ranks of its own, since it kills them; the functions that they run are the short ones.
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
from helpers.compose.checkpoint.manifest import MANIFEST, Contents, Manifest, read
from helpers.learner.words import Words, book
from helpers.observe.equality import assert_equal
from helpers.ranks import RankError, Ranks
from helpers.workloads import GPT, GPTConfig, token_loss

SAYS = book("checkpoint").section("harm")
MEDIUM, TINY = GPTConfig.tiny(num_layers=1, hidden=128, context=16), GPTConfig.tiny(context=16)
SHARDED = Plan(dp=2, zero=1)


def trainer_of(plan: Plan, config: GPTConfig, folder: Path | None = None) -> Trainer:
    """On a rank: after a step, so that the optimizer has its state; or as a checkpoint has it."""
    torch.manual_seed(0)
    how = dict(loss=token_loss, optimizer=AdamW, lr=3e-3)
    if folder is not None:
        return Trainer.load(folder, GPT(config), plan, **how)
    trainer = Trainer(GPT(config), plan, **how)
    trainer.step(*global_batch(0))
    return trainer


# ---- beside torch.distributed.checkpoint ----


class Beside(NamedTuple):
    """Seconds until an asynchronous save is on the disk, and for how long it stops the step. equal: the verdict on all
    tensors of both, loaded under another cut."""

    ours: float
    torch: float
    our_stall: float
    torch_stall: float
    equal: str


def beside_torch(ranks: Ranks, config: GPTConfig = MEDIUM, repeats: int = 3) -> Beside:
    """On 2 ranks: saved as ZeRO-3 shards it (torch: Shard(0)), asynchronously, and loaded by tp 2 (torch: Shard(-1)).

    Medians of `repeats` saves, each as long as its slowest rank takes; a first one is not counted.
    """
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        ours = ranks[:2].run(_ours, place, config, repeats)
        theirs = ranks[:2].run(_torchs, place, repeats)
        found = ranks[:2].run(_resharded, place, config)
        equal = assert_equal(values_in(place / "ours_0"), [*found, *(values for values, _ in theirs)], rtol=0)
    seconds = [
        statistics.median(max(pair) for pair in zip(*by_rank, strict=True))
        for side in (ours, [times for _, times in theirs])
        for by_rank in zip(*side, strict=True)
    ]
    return Beside(seconds[0], seconds[2], seconds[1], seconds[3], equal)


def _ours(place: Path, config: GPTConfig, repeats: int) -> tuple[list[float], list[float]]:
    saver = AsyncSaver(trainer_of(Plan(dp=2, zero=3), config))
    return _timed(lambda i: saver.save(place / f"ours_{i}"), lambda _: saver.wait(), repeats)


def _torchs(place: Path, repeats: int) -> tuple[dict[str, Tensor], tuple[list[float], list[float]]]:
    import torch.distributed.checkpoint as dcp  # with DTensor, seconds that only this needs
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh, values = init_device_mesh("cpu", (2,)), values_in(place / "ours_0")

    def cut(dim: int, times: int) -> dict[str, Tensor]:
        made = {name: one * times for name, one in values.items()}
        return {
            n: distribute_tensor(one, mesh, [Shard(dim % one.dim())], src_data_rank=None) if one.dim() else one
            for n, one in made.items()
        }

    rows, columns = cut(0, 1), cut(-1, 0)
    times = _timed(
        lambda i: dcp.async_save(rows, checkpoint_id=place / f"torch_{i}"), lambda made: made.result(), repeats
    )
    dcp.load(columns, checkpoint_id=place / "torch_0")
    return {name: one.full_tensor() if one.dim() else one for name, one in columns.items()}, times


def _timed(begin: Callable, wait: Callable, repeats: int) -> tuple[list[float], list[float]]:
    """Seconds of whole saves, and for how long each stopped the step."""
    whole, stalls = [], []
    for i in range(repeats + 1):
        dist.barrier()
        begun = time.perf_counter()
        made = begin(i)
        stalls.append(time.perf_counter() - begun)
        wait(made)
        whole.append(time.perf_counter() - begun)
    return whole[1:], stalls[1:]


def _resharded(place: Path, config: GPTConfig) -> dict[str, Tensor]:
    """Ours, loaded under another plan and saved from there."""
    trainer_of(Plan(tp=2), config, place / "ours_0").save(place / "resharded")
    return values_in(place / "resharded")


def values_in(folder: Path) -> dict[str, Tensor]:
    """Every whole tensor of a checkpoint."""
    contents = Contents(folder, read(folder))
    return {f"{key} of {name}": contents.value(name, key) for name in contents.pieces for key in contents.keys(name)}


# ---- damages ----


class Damage(NamedTuple):
    """done: to the second of two checkpoints. said: by the save, or by the load. offered: the newest whole one."""

    done: Words
    said: str
    offered: str


def kill(*_) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def half(tensors: list[Tensor], file: io.BufferedWriter, *, killed: bool) -> None:
    """As torch.save, until half of the bytes are written: then the process dies, or the disk is full."""
    _save(tensors, whole := io.BytesIO())
    file.write(whole.getvalue()[: whole.tell() // 2])
    file.flush()
    if killed:
        kill()
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def late(*given) -> None:
    time.sleep(2)
    _save(*given)


@contextmanager
def small_files() -> Iterator[None]:
    """In here, no file grows beyond 4 KiB: the system says no, as it does where a quota is used up."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def flip(path: Path, at: int | None = None) -> None:
    """One bit of a byte, in the middle if none is given."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2 if at is None else at] ^= 1
    path.write_bytes(content)


_save = torch.save
KILLED = {  # which rank, and what happens there instead of a step of the save
    "before_data": (1, lambda: patch.object(torch, "save", kill)),
    "amid_data": (1, lambda: patch.object(torch, "save", partial(half, killed=True))),
    "before_manifest": (0, lambda: patch.object(Manifest, "write", kill)),
    "before_name": (0, lambda: patch.object(saving, "_to_disk", kill)),
}
REFUSED = {
    "no_space": (1, lambda: patch.object(torch, "save", partial(half, killed=False))),
    "small_files": (1, small_files),
    "slow_rank": (1, lambda: patch.object(torch, "save", late)),
}
DAMAGED: dict[str, Callable[[Path], object]] = {
    "flipped": lambda folder: flip(folder / "rank_1.pt"),
    "half": lambda folder: os.truncate(folder / "rank_1.pt", (folder / "rank_1.pt").stat().st_size // 2),
    "no_file": lambda folder: (folder / "rank_0.pt").unlink(),
    "flipped_manifest": lambda folder: flip(folder / MANIFEST),
    "no_manifest": lambda folder: (folder / MANIFEST).unlink(),
}


def attempt(folder: Path, *, harm: str = "", load: bool = False) -> str:
    """On a rank: what a load says, or an asynchronous save to which something happens."""
    rank, make = (KILLED | REFUSED).get(harm, (0, nullcontext))
    try:
        trainer = trainer_of(SHARDED, TINY, folder if load else None)
        if not load:
            saver = AsyncSaver(trainer, limit=0.5 if harm == "slow_rank" else 60)
            with make() if dist.get_rank() == rank else nullcontext():
                saver.save(folder)
                saver.wait()
    except ValueError as error:
        return str(error)
    return ""


def damages(*only: str) -> list[Damage]:
    """Of two checkpoints the second meets with something, on 2 ranks: a writer is killed, cannot write or is slow, or
    what was written is damaged. only: names of KILLED, REFUSED and DAMAGED; all if none is given."""
    with Ranks(2, device="cpu", quiet=True) as ranks, tempfile.TemporaryDirectory() as place:
        ranks.run(attempt, Path(place) / "whole")
        return [_met(ranks, harm, Path(place) / "whole") for harm in only or (*KILLED, *REFUSED, *DAMAGED)]


def _met(ranks: Ranks, harm: str, whole: Path) -> Damage:
    with tempfile.TemporaryDirectory() as place:
        second, said = step_folder(place, 20), ""
        shutil.copytree(whole, step_folder(place, 10))
        if harm in DAMAGED:
            DAMAGED[harm](shutil.copytree(whole, second))
        else:
            with suppress(RankError) if harm in KILLED else nullcontext():
                said = ranks.run(attempt, second, harm=harm)[0]
        found = newest(place)
        said = said or ranks.run(attempt, second, load=True)[0]
    short = re.sub(r"\.\w{8}\.partial", ".partial", said.replace(f"{place}{os.sep}", ""))
    return Damage(SAYS[harm], short, found.folder.name if found else "")
