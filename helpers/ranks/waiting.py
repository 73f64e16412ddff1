"""Waiting where gloo offers no future: for send, recv, reduce_scatter, and for calls that only block.

Whoever calls `wait()` waits in gloo itself, since a thread in between would cost more than a small message. What nobody
waits for is handed to a thread, at the latest when the watch comes by. A wait in gloo hears neither signals nor
`fail_pending`: the way out is to cut the group's connections, after which a new world is needed anyway.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue

Done = Callable[[BaseException | None], None]


class Waiters:
    """Threads that wait for somebody else. They are kept for the next one."""

    def __init__(self):
        self.jobs: SimpleQueue[tuple[Callable[[], object], Done]] = SimpleQueue()
        self.lock, self.num_idle = threading.Lock(), 0

    def call(self, wait: Callable[[], object], done: Done) -> None:
        """Call `wait()` in a thread of its own, then `done(None)` or `done(error)`."""
        with self.lock:
            missing = self.num_idle == 0
            self.num_idle -= not missing
        self.jobs.put((wait, done))
        if missing:
            threading.Thread(target=self._serve, daemon=True, name="wire waiter").start()

    def _serve(self) -> None:
        while True:
            wait, done = self.jobs.get()
            try:
                wait()
            except Exception as error:
                done(error)
            else:
                done(None)
            del wait, done
            with self.lock:
                self.num_idle += 1


class DirectWait:
    """A blocking call that either the first to wait makes, or a thread. Exactly one of them does."""

    def __init__(self, call: Callable[[], object], done: Done, waiters: Waiters, cut: Callable[[], None]):
        self.call, self.done, self.waiters, self.cut = call, done, waiters, cut
        self.lock, self.taken, self.inside = threading.Lock(), False, False

    def wait(self) -> None:
        """Make the call here, unless somebody else has taken it."""
        if not self._take():
            return
        error: BaseException | None = RuntimeError("the wait was interrupted")
        self.inside = True
        try:
            with SIGNALS.calling(self.cut):
                self.call()
            error = None
        except Exception as raised:
            error = raised
        finally:
            self.inside = False
            self._give_up()[1](error)

    def hand_over(self) -> None:
        """Let a thread make the call, unless somebody has taken it."""
        if self._take():
            self.waiters.call(*self._give_up())

    def end(self) -> None:
        """The operation is over: whoever is inside the call has to come out, and nobody goes in."""
        self._take()
        if self.inside:
            self.cut()

    def _give_up(self) -> tuple[Callable[[], object], Done]:
        """What the one who has taken it calls. Both lead back to the operation, whose tensors would outlive it."""
        given, self.call, self.done = (self.call, self.done), None, None
        return given

    def _take(self) -> bool:
        with self.lock:
            free, self.taken = not self.taken, True
        return free


class Signals:
    """While the main thread is inside gloo, Python cannot handle its signals: a thread hears them, and gets it out.

    heard: False for a program that handles its interrupts itself, after the wait.
    """

    def __init__(self):
        self.heard = True
        self.cut: Callable[[], None] | None = None
        self.pipe: tuple[int, int] | None = None

    @contextlib.contextmanager
    def calling(self, cut: Callable[[], None]) -> Iterator[None]:
        """Within, an interrupt of the main thread calls `cut`."""
        if not self.heard or threading.current_thread() is not threading.main_thread():
            yield
            return
        if self.pipe is None:
            self._start()
        self.cut = cut
        before = signal.set_wakeup_fd(self.pipe[1], warn_on_full_buffer=False)
        try:
            yield
        finally:
            self.cut = None
            signal.set_wakeup_fd(before)

    def _start(self) -> None:
        self.pipe = os.pipe()
        os.set_blocking(self.pipe[1], False)
        threading.Thread(target=self._listen, daemon=True, name="wire signals").start()

    def _listen(self) -> None:
        while True:
            for number in os.read(self.pipe[0], 64):
                cut = self.cut
                if number == signal.SIGINT and cut is not None:
                    cut()


SIGNALS = Signals()
