"""Runs one rank's process: its main thread runs tasks, and its control thread answers, interrupts and leaves.

    kernel ──pipe──> control thread ──queue──> main thread: call | cell | reinit
    kernel <─pipe── ready, failed, out, where, done

"Kernel" is the notebook's process (or a script), which holds the other end of the pipe. A message is a tuple that
starts with its name. The kernel sends:

    call, cell   a task: call a function that was pickled, or run the source of a notebook cell
    reinit       leave the process groups, which a failure broke, and meet the other ranks in a new generation
    where        a question: which line is the main thread at, and what does it wait for?
    abort        make every pending operation of torch.distributed fail
    interrupt    raise KeyboardInterrupt in the task that runs

This process sends "ready" or "failed" after its start, "out" with printed text, "where" as the answer to that question,
and "done" with the result of a task.

The process ends when the pipe closes, and on Linux when its parent dies. After a failed task it drops modules whose
import was interrupted, and names the learner's variables that hold a process group, which have to be made again.
The "wire" is the wrapper around every process group of this process (helpers/ranks/wire): it compares each operation
with the other ranks' operations before it is issued, and can end operations that would wait forever. A `Words` is one
text in every language of the course. The "learner" is the person who wrote the functions and cells that run here.
"""

from __future__ import annotations

import ast
import contextlib
import ctypes
import datetime
import faulthandler
import json
import linecache
import os
import queue
import signal
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable, Container, MutableMapping
from multiprocessing.connection import Connection
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from helpers import devices
from helpers.devices.call_site import main_stack
from helpers.learner.words import Words
from helpers.ranks.board.errors import Failure, RankStatus, WaitingOperation, frames_of_error, is_runnable
from helpers.ranks.board.sites import Frame, frames_of, is_engine
from helpers.ranks.processes.messages import Capture, Outbox, pack_result, unpack
from helpers.ranks.wire import rules, wire
from helpers.ranks.wire.session import link_from_dict

MAX_ITEMS = 100  # of a container that is searched for process groups
MAX_NOTED_FRAMES = 40  # the innermost frames of the stack that a rank logs before it ends itself


def drop_interrupted_imports(
    known: Container[str] = (), modules: MutableMapping[str, ModuleType] = sys.modules
) -> list[str]:
    """Drop from sys.modules what an interrupted import left there, and return the names.

    Python takes back the module whose code was interrupted, but not the modules that it had imported by then: `a` is
    gone, while `a.b` stays and knows the old `a`. The next `import a` finds `a.b`, never binds it to the new `a`, and
    fails far from the cause with "partially initialized module". Without `a.b` the import begins anew. Call this after
    an interrupt, while nothing is being imported.

    known: names of modules that had been imported before the task, which stay. modules: sys.modules, or a test's dict.
    """
    forgotten = [name for name, module in list(modules.items()) if name not in known and _is_unfinished(module)]
    for name in forgotten:
        del modules[name]
    # Dropping `a.b` makes an orphan of `a.b.c`, so this repeats until no orphan is left.
    while orphans := [name for name in list(modules) if name not in known and _is_orphan(name, modules)]:
        for name in orphans:
            del modules[name]
        forgotten += orphans
    return forgotten


def is_torch_module(name: str) -> bool:
    """Whether a module is torch's own.

    Some of these register themselves while they are imported, and refuse to do so twice ("already registered in
    mega-cache"), so only a new process can begin their import anew.
    """
    return name.partition(".")[0] == "torch"


def _is_unfinished(module: ModuleType) -> bool:
    """Whether the code of a module is still being run by an import, which importlib notes in the module's spec."""
    return getattr(getattr(module, "__spec__", None), "_initializing", False) is True


def _is_orphan(name: str, modules: Container[str]) -> bool:
    """Whether the package that contains this module ("a" for "a.b") is not among the modules."""
    package = name.rpartition(".")[0]
    return bool(package) and package not in modules


def group_variables(namespace: dict[str, Any]) -> list[str]:
    """Names of the variables through which a process group or a mesh can be reached.

    After a failure the groups are made anew, so the learner is told to make what these variables hold again, too.
    """
    return sorted(name for name, value in namespace.items() if not name.startswith("__") and has_group(value))


def has_group(value: Any, depth: int = 3) -> bool:
    """Whether a process group or a mesh can be reached from this value.

    depth: how many containers or objects deep to look. Of a long container only the first MAX_ITEMS items are looked
    at, because this search runs after every failure and must not take long.
    """
    if isinstance(value, dist.ProcessGroup | DeviceMesh):
        return True
    if depth == 0 or isinstance(value, type | torch.Tensor | str | bytes | int | float):
        return False
    if isinstance(value, torch.nn.Module):
        # 1: only the attributes of each module, and what a container among them holds.
        return any(has_group(v, 1) for module in value.modules() for v in vars(module).values())
    if isinstance(value, list | tuple | set | dict):
        items = value.values() if isinstance(value, dict) else value
        return any(has_group(v, depth - 1) for v in list(items)[:MAX_ITEMS])
    if type(value).__module__.split(".")[0] in ("builtins", "types"):
        return False  # functions, for example: their attributes hold no groups
    return any(has_group(v, depth - 1) for v in getattr(value, "__dict__", {}).values())


PR_SET_PDEATHSIG = 1  # the number in Linux's <sys/prctl.h>: "send me this signal when my parent dies"
# The original os._exit. `_note_deaths` replaces os._exit by a function that first logs where the process ended, for the
# learner's code that ends its own process. A rank that ends because its kernel is gone does not need that.
_leave = os._exit
ACTIVE: Worker | None = None  # the worker of this process, if it is a rank


class Worker:
    """One rank: its pipe to the kernel, its tasks, and the namespace of its cells.

    fd: the file descriptor of this process's end of the pipe. spec: what the kernel asked for (`Pool._spec` in pool.py
    fills it):

        rank, world_size, env       of this rank; env has environment variables to set
        seed                        from which this process alone draws its random numbers (spec.py)
        folder, board, generation   a folder for logs and rendezvous files, a folder in shared memory in which ranks
                                    compare their operations, and how often the ranks have met again after a failure
        device, local_device        the kind of device ("cpu", "cuda" or "card", a simulated GPU) and its index
        card_bytes                  the memory of a simulated GPU
        backend, group_timeout      "wire", "gloo", "nccl" or "none" (make no process group), and its timeout in seconds
        link, check, slow, rules    settings of the wire: an emulated network link, whether ranks compare operations,
                                    {rank: seconds} by which its operations are delayed, and the name of the backend
                                    whose rules are applied, "gloo" or "nccl"
    """

    def __init__(self, fd: int, spec: dict[str, Any]):
        self.conn, self.spec = Connection(fd), spec
        self.outbox = Outbox(self.conn)
        self.rank, self.world_size = spec["rank"], spec["world_size"]
        self.tasks = queue.SimpleQueue()
        self.busy = False  # whether a task runs, which an interrupt may cut
        self.was_cut = False  # whether an interrupt has cut the present task
        self.main_thread = threading.main_thread()
        self.group_is_up = False  # whether this rank is in the default process group
        self.pid = os.getpid()
        # Whether this process is not to be used again, because an interrupt cut an import of torch (see `step`).
        self.spent = False
        self.namespace: dict[str, Any] = {}

    # -- life ------------------------------------------------------------------------------------------------------
    def serve(self) -> None:
        """Set the process up, join the process group, then run one task after the other until the process ends."""
        self.log = _own_process(self.spec["folder"], self.rank)
        _note_deaths(self.log)
        os.environ.update({str(k): str(v) for k, v in self.spec["env"].items()})
        self.output = sys.stdout = sys.stderr = Capture(lambda text: self.send(("out", text)))
        sys.stdin = open(os.devnull)  # noqa: SIM115 - input() on a rank ends at once
        torch.set_num_threads(1)
        signal.signal(signal.SIGINT, self.on_interrupt)
        if self.spec.get("card_bytes"):
            devices.install(self.spec["device"], self.spec["card_bytes"])
        devices.seed_generators(self.spec["seed"], self.spec["device"])
        self.namespace = self.fresh_namespace()
        threading.Thread(target=self.control, daemon=True, name="control").start()
        try:
            self.join_group(self.spec["generation"])
        except Exception as error:
            self.send(("failed", self.failure(error)))
            return  # the process ends
        self.send(("ready", os.getpid()))
        while True:
            with contextlib.suppress(KeyboardInterrupt):
                self.step(self.tasks.get())

    def join_group(self, generation: int) -> None:
        """Join the default process group of this generation, through files that no earlier generation has used.

        An operation that is left over from an earlier generation can therefore never meet one of this generation.
        Backend "none": the task makes the groups itself, as the processes of an elastic job do.
        """
        if self.group_is_up:
            with contextlib.suppress(Exception):
                dist.destroy_process_group()
            self.group_is_up = False
        if (device := self.device()).index is not None:
            devices.module_of(device).set_device(device)
        backend = self.spec["backend"]
        if backend == "none":
            return
        if backend == "wire":
            wire.reset()  # ends the old groups, if there are any
            wire.install(self.wire_config(generation))
        store = dist.FileStore(os.path.join(self.spec["folder"], f"store{generation}"), self.world_size)
        limit = datetime.timedelta(seconds=self.spec["group_timeout"])
        dist.init_process_group(backend, store=store, rank=self.rank, world_size=self.world_size, timeout=limit)
        self.group_is_up = True
        wire.release_closed_groups()  # every rank is in the new group, so none writes to the old connections any more

    def wire_config(self, generation: int) -> wire.WireConfig:
        """The settings of the wire: a new folder for each generation, the emulated link, and the injected faults."""
        board = os.path.join(self.spec["board"], f"board{generation}")
        os.makedirs(board, exist_ok=True)
        link, rules_name = link_from_dict(self.spec["link"]), self.spec.get("rules", "gloo")
        same = {name: self.spec[name] for name in ("rank", "world_size", "check", "slow")}
        return wire.WireConfig(board_dir=board, link=link, rules=rules_name, **same)

    def fresh_namespace(self) -> dict[str, Any]:
        """The global variables with which %%ranks cells begin. They are a module, so that pickle finds `__main__`."""
        module = types.ModuleType("__main__")
        sys.modules["__main__"] = module
        names = {"rank": self.rank, "world_size": self.world_size, "device": self.device()}
        vars(module).update(names, torch=torch, dist=dist)
        self.initial_names = set(vars(module))  # those that are not the learner's
        return vars(module)

    def device(self) -> torch.device:
        """What this rank computes on."""
        kind = self.spec["device"]
        return torch.device(kind, self.spec["local_device"]) if devices.is_accelerator(kind) else torch.device(kind)

    # -- messages --------------------------------------------------------------------------------------------------
    def send(self, message: tuple) -> None:
        """Send a message to the kernel."""
        if os.getpid() != self.pid:
            _leave(0)  # a fork of this rank has the same pipe, and would answer in its name
        self.outbox.send(message)

    def control(self) -> None:
        """Run by the control thread: answer questions at once, and queue tasks for the main thread."""
        try:
            while True:
                message = self.conn.recv()
                match message[0]:
                    case "where":
                        self.send(("where", self.where(), message[1]))  # with the number of the question
                    case "abort":
                        wire.fail_pending(message[1])  # the text of their error
                        wire.cut()  # closes the connections, because a thread may still wait inside gloo
                    case "interrupt":
                        if self.busy:
                            os.kill(os.getpid(), signal.SIGINT)
                    case _:
                        self.tasks.put(message)
        except (EOFError, OSError):
            _leave(0)
        except BaseException:
            os.write(self.log, traceback.format_exc().encode())
            _leave(1)  # without this thread the rank would hear nothing more, and the kernel would wait in vain

    def on_interrupt(self, *_: Any) -> None:
        """Handle SIGINT: raise KeyboardInterrupt in the task, if one runs, or after the message that is being sent."""
        if self.busy and not self.outbox.defer(self.on_interrupt):
            self.busy, self.was_cut = False, True
            raise KeyboardInterrupt

    def where(self) -> RankStatus:
        """Where the main thread is now, and the operations for which it waits."""
        return RankStatus(
            frames=self.own_frames(main_stack()),
            runnable=is_runnable(self.main_thread.native_id),
            waiting=[WaitingOperation(op=op.op, sequence=op.sequence, missing=op.missing) for op in wire.pending()],
            counters=dict(wire.counters()),
            cpu_seconds=time.process_time(),
        )

    @staticmethod
    def own_frames(frames: list[Frame]) -> list[Frame]:
        """The part of the stack that the learner's task called: what lies below this class's `call` or `cell`."""
        own = [i for i, (path, _, name) in enumerate(frames) if path == __file__ and name in ("call", "cell")]
        return frames[max(own, default=-1) + 1 :]

    # -- tasks -----------------------------------------------------------------------------------------------------
    def step(self, message: tuple) -> None:
        """Run one task, and send its result or its failure as "done"."""
        run = {"call": self.call, "cell": self.cell, "reinit": self.reinit}[message[0]]
        known_modules, self.was_cut = set(sys.modules), False
        try:
            try:
                devices.start_task()
                self.busy = True
                value = run(*message[1:])
            finally:
                self.busy = False
            reply = ("ok", value)
        except BaseException as error:
            reply = ("error", self.failure(error))
            del error  # it holds the frames of the task, and with them the learner's tensors
        for callback in rules.on_task_end:  # NCCL's rules write the end of the task into this rank's journal
            callback()
        if self.was_cut and any(map(is_torch_module, drop_interrupted_imports(known_modules))):
            self.spent = True
        self.output.finish()
        broken = wire.broken()  # the error after which these process groups cannot go on, or None
        self.send(("done", *reply, dict(wire.counters()), broken and broken.words, self.spent))

    def call(self, blob: bytes) -> bytes:
        """Call the function that was packed with its arguments, and pack its result."""
        fn, args, kwargs = unpack(blob)
        return pack_result(fn(*args, **kwargs))

    def cell(self, source: str, filename: str) -> str | None:
        """Run a cell in this rank's namespace. The representation of its last expression, unless it ends in ';'."""
        # Tracebacks take the lines of the cell from here. The None is a file's time, and a cell has none.
        linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
        tree = ast.parse(source, filename)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, filename, "exec"), self.namespace)
        if last is None:
            return None
        value = eval(compile(ast.Expression(last.value), filename, "eval"), self.namespace)
        return None if value is None or source.rstrip().endswith(";") else repr(value)

    def reinit(self, generation: int) -> list[str]:
        """Leave the groups and join new ones. Returns the learner's variables that still hold an old group."""
        holders = group_variables({k: v for k, v in self.namespace.items() if k not in self.initial_names})
        self.join_group(generation)
        return holders

    def failure(self, error: BaseException) -> Failure:
        """What the kernel needs to know of this exception, as data that can always be sent."""
        # The WireError behind this error, or None. Inside DDP's backward it arrives as a plain RuntimeError.
        from_wire = wire.cause_of(error)
        return Failure(
            type_name=type(error).__name__,
            message=str(from_wire or error),
            words=from_wire.words if from_wire else getattr(error, "words", None) or Words.of(str(error)),
            frames=self.own_frames(frames_of_error(error)),
            time=time.perf_counter(),
            traceback="".join(traceback.format_exception(error)),
            wire_kind=from_wire and from_wire.kind,
            culprit=from_wire and from_wire.culprit,
        )


def defer_signal(handle: Callable[[], None]) -> bool:
    """For a signal handler that raises: whether this rank is sending a message, so that the handler must not raise now.

    Then `handle` is called once the message has been sent. False where this process is no rank.
    """
    return ACTIVE is not None and ACTIVE.outbox.defer(handle)


def _own_process(folder: str, rank: int) -> int:
    """Give this process its own process group, make it die with its parent, and send what native code prints to a log.

    Returns the log's file descriptor.
    """
    os.setpgid(0, 0)
    if sys.platform.startswith("linux"):
        # None: what this process has loaded already, and so the C library.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    log = os.open(os.path.join(folder, f"rank{rank}.log"), os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    faulthandler.enable(file=log)
    return log


def _note_deaths(log: int) -> None:
    """Make this process write its stack to the log before it ends itself, since it cannot be asked afterwards.

    It ends itself through os._exit, os.abort, or a signal that it sends to itself. The kernel finds the line that
    starts with "last words" and tells the learner where the rank died.
    """

    def note() -> None:
        # Two frames up: neither this function nor the one that called it, but the caller of os._exit or os.kill.
        frames = [f for f in frames_of(sys._getframe(2)) if not is_engine(f[0])]
        os.write(log, b"\nlast words " + json.dumps(frames[-MAX_NOTED_FRAMES:]).encode() + b"\n")

    def noted(end):
        # The function `end`, which ends the process, with a note before it.
        def leave(*args: Any) -> None:
            note()
            end(*args)

        return leave

    def on_event(event: str, args: tuple) -> None:
        # An audit hook sees os.kill(pid, signal). Process 0 means the own group; SIGINT only interrupts.
        if event in ("os.kill", "os.killpg") and abs(args[0]) in (os.getpid(), 0) and args[1] != signal.SIGINT:
            note()

    os._exit, os.abort = noted(os._exit), noted(os.abort)
    sys.addaudithook(on_event)


def main(fd: int, spec: dict[str, Any]) -> None:
    """Be a rank until the process ends. fd: this process's end of the pipe."""
    global ACTIVE
    ACTIVE = Worker(fd, spec)
    ACTIVE.serve()


if __name__ == "__main__":
    from helpers.ranks.processes import worker  # under its own name, by which other modules find ACTIVE

    worker.main(int(sys.argv[1]), json.loads(sys.argv[2]))
