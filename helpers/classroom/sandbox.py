"""G's side of the sandbox: start it, ask it, limit it, end it with all that it started."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from contextlib import suppress
from typing import Any

from helpers.classroom import rungs, wire
from helpers.classroom.forked import ENVIRONMENT, START_SECONDS, Forked, nursery
from helpers.classroom.watch import Limits, Watch
from helpers.ranks.zygote import FORKS

KEPT_OUTPUT = 4_000  # characters of what it prints; the rest is read and thrown away
INSIDE = "/tmp/learner"  # its folder, where it has a file system of its own


_all: weakref.WeakSet[Sandbox] = weakref.WeakSet()
_uids = itertools.count()
_stopped = threading.Event()


def end_all() -> None:
    """End every sandbox of this process, and start no other: the grader is leaving."""
    _stopped.set()
    for sandbox in list(_all):
        sandbox._kill("the grader was interrupted")


class Ended(Exception):
    """The sandbox is gone, or was ended. The message says why, as in "it ..."."""


class Sandbox:
    """One process that runs a learner's code. opening: what it is told first (lab, checks, private paths)."""

    def __init__(self, opening: dict[str, Any], *, rung: str, limits: Limits, hide: list[str] | None = None):
        self.opening, self.rung, self.limits, self.hide = opening, rung, limits, hide or []
        self.process: subprocess.Popen | Forked | None = None
        self.reason: str | None = None
        self.printed = ""
        self.peak = 0
        self.until = time.monotonic() + limits.stretched(limits.total_seconds)
        self.lock = threading.Lock()
        self.socket: socket.socket | None = None
        self.lifeline = -1
        _all.add(self)

    # -- life ------------------------------------------------------------------------------------------------------
    def start(self) -> None:
        """Raises Ended if it does not come up."""
        self.home = tempfile.mkdtemp(prefix="rank-by-rank-")
        inside = INSIDE if self.rung == "namespaces" else self.home
        uid = rungs.SPARE_UID + next(_uids) % 1000  # one each, so that none can touch another
        if self.rung == "uid":
            os.chown(self.home, uid, uid)
        theirs, lifeline = self._open()
        command = [sys.executable, "-B", "-m", "helpers.classroom.student", str(theirs.fileno())]
        more = {"control": theirs.fileno(), "env": _environment(inside), "hide": self.hide, "limits": self._limits()}
        more |= {"uid": uid, "lab": self.opening["lab"], "checks": self.opening["checks"]}
        keep = (self.opening["checks"],) if self.opening["checks"] and not FORKS else ()
        argument = rungs.config(self.rung, command, lifeline=lifeline, home=inside, keep=keep, **more)
        try:
            self.process = (_forked if FORKS else _fresh)(argument, theirs.fileno(), lifeline)
        finally:
            theirs.close()
            os.close(lifeline)
        threading.Thread(target=self._pump, args=(self.process.stdout,), daemon=True).start()
        self.watch = Watch(self.process.pid, self.limits, self._kill)
        self.watch.start()
        self.ask(self.opening | {"folder": inside, "rung": self.rung}, START_SECONDS)

    def _open(self) -> tuple[socket.socket, int]:
        """The sandbox's ends of a socket and of the lifeline."""
        with self.lock:
            self.reason = None
            if _stopped.is_set():
                self.until = 0.0
                shutil.rmtree(self.home, ignore_errors=True)
                raise Ended("the grader was interrupted")
            self.socket, theirs = socket.socketpair()
            lifeline, self.lifeline = os.pipe()
            return theirs, lifeline

    def _limits(self) -> dict[str, int]:
        limits = {"RLIMIT_FSIZE": self.limits.file_bytes, "RLIMIT_CORE": 0, "RLIMIT_NOFILE": 1024}
        limits["RLIMIT_CPU"] = int(self.limits.cpu_seconds)
        return limits | ({"RLIMIT_NPROC": 400} if self.rung == "uid" else {})  # threads count there, too

    def _pump(self, pipe: Any) -> None:
        """Read all that it prints, so that it never waits for a reader, and keep the beginning."""
        with pipe:
            while data := pipe.read1(1 << 16):
                if len(self.printed) < KEPT_OUTPUT:
                    self.printed = (self.printed + data.decode(errors="replace"))[:KEPT_OUTPUT]

    def _kill(self, reason: str) -> None:
        """The launcher ends all that is below it when its lifeline is cut."""
        with self.lock:
            self.reason = self.reason or reason
            if self.lifeline < 0:
                return
            with suppress(OSError):
                self.socket.shutdown(socket.SHUT_RDWR)
            os.close(self.lifeline)
            self.lifeline = -1

    def end(self) -> None:
        """End it, wait until nothing of it is left, and remove its folder."""
        if self.process is None:
            return
        self._kill("it was ended")
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.watch.over.set()
        self.peak = max(self.peak, self.watch.peak)
        self.socket.close()
        shutil.rmtree(self.home, ignore_errors=True)
        self.process = None

    # -- questions -------------------------------------------------------------------------------------------------
    def ask(self, question: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Its answer. Starts it if it is not up. Raises Ended, after which it is down and may be started again."""
        if self.process is None:
            self.start()
        left = min(self.limits.stretched(seconds + self.limits.grace_seconds), self.until - time.monotonic())
        try:
            if left <= 0:
                raise TimeoutError
            wire.send(self.socket, question, left)
            answer = wire.receive(self.socket, left)
            if not isinstance(answer, dict):
                raise wire.Broken("an answer that is none")
            return answer
        except TimeoutError:
            reason = f"it gave no answer in {max(left, 0):.0f} s" if left > 0 else OUT_OF_TIME
        except wire.Broken as error:
            reason = f"it sent {error}"
        except (EOFError, OSError):
            reason = self.reason or self._how_it_ended()
        self.end()
        raise Ended(reason)

    @property
    def is_out_of_time(self) -> bool:
        return time.monotonic() >= self.until

    def _how_it_ended(self) -> str:
        try:
            code = self.process.wait(5)
        except subprocess.TimeoutExpired:
            return "it closed its connection to the grader"
        if code in (125, 126):
            return f"the sandbox did not start ({self.printed.strip()[-300:]})"
        return f"it ended its process (exit code {code})"


OUT_OF_TIME = "the time for the whole notebook is used up"


def _environment(home: str) -> dict[str, str]:
    """Nothing of the grader's own environment but where programs are."""
    return {**ENVIRONMENT, "HOME": home, "TMPDIR": home}


def _forked(argument: str, control: int, lifeline: int) -> Forked:
    try:
        return nursery().fork(json.loads(argument), control, lifeline)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise Ended(f"the sandbox did not start ({error})") from None


def _fresh(argument: str, control: int, lifeline: int) -> subprocess.Popen:
    """Where fork is not safe."""
    return subprocess.Popen(
        [sys.executable, "-I", str(rungs.LAUNCH), argument],
        pass_fds=[control, lifeline],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
