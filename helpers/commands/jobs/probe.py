"""Writes down four times per second where the process is that this file was loaded into, for `monitor.py` to read.

A generated `sitecustomize` loads this file by its path in every process of a job, before the first line of the user's
script. So the file may import only the standard library, must print nothing, and reads torch only where the script has
loaded it. When the script loads torch.distributed, `watch_torch` makes torch's classes tell the probe which messages
between two ranks are posted, and in which `wait` the main thread is. No duration here is wall-clock time: the time in
which a process wants a core and has none does not count, so a busy machine does not look like a hang.

A process's report is a JSON file with these fields:

pid, parent, rank, world   ids of the process and of its parent, rank and world size (null before they are known)
frames, threads            the stack of the main thread, and thread name -> stack, as [file, line, function]
stack_age, cpu_seconds,    the durations that `Probe` describes
main_seconds, call_age
ended, failure             only in the last report: the time of the end, and the exception (null if there was none)
aborted                    only after SIGABRT
has_details, groups        only on request and at the end: group name -> ranks
waiting                    likewise: what the main thread calls at its line, as {"call", "message"}; null if unknown
messages, dropped, posted  likewise: the posted messages that the script has not waited for, as `describe` returns them,
                           those of which it dropped torch's Work, and [operation, peer, group, tag, count] of all
polled                     likewise: the message of which the script last asked whether it is complete; null if none
handled                    likewise: the exception that the main thread handles, in a `finally` for example, or null
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import gc
import importlib.abc
import importlib.machinery
import json
import os
import signal
import sys
import threading
import time
import traceback
import weakref
from collections import deque
from itertools import accumulate, chain, islice, repeat, starmap, takewhile
from operator import attrgetter, methodcaller

INTERVAL = 0.25  # seconds between two reports
FOLDER, WATCHER = "RANKS_JOB", "RANKS_JOB_WATCHER"  # environment: the folder of reports, the process that reads them
DETAILS_REQUEST = "asked"  # a file in the folder: each process that sees it adds the costly details to its report, once
WAKE_RATE = 0.5  # voluntary context switches per second that still are one wait: a DataLoader wakes up every 5 s
C10D = "torch.distributed.distributed_c10d"  # the module whose import makes torch's classes known
POSTS = {"send": "send", "recv": "recv", "recv_anysource": "recv"}  # method of a process group -> operation
# Methods in which a rank may wait for another one. They are written in C++, so no frame shows them.
WAITS = {"Work": ("wait", "synchronize", "is_completed"), "Store": ("wait", "get", "multi_get", "queue_pop", "barrier")}
RENDEZVOUS = "torch/distributed/rendezvous.py"
MAX_FRAMES, MAX_DROPPED = 40, 100  # of the stack that posts a message; messages whose Work was dropped
INNERMOST = 6  # frames in which a call into torch.distributed is looked for
LOCATION = attrgetter("f_code.co_filename", "f_lineno", "f_code.co_name")  # of a frame: (file, line, function)
PROBE = FAULT_FILE = None  # the probe of this process, and the file into which faulthandler writes


def stack(thread):
    """The stack of the thread with this ident as [file, line, function], outermost call first."""
    return _as_lists(without_gc(map(LOCATION, frames_of(thread))))


def _as_lists(locations):
    """Locations, innermost first, as a stack without this file, which a call that `record_posts` wraps goes through."""
    return [[path, line or 0, name] for path, line, name in reversed(locations) if path != __file__]


def frames_of(thread):
    """Yields a thread's frames from the innermost outwards. The frames are looked up when the first one is taken.

    It consists of C functions alone, which run without a switch to another thread: see `without_gc`.
    """
    return outwards(map(methodcaller("get", thread), starmap(sys._current_frames, [()])))  # _current_frames()[thread]


def outwards(innermost):
    """Yields the one frame of an iterator, and then f_back until it is None. It consists of C functions alone, too."""
    return takewhile(bool, accumulate(chain(innermost, repeat("f_back")), getattr))


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
    main_seconds: the main thread's CPU time in them.
    call_age: seconds since the process last issued a collective or moved within torch.distributed.
    main: the main thread. watcher: the process that reads the reports, 0 if there is none.
    last_stack, num_waits: the main thread's stack, and how often it had gone to sleep when it came there.
    calls: group name -> how many collectives it has issued. details: the costly part of the report, once it is asked.
    thread: the system's id of the probe's own thread. has_ended: whether the last report is written.
    members: group name -> its global ranks, of all groups that there were. is_nccl: whether a group used NCCL.
    messages: weak reference to torch's Work -> the message between two ranks that it stands for. dropped: the messages
    of which the Work is gone, and for which the script has not waited.
    posted: (operation, peer, group, tag) -> how many messages were posted.
    noted: (call, message or None, location) of the main thread's last look-up of a `NotedMethod`. polled: the message
    of which it last looked up `is_completed`.
    """

    def __init__(self, folder):
        self.folder, self.pid, self.main = folder, os.getpid(), threading.main_thread()
        self.watcher, self.lock, self.has_ended = int(os.environ.get(WATCHER, 0)), threading.Lock(), False
        self.stack_age = self.call_age = self.cpu_seconds = self.main_seconds = self.last_main = 0.0
        self.last_stack, self.calls, self.details = None, {}, {}
        self.num_waits, self.last_clock, self.last_cpu = 0, time.monotonic(), 0.0
        self.members, self.is_nccl, self.noted = {}, False, (None, None, None)
        self.messages, self.dropped, self.posted, self.polled = {}, deque(maxlen=MAX_DROPPED), {}, None

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
        main = time.clock_gettime(time.pthread_getcpuclockid(self.main.ident))
        # At most two intervals count, because the machine may have been suspended.
        passed, used = min(now - self.last_clock, 2 * INTERVAL), max(cpu - self.last_cpu, 0.0)
        main_used = max(main - self.last_main, 0.0)
        self.last_clock, self.last_cpu, self.last_main = now, cpu, main
        lived = min(used, passed) if self.is_runnable() else passed
        here, calls = stack(self.main.ident), self.collective_counts()
        # A thread that left its line and came back has gone to sleep more often than one that waits there.
        # The rank that serves torch's store wakes up all the time while it waits for the other ranks to connect.
        has_slept_on = waits - self.num_waits <= 1 + WAKE_RATE * self.stack_age or here[-1][0].endswith(RENDEZVOUS)
        is_same = self.last_stack == here and has_slept_on
        has_moved_in_torch = not is_same and any("torch/distributed/" in frame[0] for frame in here[-INNERMOST:])
        self.call_age += lived
        if calls != self.calls or has_moved_in_torch:
            self.calls, self.call_age = calls, 0.0
        if is_same:
            self.stack_age, self.cpu_seconds = self.stack_age + lived, self.cpu_seconds + used
            self.main_seconds += main_used
        else:
            self.last_stack, self.num_waits, self.stack_age = here, waits, 0.0
            self.cpu_seconds = self.main_seconds = 0.0

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
        c10d = sys.modules.get(C10D)
        return dict(c10d._world.pg_names) if c10d is not None and c10d.is_initialized() else {}

    def collective_counts(self):
        """How many collectives each group has issued so far: cheap, unlike the flight recorder."""
        # After destroy_process_group there are no groups, and the last counts stay.
        groups = self.groups()
        self.remember(groups)
        return {name: group._get_sequence_number_for_group() for group, name in groups.items()} or self.calls

    def remember(self, groups):
        """Keeps the members of new groups, because torch forgets them when the script destroys its groups."""
        c10d = sys.modules.get(C10D)
        for group, name in groups.items():
            if name not in self.members:
                self.members[name] = list(c10d.get_process_group_ranks(group))
                self.is_nccl |= "nccl" in str(c10d._world.pg_map[group][0])

    def rank_and_world(self):
        """Rank and world size from torch, or from the environment before torch knows them."""
        with contextlib.suppress(Exception):  # the process group is just being made or destroyed
            if self.groups():
                c10d = sys.modules["torch.distributed.distributed_c10d"]
                return c10d.get_rank(), c10d.get_world_size()
        values = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
        return tuple(int(value) if value and value.isdigit() else None for value in values)

    def describe(self, op, group, peer, tag, frame):
        """Counts a message that the script posts, and describes it. peer: a rank of the group, None for any.

        number: how many messages of this operation, peer (as a global rank), group and tag were posted, with this one.
        stack: that of the call. has_wait: whether the script waits for the message, or has waited for it.
        """
        name = sys.modules[C10D]._world.pg_names[group]
        if name not in self.members:
            self.remember({group: name})
        tag = 0 if self.is_nccl else tag  # NCCL ignores tags
        members = self.members[name]
        # Of a rank that the group does not have, torch may take the number without a word.
        key = op, members[peer] if peer is not None and peer < len(members) else peer, name, tag
        number = self.posted[key] = self.posted.get(key, 0) + 1
        frames = list(map(LOCATION, islice(outwards([frame]), MAX_FRAMES)))
        known = dict(zip(("op", "peer", "group", "tag"), key, strict=True))
        return known | {"number": number, "stack": _as_lists(frames), "has_wait": False}

    def note(self, call, instance, frame):
        """Notes that the main thread is about to wait in this call. frame: of the line that calls it."""
        message = self.messages.get(weakref.ref(instance))
        if call == "work.is_completed":
            self.polled = message
            return
        if message:
            message["has_wait"] = True
        if threading.get_ident() == self.main.ident:
            self.noted = call, message, list(LOCATION(frame))

    def keep(self, work, message):
        """Keeps the message of a Work as long as the script keeps the Work, which holds the message's tensor."""
        self.messages[weakref.ref(work, self.drop)] = message

    def drop(self, reference):
        """Remembers a message of which the Work is gone, if nobody has waited for it."""
        message = self.messages.pop(reference, None)
        if message and not message["has_wait"] and not self.is_nccl:  # NCCL keeps its messages itself
            self.dropped.append(message)

    def collect_details(self):
        """The costly part of the report: the ranks of each group, messages between two ranks, and what is waited for.

        It also writes torch's flight-recorder dump, a record of the last collectives, beside the report. The dump of
        gloo lacks the messages and the ranks of the groups, so the report has them.
        """
        self.remember(self.groups())
        if self.members:
            native = sys.modules["torch._C._distributed_c10d"]
            # A torch without the function gets `bytes`, which makes an empty dump.
            dump = getattr(native, "_dump_nccl_trace" if self.is_nccl else "_dump_fr_trace", bytes)
            with open(os.path.join(self.folder, f"{self.pid}.recorder"), "wb") as out, _without_inductor():
                out.write(dump())
        call, message, place = self.noted
        waiting = {"call": call, "message": message} if call and stack(self.main.ident)[-1:] == [place] else None
        messages = [one for one in list(self.messages.values()) if not one["has_wait"]]
        polled = self.polled if self.polled and not self.polled["has_wait"] and not self.is_nccl else None
        posted = [[*key, count] for key, count in self.posted.items()]
        details = {"groups": self.members, "waiting": waiting, "messages": messages, "posted": posted}
        return {"has_details": True, "dropped": [*self.dropped], "polled": polled, "handled": self.handled(), **details}

    def handled(self):
        """The exception that the main thread handles now, like `failure` in the last report; None if there is none."""
        (active,) = without_gc(starmap(sys._current_exceptions, [()]))
        error = active.get(self.main.ident)
        return describe_error(error[1] if isinstance(error, tuple) else error)  # before Python 3.12 a tuple

    def write(self, *, with_details=False, **final):
        """Replaces the report. final: fields of the last report, which no later one overwrites."""
        rank, world = self.rank_and_world()
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        # The chain in one C call yields the keys of sys._current_frames(), the idents of all threads, and no frame.
        frames = {ident: stack(ident) for ident in without_gc(chain.from_iterable(starmap(sys._current_frames, [()])))}
        threads = {names.get(ident, str(ident)): frames[ident] for ident in frames.keys() - {self.main.ident}}
        report = {
            "pid": self.pid, "parent": os.getppid(), "rank": rank, "world": world, "stack_age": self.stack_age,
            "call_age": self.call_age, "cpu_seconds": self.cpu_seconds, "main_seconds": self.main_seconds,
            "frames": frames.get(self.main.ident, []),
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
        failure = describe_error(getattr(sys, "last_value", None))
        if os.getpid() == self.pid:
            with contextlib.suppress(Exception):
                self.write(ended=time.time(), failure=failure)


# -- what torch is made to note ----------------------------------------------------------------------------------------
class NotedMethod:
    """A method of a class of torch, which the probe is told of whenever it is looked up, thus just before it is called.

    Unlike a wrapper, it adds no frame to the script's stacks and tracebacks.
    """

    def __init__(self, owner, name):
        self.method, self.call = owner.__dict__[name], f"{owner.__name__.lower()}.{name}"
        setattr(owner, name, self)

    def __get__(self, instance, owner=None):
        with contextlib.suppress(Exception):
            if instance is not None:
                PROBE.note(self.call, instance, sys._getframe(1))
        return self.method.__get__(instance, owner)


def record_posts(owner, name, op):
    """Makes a method of torch's ProcessGroup, which posts a send or a receive, describe it to the probe."""
    method = owner.__dict__[name]

    def post(group, tensors, *arguments, **named):
        message = None
        with contextlib.suppress(Exception):
            values = [*arguments, *named.values()]  # the peer and the tag; with recv_anysource, the tag alone
            peer = None if name == "recv_anysource" else values[0]
            message = PROBE.describe(op, group, peer, values[-1], sys._getframe(1))
        work = method(group, tensors, *arguments, **named)
        with contextlib.suppress(Exception):
            if message:
                PROBE.keep(work, message)
        return work

    setattr(owner, name, post)


def watch_torch(_):
    """Makes torch's own classes note messages and waits, once the script has loaded torch.distributed."""
    native = sys.modules["torch._C._distributed_c10d"]
    with contextlib.suppress(Exception):
        for name, op in POSTS.items():
            record_posts(native.ProcessGroup, name, op)
        for owner, names in WAITS.items():
            for name in set(names) & getattr(native, owner).__dict__.keys():
                NotedMethod(getattr(native, owner), name)
        NotedMethod(sys.modules["torch._C"].Future, "wait")


class ImportHook(importlib.abc.MetaPathFinder):
    """Finds the module with this name as Python would, and calls `on_import` with it once it is loaded."""

    def __init__(self, module, on_import):
        self.module, self.on_import = module, on_import

    def find_spec(self, name, path=None, target=None):
        if name != self.module:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None:  # Python's other finders may know it
            return None
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            self.on_import(module)

        spec.loader.exec_module = exec_module
        return spec


def describe_error(error):
    """An exception as {"type", "message", "frames"}; None for None."""
    if error is None:
        return None
    frames = [[f.filename, f.lineno or 1, f.name] for f in traceback.extract_tb(error.__traceback__)]
    frames += [[error.filename, error.lineno or 1, "<module>"]] if isinstance(error, SyntaxError) else []
    return {"type": type(error).__name__, "message": str(error)[:2000], "frames": frames}


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
        sys.meta_path.insert(0, ImportHook(C10D, watch_torch))
