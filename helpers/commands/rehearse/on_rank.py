"""Runs the rehearsed script on one rank as `__main__`, on a practice card that says "cuda", over the wire.

A practice card is a simulated GPU, and `memory` is its allocator. The wire is this course's process-group backend,
which reports each operation as an event and keeps a journal from which is judged what NCCL would have done. This module
also counts what holds the card's memory (`bytes_by_kind`), for the error of a card that is full.
"""

from __future__ import annotations

import gc
import os
import sys
import traceback
import types
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch.cuda.comm
import torch.distributed.device_mesh
import torch.distributed.fsdp  # here, so that ranks are forked with it: importing it takes each rank a second
import torch.distributed.optim
import torch.distributed.pipelining
import torch.distributed.tensor.parallel  # noqa: F401
from torch import Tensor
from torch.utils._pytree import tree_iter

from helpers.commands.rehearse import rank_notes, redirect, spawning
from helpers.devices.cards import races, tensor
from helpers.devices.cards.tensor import CardTensor, memory
from helpers.ranks.board.sites import describe
from helpers.ranks.nccl import journal
from helpers.ranks.processes import worker
from helpers.ranks.processes.messages import Capture
from helpers.ranks.processes.spec import launched
from helpers.ranks.wire import wire


def bytes_by_kind() -> dict[str, int]:
    """Bytes of parameters, gradients, the optimizer's state, and of all the rest, which is mostly activations.

    Parameters and optimizers are found among all of Python's objects. A storage that two tensors share counts once.
    """
    parameters, states = [], []
    for one in gc.get_objects():
        if isinstance(one, torch.nn.Parameter):
            parameters.append(one)
        elif isinstance(one, torch.optim.Optimizer):
            states += [leaf for leaf in tree_iter(dict(one.state)) if isinstance(leaf, Tensor)]
    states = [one for one in states if not isinstance(one, torch.nn.Parameter)]
    known: set[int] = set()
    found = {
        "parameters": _bytes(parameters, known),
        "gradients": _bytes([one.grad for one in parameters if one.grad is not None], known),
        "optimizer state": _bytes(states, known),
    }
    return found | {"activations and others": memory.allocated - sum(found.values())}


def _bytes(tensors: list[Tensor], known: set[int]) -> int:
    """Bytes of these tensors on the card. known: addresses of storages that count already; it adds those of these."""
    total = 0
    for one in tensors:
        local = getattr(one, "_local_tensor", one)  # the part of a DTensor on this rank
        # _raw: the tensor on the CPU in which a tensor of the card keeps its elements.
        if isinstance(local, CardTensor) and memory.holds(storage := local._raw.untyped_storage()):
            if storage._cdata not in known:
                known.add(storage._cdata)
                total += storage.nbytes()
    return total


@dataclass(frozen=True, kw_only=True)
class ScriptTask:
    """What a rank runs.

    path, args: the script and its arguments. folder: of these ranks alone, for notes and journals.
    cwd: the folder in which the rehearsal was called. gpus_of_node: how many GPUs the script sees.
    memory: bytes that a GPU says it has.
    """

    path: str
    args: tuple[str, ...]
    folder: str
    cwd: str
    gpus_of_node: int
    memory: int


def run(task: ScriptTask) -> int:
    """Run the script to its end. Returns its exit code, 0 unless it called sys.exit; other errors pass through."""
    place = launched()
    rank = place.rank
    rank_notes.open_notes(rank, task.folder)
    _print_from_here_alone()
    messages: Counter = Counter()  # (operation, "number" or "bytes") -> sum over its events
    wire.subscribe(lambda event: messages.update({(event.op, "number"): 1, (event.op, "bytes"): event.payload_bytes}))
    _keep_journal(rank, task.folder)
    redirect.install(task.gpus_of_node, task.folder, task.memory)
    spawning.replace()
    redirect.watch()
    ok = False  # whether the script ended without an error
    tensor.memory.by_kind = bytes_by_kind  # which the error of a full card calls
    _prepare(task)
    try:
        if spawning.starts_ranks(Path(task.path).read_text(encoding="utf-8")):
            spawning.run_script(task.path, task.folder, rank, place.world_size, lambda: _execute(task))
        else:
            _execute(task)
        ok = True
        return 0
    except SystemExit as end:
        code = 0 if end.code is None else end.code if isinstance(end.code, int) else 1
        ok = not code
        if code:
            frames = [(f.filename, f.lineno or 1, f.name) for f in traceback.extract_tb(end.__traceback__)]
            rank_notes.note("exit", code=code, frames=frames)
            if not isinstance(end.code, int):
                print(end.code, file=sys.stderr)
        return code
    finally:
        journal.note("end", ok=ok)
        if ok:
            redirect.note_at_the_end()
        listed = sorted({op for op, _ in messages})
        counts = [(op, messages[op, "number"], messages[op, "bytes"]) for op in listed]
        rank_notes.note("end", peak=tensor.memory.peak, messages=counts)


def _keep_journal(rank: int, folder: str) -> None:
    """Keep a journal of what happens outside of every process group, such as races between streams.

    Each default group of the script has a folder "world0.1", … with journals, and this one is in "world0".
    """
    world = os.path.join(folder, "world0")
    os.makedirs(world, exist_ok=True)
    # A world of one rank, because no other rank takes part. eager says when NCCL would make communicators: never here.
    journal.keep_open(journal.FileJournal(world, rank, 1, eager=None))
    races.listen(note=journal.note, found=journal.note_finding, describe=describe)


def _prepare(task: ScriptTask) -> None:
    """Give the script the working folder, arguments and path of imports that it expects."""
    os.chdir(task.cwd)
    sys.argv = [task.path, *task.args]
    sys.path[:0] = [os.path.dirname(task.path)]


def _execute(task: ScriptTask) -> None:
    """Run the script in a new module `__main__`."""
    module = types.ModuleType("__main__")
    module.__file__ = task.path
    sys.modules["__main__"] = module
    exec(compile(Path(task.path).read_bytes(), task.path, "exec", dont_inherit=True), vars(module))


def _print_from_here_alone() -> None:
    """Send what this process prints to the process that watches, and drop what its forks print.

    A DataLoader's worker is such a fork. It has the same pipe, and two writers would mix their messages in it.
    """
    rank, owner = worker.ACTIVE, os.getpid()  # ACTIVE: the engine's object for the rank of this process
    if rank is not None:
        rank.output = sys.stdout = sys.stderr = Capture(
            lambda text: rank.send(("out", text)) if os.getpid() == owner else None
        )
