"""Writes down four times per second where the process is that this file was loaded into, for `monitor.py` to read.

A generated `sitecustomize` loads this file by its path in every process of a job, before the first line of the user's
script. So the file may import only the standard library, must print nothing, and reads torch only where the script has
loaded it. No duration here is wall-clock time: the time in which a process wants a core and has none does not count,
so a busy machine does not look like a hang.

A process's report is a JSON file with these fields:

pid, parent, rank, world   ids of the process and of its parent, rank and world size (null before they are known)
frames, threads            the stack of the main thread, and thread name -> stack, as [file, line, function]
stack_age, cpu_seconds,    the durations that `Probe` describes
call_age
ended, failure             only in the last report: the time of the end, and the exception (null if there was none)
aborted                    only after SIGABRT
has_details, p2p, groups   only on request: a send or receive in flight, and group name -> ranks
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

INTERVAL = 0.25  # seconds between two reports
FOLDER, WATCHER = "RANKS_JOB", "RANKS_JOB_WATCHER"  # environment: the folder of reports, the process that reads them
DETAILS_REQUEST = "asked"  # a file in the folder: each process that sees it adds the costly details to its report, once
WAKE_RATE = 0.5  # voluntary context switches per second that still are one wait: a DataLoader wakes up every 5 s
P2P_FUNCTIONS = ("send", "recv", "isend", "irecv")  # the last four letters are the operation
INNERMOST = 6  # frames in which a call into torch.distributed is looked for
LOCATION = attrgetter("f_code.co_filename", "f_lineno", "f_code.co_name")  # of a frame: (file, line, function)
CALL = attrgetter("f_code.co_filename", "f_code.co_name", "f_locals")  # of a frame: (file, function, variables)
PROBE = FAULT_FILE = None  # the probe of this process, and the file into which faulthandler writes


def stack(thread):
    """The stack of the thread with this ident as [file, line, function], outermost call first."""
    return [[path, line or 0, name] for path, line, name in reversed(without_gc(map(LOCATION, frames_of(thread))))]


def frames_of(thread):
    """Yields a thread's frames from the innermost outwards. The frames are looked up when the first one is taken.

    It consists of C functions alone, which run without a switch to another thread: see `without_gc`.
    """
    innermost = map(methodcaller("get", thread), starmap(sys._current_frames, [()]))  # _current_frames()[thread]
    return takewhile(bool, accumulate(chain(innermost, repeat("f_back")), getattr))  # then f_back until it is None


def without_gc(iterator):
    """The items as a list, computed in one C call with the garbage collector off.

    No frame may be referenced while its thread goes on, because that would keep the frame's variables alive (tensors
    among them). Within one C call no other thread runs Python code. The collector is off because a collection inside
    sys._current_frames may deadlock in Python 3.11 (issue 106883 of CPython).
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return list(iterator)
    finally:
        if was_enabled:
            gc.enable()


class Probe:
    """Reports on one process. The report is a JSON file, which remains when the process is gone.

    stack_age: seconds for which the main thread has been at the same line. cpu_seconds: the process's CPU time in them.
    call_age: seconds since the process last issued a collective or moved within torch.distributed.
    main: the main thread. watcher: the process that reads the reports, 0 if there is none.
    last_stack, num_waits: the main thread's stack, and how often it had gone to sleep when it came there.
    calls: group name -> how many collectives it has issued. details: the costly part of the report, once it is asked.
    thread: the system's id of the probe's own thread. has_ended: whether the last report is written.
    """

    def __init__(self, folder):
        self.folder, self.pid, self.main = folder, os.getpid(), threading.main_thread()
        self.watcher, self.lock, self.has_ended = int(os.environ.get(WATCHER, 0)), threading.Lock(), False
        self.stack_age = self.call_age = self.cpu_seconds = 0.0
        self.last_stack, self.calls, self.details = None, {}, {}
        self.num_waits, self.last_clock, self.last_cpu = 0, time.monotonic(), 0.0

    def serve(self):
        """The loop of the probe's thread. It ends the process when the process that reads the reports is gone."""
        self.thread = threading.get_native_id()
        while not self.watcher or is_alive(self.watcher):
            time.sleep(INTERVAL)
            with contextlib.suppress(Exception):  # no fault of this file may reach the script; Python may be ending
                self.sample()
                request = os.path.join(self.folder, DETAILS_REQUEST)
                self.write(with_details=not self.details and os.path.exists(request))
        os._exit(1)

    def sample(self):
        """Updates the three durations.

        lived: the seconds since the last sample that count. A process that wants a core counts only its CPU time.
        """
        now, waits = time.monotonic(), self.voluntary_switches()
        cpu = time.process_time() - time.thread_time()  # without the CPU time of the probe itself
        # At most two intervals count, because the machine may have been suspended.
        passed, used = min(now - self.last_clock, 2 * INTERVAL), max(cpu - self.last_cpu, 0.0)
        self.last_clock, self.last_cpu = now, cpu
        lived = min(used, passed) if self.is_runnable() else passed
        here, calls = stack(self.main.ident), self.collective_counts()
        # A thread that left its line and came back has gone to sleep more often than one that waits there.
        is_same = self.last_stack == here and waits - self.num_waits <= 1 + WAKE_RATE * self.stack_age
        has_moved_in_torch = not is_same and any("torch/distributed/" in frame[0] for frame in here[-INNERMOST:])
        self.call_age += lived
        if calls != self.calls or has_moved_in_torch:
            self.calls, self.call_age = calls, 0.0
        if is_same:
            self.stack_age, self.cpu_seconds = self.stack_age + lived, self.cpu_seconds + used
        else:
            self.last_stack, self.num_waits, self.stack_age, self.cpu_seconds = here, waits, 0.0, 0.0

    def voluntary_switches(self):
        """How often the main thread went to sleep. A thread that stays blocked does so once."""
        with contextlib.suppress(OSError, StopIteration), open(f"/proc/self/task/{self.main.native_id}/status") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("voluntary"))
        return 0

    def is_runnable(self):
        """Whether a thread other than the probe's is running, wants a core, or waits for a disk."""
        with contextlib.suppress(OSError):
            others = [name for name in os.listdir("/proc/self/task") if int(name) != self.thread]
            return any(_thread_state(f"/proc/self/task/{name}/stat") in ("R", "D") for name in others)
        return False

    # -- what torch knows, if the script has loaded it ----------------------------------------------------------------
    def groups(self):
        """Process group -> its name; empty before init_process_group and after destroy_process_group."""
        c10d = sys.modules.get("torch.distributed.distributed_c10d")
        return dict(c10d._world.pg_names) if c10d is not None and c10d.is_initialized() else {}

    def collective_counts(self):
        """How many collectives each group has issued so far: cheap, unlike the flight recorder."""
        # After destroy_process_group there are no groups, and the last counts stay.
        return {name: group._get_sequence_number_for_group() for group, name in self.groups().items()} or self.calls

    def rank_and_world(self):
        """Rank and world size from torch, or from the environment before torch knows them."""
        with contextlib.suppress(Exception):  # the process group is just being made or destroyed
            if self.groups():
                c10d = sys.modules["torch.distributed.distributed_c10d"]
                return c10d.get_rank(), c10d.get_world_size()
        values = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
        return tuple(int(value) if value and value.isdigit() else None for value in values)

    def collect_details(self):
        """The costly part of the report: the ranks of each group, and a send or receive in flight.

        It also writes torch's flight-recorder dump, a record of the last collectives, beside the report. The dump of
        gloo lacks the ranks of the groups, so the report has them.
        """
        c10d = sys.modules.get("torch.distributed.distributed_c10d")
        ranks = {name: c10d.get_process_group_ranks(group) for group, name in self.groups().items()}
        if ranks:
            native = sys.modules["torch._C._distributed_c10d"]
            is_nccl = any("nccl" in str(backend[0]) for backend in c10d._world.pg_map.values())
            # A torch without the function gets `bytes`, which makes an empty dump.
            dump = getattr(native, "_dump_nccl_trace" if is_nccl else "_dump_fr_trace", bytes)
            with open(os.path.join(self.folder, f"{self.pid}.recorder"), "wb") as out, _without_inductor():
                out.write(dump())
        return {"has_details": True, "p2p": self.pending_p2p(), "groups": ranks}

    def pending_p2p(self):
        """[operation, peer] if the main thread is in a send or receive, else None."""
        for path, name, variables in without_gc(map(CALL, frames_of(self.main.ident))):
            if name in P2P_FUNCTIONS and path.endswith("distributed_c10d.py"):
                peers = [variables.get(key) for key in ("dst", "src", "group_dst", "group_src")]  # one of them is set
                return [name[-4:], next((peer for peer in peers if peer is not None), None)]
        return None

    def write(self, *, with_details=False, **final):
        """Replaces the report. final: fields of the last report, which no later one overwrites."""
        rank, world = self.rank_and_world()
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        # The chain in one C call yields the keys of sys._current_frames(), the idents of all threads, and no frame.
        frames = {ident: stack(ident) for ident in without_gc(chain.from_iterable(starmap(sys._current_frames, [()])))}
        threads = {names.get(ident, str(ident)): frames[ident] for ident in frames.keys() - {self.main.ident}}
        report = {
            "pid": self.pid, "parent": os.getppid(), "rank": rank, "world": world, "stack_age": self.stack_age,
            "call_age": self.call_age, "cpu_seconds": self.cpu_seconds, "frames": frames.get(self.main.ident, []),
            "threads": threads,
        }  # fmt: skip
        if with_details or final:
            with contextlib.suppress(Exception):
                self.details = self.collect_details()
        path = os.path.join(self.folder, f"{self.pid}.json")
        with self.lock:  # the probe's thread and the end of the main thread may write at the same time
            if final or not self.has_ended:
                self.has_ended = bool(final)
                with open(f"{path}.new", "w") as out:
                    json.dump({**report, **self.details, **final}, out)
                os.replace(f"{path}.new", path)

    def end(self):
        """Writes the last report, with the exception that ended the script: the one that the interpreter printed."""
        error, failure = getattr(sys, "last_value", None), None
        if os.getpid() == self.pid:
            if error is not None:
                frames = [[f.filename, f.lineno or 1, f.name] for f in traceback.extract_tb(error.__traceback__)]
                frames += [[error.filename, error.lineno or 1, "<module>"]] if isinstance(error, SyntaxError) else []
                failure = {"type": type(error).__name__, "message": str(error)[:2000], "frames": frames}
            with contextlib.suppress(Exception):
                self.write(ended=time.time(), failure=failure)


def is_alive(pid):
    """Whether a process with this id exists, whoever owns it."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True


def _thread_state(path):
    """The state letter in a `stat` file of /proc: R runs or wants a core, D waits for a disk.

    It follows the name of the thread, which stands in parentheses and may have spaces and parentheses itself.
    """
    with contextlib.suppress(OSError), open(path) as stat:
        return stat.read().rpartition(")")[2].split()[0]
    return ""


@contextlib.contextmanager
def _without_inductor():
    """Stops a dump from importing `torch._inductor`, for which it looks at every frame: 2 s of CPU time."""
    torch = sys.modules["torch"]
    if is_missing := "torch._inductor" not in sys.modules:
        torch.__dict__["_inductor"] = None
    try:
        yield
    finally:
        if is_missing:
            torch.__dict__.pop("_inductor", None)


@ctypes.CFUNCTYPE(None, ctypes.c_int)
def _on_abort(number):
    """Handles SIGABRT, with which gloo ends a process whose sizes differ. Only this report then has its collectives."""
    with contextlib.suppress(Exception):
        PROBE.write(aborted=True)


def start():
    """Starts the probe of this process. Each fork starts one too, since a DataLoader's worker belongs to the job."""
    global PROBE, FAULT_FILE
    PROBE = Probe(os.environ[FOLDER])
    if FAULT_FILE or not faulthandler.is_enabled():  # if the script has enabled it for itself, it stays as it is
        FAULT_FILE = open(os.path.join(PROBE.folder, f"{PROBE.pid}.fault"), "w")
        faulthandler.enable(FAULT_FILE)
    atexit.register(PROBE.end)
    threading.Thread(target=PROBE.serve, daemon=True, name="helpers.commands.jobs").start()


def begin():
    """The entry point, which the generated `sitecustomize` calls."""
    if os.path.isdir(os.environ.get(FOLDER, "")):
        # In C, because Python runs its own handlers only between two bytecodes, and an abort comes from within C++.
        libc = ctypes.CDLL(None)
        libc.signal.argtypes, libc.signal.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
        libc.signal(signal.SIGABRT, ctypes.cast(_on_abort, ctypes.c_void_p))
        start()
        os.register_at_fork(after_in_child=start)
