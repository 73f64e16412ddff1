"""Our thread inside somebody else's process: it writes down, four times per second, where that process is.

A `sitecustomize` loads this file by its path before the script's first line, so it needs the standard library alone. It
must not show: it prints nothing, and reads torch only where the script has loaded it. Nothing here is measured by the
clock on the wall: a process lives while it sleeps and while it computes, not while it wants a core.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import gc
import json
import os
import signal
import sys
import threading
import time
import traceback
from itertools import accumulate, chain, repeat, starmap, takewhile
from operator import attrgetter, methodcaller

BEAT = 0.25  # seconds
FOLDER, WATCHER = "RANKS_JOB", "RANKS_JOB_WATCHER"
ASKED = "asked"  # a file of the folder: whoever finds it says more, once
RARE = 0.5  # waits per second that still are one wait: a DataLoader looks up every 5 s
ASKS = ("send", "recv", "isend", "irecv")  # the last four letters are the operation
PLACE = attrgetter("f_code.co_filename", "f_lineno", "f_code.co_name")
CALL = attrgetter("f_code.co_filename", "f_code.co_name", "f_locals")
INSIDE = FAULT = None


def stack(thread):
    """[file, line, function], outermost call first."""
    return [[path, line or 0, name] for path, line, name in reversed(at_once(map(PLACE, frames_of(thread))))]


def frames_of(thread):
    """From the innermost call outwards; nothing is looked at before the first is taken."""
    innermost = map(methodcaller("get", thread), starmap(sys._current_frames, [()]))
    return takewhile(bool, accumulate(chain(innermost, repeat("f_back")), getattr))


def at_once(lazy):
    """What comes of frames, which nobody holds while their thread goes on: see helpers.devices.call_site."""
    collects = gc.isenabled()
    gc.disable()
    try:
        return list(lazy)
    finally:
        if collects:
            gc.enable()


class Inside:
    """One process. What it says stands in a file of its own, which outlives it."""

    def __init__(self, folder):
        self.folder, self.pid, self.main = folder, os.getpid(), threading.main_thread()
        self.watcher, self.lock, self.is_over = int(os.environ.get(WATCHER, 0)), threading.Lock(), False
        self.stood = self.unmoved = self.used = 0.0
        self.seen, self.calls, self.answer, self.last = None, {}, {}, (time.monotonic(), 0.0)

    def serve(self):
        self.thread = threading.get_native_id()
        while not self.watcher or lives(self.watcher):
            time.sleep(BEAT)
            with contextlib.suppress(Exception):  # it is not the script's trouble; the interpreter may be ending
                self.beat()
                self.write(answer=not self.answer and os.path.exists(os.path.join(self.folder, ASKED)))
        os._exit(1)  # nobody watches any more, and nobody else would end this process

    def beat(self):
        """stood: how long it has been in one place. used: seconds of processor since. unmoved: since the last call."""
        now, cpu, waits = time.monotonic(), time.process_time() - time.thread_time(), self.waits()
        passed, used, self.last = min(now - self.last[0], 2 * BEAT), max(cpu - self.last[1], 0.0), (now, cpu)
        lived = min(used, passed) if self.is_runnable() else passed
        here, calls = stack(self.main.ident), self.issued()
        stands = self.seen is not None and self.seen[0] == here and waits - self.seen[1] <= 1 + RARE * self.stood
        self.unmoved += lived
        if calls != self.calls or not stands and any("torch/distributed/" in one[0] for one in here[-6:]):
            self.calls, self.unmoved = calls, 0.0
        if stands:
            self.stood, self.used = self.stood + lived, self.used + used
        else:
            self.seen, self.stood, self.used = (here, waits), 0.0, 0.0

    def waits(self):
        """How often the main thread went to sleep: what blocks once does it once."""
        with contextlib.suppress(OSError, StopIteration), open(f"/proc/self/task/{self.main.native_id}/status") as of:
            return next(int(line.split()[1]) for line in of if line.startswith("voluntary"))
        return 0

    def is_runnable(self):
        """Whether a thread beside ours has work, with a core or without, or waits for a disk."""
        with contextlib.suppress(OSError):
            others = [name for name in os.listdir("/proc/self/task") if int(name) != self.thread]
            return any(_state(f"/proc/self/task/{name}/stat") in ("R", "D") for name in others)
        return False

    # -- torch, where it is ----------------------------------------------------------------------------------------
    def groups(self):
        """Group -> its name; empty before there is a world and after."""
        c10d = sys.modules.get("torch.distributed.distributed_c10d")
        return dict(c10d._world.pg_names) if c10d is not None and c10d.is_initialized() else {}

    def issued(self):
        """Collectives by group, so far: cheap, unlike the flight recorder."""
        return {name: one._get_sequence_number_for_group() for one, name in self.groups().items()} or self.calls

    def ranked(self):
        """Rank and number of ranks, as torch has them, else as the environment says."""
        with contextlib.suppress(Exception):  # the world is being made, or destroyed
            if self.groups():
                c10d = sys.modules["torch.distributed.distributed_c10d"]
                return c10d.get_rank(), c10d.get_world_size()
        found = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
        return tuple(int(one) if one and one.isdigit() else None for one in found)

    def more(self):
        """What costs more: the ranks of each group, which gloo's records lack, a message that waits, the record."""
        c10d = sys.modules.get("torch.distributed.distributed_c10d")
        ranks = {name: c10d.get_process_group_ranks(one) for one, name in self.groups().items()}
        if ranks:
            native = sys.modules["torch._C._distributed_c10d"]
            is_nccl = any("nccl" in str(one[0]) for one in c10d._world.pg_map.values())
            dump = getattr(native, "_dump_nccl_trace" if is_nccl else "_dump_fr_trace", bytes)
            with open(os.path.join(self.folder, f"{self.pid}.recorder"), "wb") as out, _without_inductor():
                out.write(dump())
        return {"answered": True, "asks": self.asks(), "groups": ranks}

    def asks(self):
        """[operation, other rank] where the main thread is in a message from one rank to another."""
        for path, name, variables in at_once(map(CALL, frames_of(self.main.ident))):
            if name in ASKS and path.endswith("distributed_c10d.py"):
                peers = [variables.get(one) for one in ("dst", "src", "group_dst", "group_src")]
                return [name[-4:], next((one for one in peers if one is not None), None)]
        return None

    def write(self, *, answer=False, **last):
        rank, world = self.ranked()
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        frames = {ident: stack(ident) for ident in at_once(chain.from_iterable(starmap(sys._current_frames, [()])))}
        threads = {names.get(ident, str(ident)): frames[ident] for ident in frames.keys() - {self.main.ident}}
        found = {
            "pid": self.pid, "parent": os.getppid(), "rank": rank, "world": world, "stood": self.stood,
            "unmoved": self.unmoved, "used": self.used, "frames": frames.get(self.main.ident, []), "threads": threads,
        }  # fmt: skip
        if answer or last:
            with contextlib.suppress(Exception):
                self.answer = self.more()
        path = os.path.join(self.folder, f"{self.pid}.json")
        with self.lock:
            if last or not self.is_over:
                self.is_over = bool(last)
                with open(f"{path}.new", "w") as out:
                    json.dump({**found, **self.answer, **last}, out)
                os.replace(f"{path}.new", path)

    def end(self):
        """The last words: what it raised is what the interpreter has printed."""
        error, failure = getattr(sys, "last_value", None), None
        if os.getpid() == self.pid:
            if error is not None:
                frames = [
                    [one.filename, one.lineno or 1, one.name] for one in traceback.extract_tb(error.__traceback__)
                ]
                frames += [[error.filename, error.lineno or 1, "<module>"]] if isinstance(error, SyntaxError) else []
                failure = {"type": type(error).__name__, "message": str(error)[:2000], "frames": frames}
            with contextlib.suppress(Exception):
                self.write(ended=time.time(), failure=failure)


def lives(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True


def _state(path):
    with contextlib.suppress(OSError), open(path) as stat:
        return stat.read().rpartition(")")[2].split()[0]
    return ""


@contextlib.contextmanager
def _without_inductor():
    """A record's lines ask whether `torch._inductor` is there, which would import it: 2 s of processor."""
    torch = sys.modules["torch"]
    if lazy := "torch._inductor" not in sys.modules:
        torch.__dict__["_inductor"] = None
    try:
        yield
    finally:
        if lazy:
            torch.__dict__.pop("_inductor", None)


@ctypes.CFUNCTYPE(None, ctypes.c_int)
def _on_abort(number):
    """Gloo ends a process in a thread of its own where sizes differ, and what was issued is known to nobody else."""
    with contextlib.suppress(Exception):
        INSIDE.write(aborted=True)


def start():
    """In every process of the job, and again in each fork of one: a DataLoader's worker is a process of the job too."""
    global INSIDE, FAULT
    INSIDE = Inside(os.environ[FOLDER])
    if FAULT or not faulthandler.is_enabled():
        FAULT = open(os.path.join(INSIDE.folder, f"{INSIDE.pid}.fault"), "w")
        faulthandler.enable(FAULT)
    atexit.register(INSIDE.end)
    threading.Thread(target=INSIDE.serve, daemon=True, name="helpers.commands.jobs").start()


def begin():
    if os.path.isdir(os.environ.get(FOLDER, "")):
        libc = ctypes.CDLL(None)
        libc.signal.argtypes, libc.signal.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
        libc.signal(signal.SIGABRT, ctypes.cast(_on_abort, ctypes.c_void_p))
        start()
        os.register_at_fork(after_in_child=start)
