"""A rank's messages to the kernel leave whole, whatever comes in between: behind half of one, nothing can be read."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from multiprocessing.connection import Connection


class Outbox:
    """Sends from any thread, one message after the other.

    A signal's exception between the two writes of a message would tear it: whoever handles a signal asks `put_off`.
    A collection of garbage within a message may destroy something that prints: what it says goes next.
    """

    def __init__(self, conn: Connection):
        self.conn = conn
        self.lock, self.owner = threading.RLock(), 0  # the thread that sends
        self.unsent: deque[tuple] = deque()
        self.later: Callable[[], None] | None = None

    def send(self, message: tuple) -> None:
        """Raises OSError if nobody is there to take it."""
        with self.lock:
            self.unsent.append(message)
            if self.owner:
                return
            me = threading.get_ident()
            self.owner = me
            try:
                while self.unsent:
                    self.conn.send(self.unsent.popleft())
            finally:
                self.unsent.clear()
                self.owner = 0
        if me == threading.main_thread().ident and self.later:
            later, self.later = self.later, None
            later()

    def put_off(self, handle: Callable[[], None]) -> bool:
        """For a handler of signals, which run on the main thread: whether a message is on its way from there.

        Then `handle` is called once it has left.
        """
        if self.owner != threading.main_thread().ident:
            return False
        self.later = handle
        return True
