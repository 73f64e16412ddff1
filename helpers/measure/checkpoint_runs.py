"""What chapter 12 does to checkpoints: saved beside torch's own, and damaged in every way.

`damages` has ranks of its own, since it kills them; the functions that they run are the short ones.
"""

from __future__ import annotations

import errno
import os
import re
import resource
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import AdamW

from helpers.compose import Plan, Trainer
from helpers.compose.checkpoint import AsyncSaver, newest, step_folder
from helpers.compose.checkpoint import saving as steps_of_a_save
from helpers.compose.checkpoint.manifest import MANIFEST, Contents, Manifest, read
from helpers.measure.compose_runs import example
from helpers.measure.equality import assert_equal
from helpers.ranks import RankError, Ranks
from helpers.words import Words, book
from helpers.workloads import GPT, GPTConfig, token_loss

SAYS = book("checkpoint").section("harm")
HOW = dict(loss=token_loss, optimizer=AdamW, lr=3e-3)
SMALL = GPTConfig.tiny(num_layers=4, hidden=64, num_heads=4)


def trainer_of(plan: Plan, config: GPTConfig = SMALL, folder: Path | None = None) -> Trainer:
    """On a rank: after a step, so that the optimizer has its state; or as a checkpoint has it."""
    torch.manual_seed(0)
    if folder is not None:
        return Trainer.load(folder, GPT(config), plan, **HOW)
    trainer = Trainer(GPT(config), plan, **HOW)
    trainer.step(*example(0))
    return trainer


# ---- beside torch.distributed.checkpoint ----


class Beside(NamedTuple):
    """Seconds of a save, and for how long an asynchronous one stops the step. equal: the verdict on both, resharded."""

    ours: float
    torch: float
    our_stall: float
    torch_stall: float
    equal: str


def beside_torch(ranks: Ranks, config: GPTConfig = SMALL, repeats: int = 3) -> Beside:
    """On 4 ranks: saved sharded by ZeRO-3 (torch: Shard(0)), loaded by dp 2 x tp 2 (torch: Shard(1) on 2 x 2).

    Medians of `repeats` saves, each of which takes as long as its slowest rank; the first of all is not counted.
    """
    with tempfile.TemporaryDirectory() as place:
        ours = ranks[:4].run(_ours, Path(place), config, repeats)
        theirs = ranks[:4].run(_torchs, Path(place), repeats)
        again = ranks[:4].run(_resharded, Path(place), config)
        verdict = assert_equal(_values(Path(place) / "ours_0"), [*again, *(found for found, _ in theirs)], rtol=0)
    pairs = ours, [times for _, times in theirs]
    (our_save, our_stall), (their_save, their_stall) = (
        (statistics.median(max(times) for times in zip(*rows, strict=True)) for rows in zip(*side, strict=True))
        for side in pairs
    )
    return Beside(our_save, their_save, our_stall, their_stall, verdict)


def _ours(place: Path, config: GPTConfig, repeats: int) -> tuple[list[float], list[float]]:
    trainer = trainer_of(Plan(dp=4, zero=3), config)
    saver = AsyncSaver(trainer)
    whole = [_seconds(lambda to=place / f"ours_{i}": (saver.save(to), saver.wait())) for i in range(repeats + 1)]
    stalls = []
    for i in range(repeats):
        stalls.append(_seconds(lambda to=place / f"later_{i}": saver.save(to)))
        saver.wait()
    return whole[1:], stalls


def _torchs(place: Path, repeats: int) -> tuple[dict[str, Tensor], tuple[list[float], list[float]]]:
    import torch.distributed.checkpoint as dcp  # with DTensor, seconds that only this needs
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    line, square = init_device_mesh("cpu", (4,)), init_device_mesh("cpu", (2, 2))
    values = _values(place / "ours_0")
    state = {name: distribute_tensor(one, line, [Shard(0)]) for name, one in values.items() if one.dim()}
    single = {name: one for name, one in values.items() if not one.dim()}
    whole = [
        _seconds(lambda to=place / f"torch_{i}": dcp.save(state | single, checkpoint_id=to)) for i in range(repeats + 1)
    ]
    stalls, writing = [], []
    for i in range(repeats):
        to = place / f"torch_later_{i}"
        stalls.append(_seconds(lambda to=to: writing.append(dcp.async_save(state | single, checkpoint_id=to))))
        writing.pop().result()
    empty = {name: torch.zeros_like(one) for name, one in values.items()}
    cut = {
        name: distribute_tensor(one, square, [Replicate(), Shard(one.dim() - 1)]) if one.dim() else one
        for name, one in empty.items()
    }
    dcp.load(cut, checkpoint_id=place / "torch_later_0")
    return {name: one.full_tensor() if one.dim() else one for name, one in cut.items()}, (whole[1:], stalls)


def _resharded(place: Path, config: GPTConfig) -> dict[str, Tensor]:
    """Ours, loaded under another plan and saved from there."""
    trainer = trainer_of(Plan(dp=2, tp=2), config, place / "later_0")
    trainer.save(place / "resharded")
    return _values(place / "resharded")


def _values(folder: Path) -> dict[str, Tensor]:
    """Every whole tensor of a checkpoint."""
    contents = Contents(folder, read(folder))
    names = [(name, key) for name in contents.pieces for key in contents.keys(name)]
    return {f"{key} of {name}": contents.value(name, key) for name, key in names}


def _seconds(work: Callable[[], object]) -> float:
    dist.barrier()
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


# ---- damages ----


class Damage(NamedTuple):
    """done: to the second of two checkpoints. said: by the save, or by the load. offered: the newest whole one."""

    done: Words
    said: str
    offered: str


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def no_space() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def before(owner: object, name: str, act: Callable[[], object], call: int = 1) -> AbstractContextManager:
    """In here, `act` comes before the so-manieth call of a step of the save."""
    real, calls = getattr(owner, name), iter(range(1, 1_000_000))

    def instead(*args):
        if next(calls) == call:
            act()
        return real(*args)

    return patch.object(owner, name, instead)


@contextmanager
def small_files(size: int = 4096) -> Iterator[None]:
    """In here, no file grows beyond so many bytes: the system says no, as it does where a quota is used up."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


FILE = steps_of_a_save._File
KILLED = {  # the rank, and what comes before what
    "before_data": (1, lambda: before(FILE, "__enter__", kill)),
    "amid_data": (1, lambda: before(FILE, "write", kill, call=9)),
    "before_manifest": (0, lambda: before(Manifest, "write", kill)),
    "before_name": (0, lambda: before(steps_of_a_save, "_to_disk", kill)),
}
REFUSED = {
    "no_space": (1, lambda: before(FILE, "write", no_space, call=9)),
    "small_files": (1, small_files),
    "slow_rank": (1, lambda: before(FILE, "__enter__", lambda: time.sleep(2))),
}


def harmed_save(folder: Path, harm: str) -> str:
    """On a rank: what an asynchronous save says to which something happens."""
    trainer = trainer_of(Plan(dp=2, zero=1), GPTConfig.tiny(context=16))
    rank, make = (KILLED | REFUSED)[harm]
    saver = AsyncSaver(trainer, limit=0.5 if harm == "slow_rank" else 60)
    with make() if dist.get_rank() == rank else nullcontext():
        try:
            saver.save(folder)
            saver.wait()
        except ValueError as error:
            return str(error)
    return ""


def plain_save(folder: Path) -> None:
    trainer_of(Plan(dp=2, zero=1), GPTConfig.tiny(context=16)).save(folder)


def plain_load(folder: Path) -> str:
    try:
        trainer_of(Plan(dp=2, zero=1), GPTConfig.tiny(context=16), folder)
    except ValueError as error:
        return str(error)
    return ""


def flip(path: Path) -> None:
    """One bit in the middle."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGED: dict[str, Callable[[Path], object]] = {
    "flipped": lambda folder: flip(folder / "rank_1.pt"),
    "half": lambda folder: os.truncate(folder / "rank_1.pt", (folder / "rank_1.pt").stat().st_size // 2),
    "no_file": lambda folder: (folder / "rank_0.pt").unlink(),
    "flipped_manifest": lambda folder: flip(folder / MANIFEST),
    "no_manifest": lambda folder: (folder / MANIFEST).unlink(),
}


def damages(*only: str) -> list[Damage]:
    """Of two checkpoints the second meets with something, on 2 ranks: a writer is killed, cannot write or is slow, or
    what was written is damaged. Names of KILLED, REFUSED and DAMAGED, all if none is given."""
    with Ranks(2, device="cpu", quiet=True) as ranks:
        return [_met(ranks, harm) for harm in only or (*KILLED, *REFUSED, *DAMAGED)]


def _met(ranks: Ranks, harm: str) -> Damage:
    with tempfile.TemporaryDirectory() as place:
        folder, second = Path(place), step_folder(place, 20)
        ranks.run(plain_save, step_folder(place, 10))
        if harm in REFUSED:
            said = ranks.run(harmed_save, second, harm)[0]
        else:
            if harm in KILLED:
                _expect_a_death(ranks, second, harm)
            else:
                ranks.run(plain_save, second)
                DAMAGED[harm](second)
            said = ranks.run(plain_load, second)[0]
        found = newest(folder)
    short = re.sub(r"\.\w{8}\.partial", ".partial", said.replace(f"{folder}{os.sep}", ""))
    return Damage(SAYS[harm], short, found.folder.name if found else "")


def _expect_a_death(ranks: Ranks, folder: Path, harm: str) -> None:
    try:
        ranks.run(harmed_save, folder, harm)
    except RankError as error:
        if error.kind == "died":
            return
        raise
    raise RuntimeError(f"nobody died {harm}")
