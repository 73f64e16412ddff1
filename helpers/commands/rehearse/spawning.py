"""Rehearses scripts that start their own ranks with torch.multiprocessing, as `python script.py` does without torchrun.

The main part of such a script must run once. Therefore rank 0 runs it alone, as the launcher, without torchrun's
environment variables, while the other ranks wait for its decisions, which rank 0 writes into the ranks' folder:

    spawn     The main part called mp.spawn, start_processes or Process(...).start(). Rank r then runs the function
              that was started as number r, in the file imported as `__mp_main__`, as a child process does. Rank 0 runs
              number 0 within this call, waits until the others have ended, and goes on with the main part. A script
              may do this several times. A rank for which there is no function waits for the next decision.
    end       The main part has ended.
    torchrun  The main part needs torchrun's variables or makes a process group itself. Then all ranks run the file as
              torchrun's workers do, rank 0 from its beginning.

Whether a script starts ranks is read from its text (`starts_ranks`). A function and its arguments are pickled, as for a
child process, so what cannot be pickled raises the script's own error.
"""

from __future__ import annotations

import ast
import contextlib
import copyreg
import multiprocessing
import os
import pickle
import sys
import time
import types
from collections.abc import Callable, Iterator
from multiprocessing import context, resource_sharer
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import torch.multiprocessing

from helpers.commands.rehearse import rank_notes
from helpers.commands.rehearse.redirect.unsupported import NotRehearsed
from helpers.devices.cards.torch_patches import replace_in_torch
from helpers.ranks.board.sites import is_library
from helpers.ranks.nccl import journal
from helpers.ranks.processes.spec import launched, torchrun_variables

# The environment variables of a script for torchrun (processes.py sets the last two as well).
TORCHRUN = (*torchrun_variables(0, 1, port=1), "NODE_RANK", "TORCHELASTIC_RUN_ID")
MODULES = ("torch.multiprocessing", "multiprocessing")
STARTERS = ("spawn", "start_processes", "Process", "get_context", "set_start_method")
BOOTSTRAPPING = (  # Python's message
    "An attempt has been made to start a new process before the current process has finished its bootstrapping phase: "
    "start the ranks inside `if __name__ == '__main__':`"
)
WAIT_SECONDS = 0.01  # between two looks for a decision
_launcher: Launcher | None = None  # of this process, while it runs the main part of a script


class NeedsTorchrun(BaseException):
    """Raised in the launcher where the script turns out to be one for torchrun. No script catches it by `Exception`."""


def starts_ranks(text: str) -> bool:
    """Whether a script calls a function of torch.multiprocessing or multiprocessing that starts processes."""
    modules, names = set(MODULES), set()
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {one.asname for one in node.names if one.name in MODULES and one.asname}
        elif isinstance(node, ast.ImportFrom):
            found = {one.name: one.asname or one.name for one in node.names}
            if node.module == "torch" and "multiprocessing" in found:
                modules.add(found["multiprocessing"])
            elif node.module in (*MODULES, "torch.multiprocessing.spawn"):
                names |= {found[name] for name in STARTERS if name in found}
    calls = [ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return any(call in names or call.rpartition(".")[0] in modules and _last(call) in STARTERS for call in calls)


def _last(name: str) -> str:
    return name.rpartition(".")[2]


class _Child:
    """A child process that is being started, as multiprocessing sees it when it pickles a queue, a pipe or a lock.

    Another rank gets a copy of a pipe's file descriptor from the process of rank 0, which has a thread for this.
    """

    DupFd = staticmethod(resource_sharer.DupFd)

    def duplicate_for_child(self, fd: int) -> int:
        return fd


class Launcher:
    """What the main part of a script starts, on rank 0 of `world_size` ranks. folder: in which ranks find decisions."""

    def __init__(self, path: str, folder: str, world_size: int):
        self.path, self.folder, self.world_size = path, Path(folder), world_size
        # Pickled, of each process that was started and has not run: (function, arguments, named arguments).
        self.calls: list[bytes] = []

    def add(self, function: Callable, args: tuple, named: dict[str, Any]) -> None:
        """Take one more process. Raises the script's error for what cannot be pickled."""
        if len(self.calls) == self.world_size:
            raise NotRehearsed("more_processes")
        context.set_spawning_popen(_Child())
        try:
            self.calls.append(bytes(ForkingPickler.dumps((function, args, named))))
        finally:
            context.set_spawning_popen(None)

    def run(self) -> None:
        """Let all ranks run the functions that were started; on this rank, number 0. Without any, it does nothing."""
        calls, self.calls = self.calls, []
        if not calls:
            return
        # With the key, other ranks may open memory that this one shares with its children.
        decide(self.folder, ("spawn", calls, dict(os.environ), bytes(multiprocessing.current_process().authkey)))
        before, main = dict(os.environ), sys.modules["__main__"]
        try:
            run_as_child(self.path, calls[0])
        finally:
            os.environ.clear()
            os.environ.update(before)
            sys.modules["__main__"] = main
        for rank in range(1, len(calls)):
            _wait_for(self.folder / f"ended{rank_notes.launch}.{rank}")


def decide(folder: Path, decision: tuple) -> None:
    """Write down the next decision, for which the other ranks wait. Each but the last is a launch."""
    rank_notes.launch += 1
    unfinished = folder / "decision.part"
    unfinished.write_bytes(pickle.dumps(decision))
    unfinished.rename(folder / f"decision{rank_notes.launch}")


def wait_for_decision(folder: Path) -> tuple:
    """The next decision of rank 0. The process that watches the ranks ends this wait if rank 0 fails."""
    rank_notes.launch += 1
    path = folder / f"decision{rank_notes.launch}"
    _wait_for(path)
    return pickle.loads(path.read_bytes())


def _wait_for(path: Path) -> None:
    """Wait until another rank has made a file. RehearsalProcesses knows this function by its name."""
    while not path.exists():
        time.sleep(WAIT_SECONDS)


def run_as_child(path: str, call: bytes) -> None:
    """Import the file as `__mp_main__`, as multiprocessing does in a child process, and make the call there."""
    global _launcher
    outer, _launcher = _launcher, None
    module = types.ModuleType("__mp_main__")
    module.__file__ = path
    sys.modules["__mp_main__"] = sys.modules["__main__"] = module
    from helpers.commands.rehearse.redirect import gpus  # it needs the card, which is installed when a script begins

    if torch.distributed.is_initialized():  # the process of an earlier launch would have ended with its group
        torch.distributed.destroy_process_group()
    try:
        with gpus.new_process():
            exec(compile(Path(path).read_bytes(), path, "exec", dont_inherit=True), vars(module))
            function, args, named = pickle.loads(call)
            function(*args, **named)
        journal.note("end")  # so that ranks that wait for this process hang, as they would when it had ended
    finally:
        _launcher = outer


def run_script(path: str, folder: str, rank: int, world_size: int, execute: Callable[[], None]) -> None:
    """Run a script that starts its own ranks, on this rank. execute: runs the file as `__main__`."""
    if rank > 0:
        return _follow(path, Path(folder), rank, execute)
    started = Launcher(path, folder, world_size)
    try:
        with _as_launcher(started), _without_torchrun():
            execute()
            started.run()  # processes that were started and for which nobody waited
    except NeedsTorchrun:
        pass
    except KeyError as error:
        if rank_notes.launch or not error.args or error.args[0] not in TORCHRUN:
            raise
    finally:
        if rank_notes.launch:
            decide(started.folder, ("end",))
    if not rank_notes.launch:
        decide(started.folder, ("torchrun",))
        rank_notes.launch = 0
        execute()


def _follow(path: str, folder: Path, rank: int, execute: Callable[[], None]) -> None:
    """Do what the launcher decides, on a rank other than 0."""
    while (decision := wait_for_decision(folder))[0] == "spawn":
        _, calls, environment, multiprocessing.current_process().authkey = decision
        if rank < len(calls):
            os.environ.clear()
            os.environ.update(environment)
            run_as_child(path, calls[rank])
            (folder / f"ended{rank_notes.launch}.{rank}").touch()
    if decision[0] == "torchrun":
        rank_notes.launch = 0
        execute()


@contextlib.contextmanager
def _as_launcher(launcher: Launcher) -> Iterator[None]:
    global _launcher
    _launcher = launcher
    try:
        yield
    finally:
        _launcher = None


@contextlib.contextmanager
def _without_torchrun() -> Iterator[None]:
    """Inside this context, the variables that torchrun sets are absent."""
    kept = {name: os.environ.pop(name) for name in TORCHRUN if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(kept)


def check_group() -> None:
    """Raises NeedsTorchrun where the main part of a script makes a process group before it has started ranks."""
    if _launcher is not None and not rank_notes.launch:
        raise NeedsTorchrun


# -- what torch.multiprocessing and multiprocessing offer ----------------------------------------------------------


class _Started:
    """What mp.spawn(join=False) returns, and start_processes."""

    def __init__(self, launcher: Launcher):
        self.launcher, self.processes = launcher, []

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        self.launcher.run()
        return True

    def pids(self) -> list[int]:
        return [os.getpid()] * self.launcher.world_size


def _start_processes(fn, args=(), nprocs=1, join=True, daemon=False, start_method="spawn") -> _Started | None:
    """torch.multiprocessing.start_processes, whose processes are the ranks."""
    _check_main()
    if _launcher is None:  # a worker of torchrun that spawns: each rank runs its own number
        fn(launched().rank, *args)
        return None
    for number in range(nprocs):
        _launcher.add(fn, (number, *args), {})
    started = _Started(_launcher)
    return None if join and started.join() else started


def _spawn(fn, args=(), nprocs=1, join=True, daemon=False, start_method="spawn") -> _Started | None:
    return _start_processes(fn, args, nprocs, join, daemon)


def _check_main() -> None:
    """Raises Python's error in a file that starts processes while it is imported by one of them."""
    main = sys.modules["__main__"]
    if main.__name__ == "__mp_main__" and _launcher is None:
        raise RuntimeError(BOOTSTRAPPING)


def replace() -> None:
    """Let the functions that start processes start ranks, for functions of the script itself."""
    spawning = torch.multiprocessing.spawn  # the module has the name of its function
    functions = {"spawn": _spawn, "start_processes": _start_processes}
    for name, new in functions.items():
        usual = getattr(torch.multiprocessing, name)
        replace_in_torch(name, usual, new)
        setattr(torch.multiprocessing, name, new)
    if isinstance(spawning, types.ModuleType):
        spawning.spawn = _spawn
    for one in (context.SpawnContext, context.ForkContext):
        one.Process = _process_or_rank(one.Process)
    plain = _process_or_rank(multiprocessing.Process)
    multiprocessing.Process = torch.multiprocessing.Process = plain


def _process_or_rank(usual: type) -> type:
    """A class like `usual`, a process of multiprocessing, whose call for a function of the script makes a rank."""

    class Process(usual):
        def __new__(cls, *args, **named):
            target = named.get("target", args[1] if len(args) > 1 else None)
            if cls is Process and _launcher is not None and _is_of_script(target):
                return _Rank(target, named.get("args", args[3] if len(args) > 3 else ()), named.get("kwargs") or {})
            return super().__new__(cls)

        def __reduce__(self):
            return copyreg._reconstructor, (usual, object, None), vars(self)  # a usual one in the process that starts

    Process.__name__ = Process.__qualname__ = usual.__name__
    return Process


def _is_of_script(target: Any) -> bool:
    code = getattr(target, "__code__", None)
    return code is not None and not is_library(code.co_filename)


class _Rank:
    """A process of the script that is a rank."""

    name, daemon, exitcode = "rank", False, None

    def __init__(self, target: Callable, args: tuple, named: dict[str, Any]):
        self.target, self.args, self.named, self.pid = target, tuple(args), named, os.getpid()

    def start(self) -> None:
        assert _launcher is not None
        _launcher.add(self.target, self.args, self.named)
        self.launcher, self.launch = _launcher, rank_notes.launch

    def join(self, timeout: float | None = None) -> None:
        self.launcher.run()
        self.exitcode = 0

    def is_alive(self) -> bool:
        return rank_notes.launch == self.launch

    def terminate(self) -> None:
        """The process that watches the ranks ends them."""

    kill = close = terminate
