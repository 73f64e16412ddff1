"""Shortens the wait for the first check, and says what a check does while the learner waits for it.

start_ranks      begins to start the process from which the ranks of checks are forked; a lab's first cell calls it
wait_for_start   waits until that is done
are_ranks_ready  whether that process has started
ProgressLine     one line that grows while a check runs, from the first half second on
"""

from __future__ import annotations

import contextlib
import sys
import threading

from helpers.learner.words import Words, book

words = book("verdict")
QUIET_SECONDS = 0.5  # a check that ends within this time says nothing before its verdict


_start: threading.Thread | None = None  # the last one that `start_ranks` began


def start_ranks() -> None:
    """Begin to start the process from which the ranks of checks are forked, in the background, and return at once.

    It imports torch, which takes two seconds and longer on a busy machine. The first check needs it, and waits only for
    what is left of these seconds. What goes wrong here is said by that check, which tries again.
    """
    global _start
    from helpers.grading.run_on_ranks import GRADER_MODULE
    from helpers.ranks.processes import process

    def start() -> None:
        with contextlib.suppress(OSError, RuntimeError):
            process.zygote(GRADER_MODULE).wait_until_ready()

    _start = threading.Thread(target=start, name="start of the checks' ranks", daemon=True)
    _start.start()


def wait_for_start() -> None:
    """Wait until `start_ranks` has done its work, if it was called. An interrupt ends the wait."""
    if _start is not None:
        _start.join()


def are_ranks_ready() -> bool:
    """Whether the process from which the ranks are forked has started."""
    from helpers.grading.run_on_ranks import GRADER_MODULE
    from helpers.ranks.processes import process

    if _start is not None and _start.is_alive():
        return False
    client = process.running_zygote(GRADER_MODULE)
    return client is not None and client.ready


class ProgressLine:
    """A line such as "checking 03.average · the ranks start · 1 rank · 2 ranks", which grows while the check runs.

    Nothing is printed where nobody looks, which is outside of a notebook, and by a check that ends within
    QUIET_SECONDS. key: of the task. lang: "en" or "zh".
    """

    def __init__(self, key: str, lang: str):
        self.lang = lang
        self._line, self._num_printed = words["checking"].format(key).in_(lang), 0  # characters
        self._out = sys.stdout  # while ranks run, sys.stdout collects what they print
        self._lock = threading.Lock()  # held while one of the two threads prints
        self._is_shown, self._is_over = False, not is_in_notebook()
        self._timer = threading.Timer(QUIET_SECONDS, self._show)
        self._timer.daemon = True

    def __enter__(self) -> ProgressLine:
        if not self._is_over:
            self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        with self._lock:
            self._is_over = True
            if self._is_shown:
                print(file=self._out, flush=True)

    def step(self, doing: Words) -> None:
        """Note what the check does now, and add it to the line if that is shown."""
        with self._lock:
            self._line += f" · {doing.in_(self.lang)}"
            self._print_rest()

    def _show(self) -> None:
        """Print the line so far. The timer calls this in a thread of its own."""
        with self._lock:
            if not self._is_over:
                self._is_shown = True
                self._print_rest()

    def _print_rest(self) -> None:
        """Print what is not printed yet, if the line is shown."""
        if self._is_shown:
            print(self._line[self._num_printed :], end="", file=self._out, flush=True)
            self._num_printed = len(self._line)


def is_in_notebook() -> bool:
    """Whether a notebook's kernel runs this code."""
    interactive = sys.modules.get("IPython")
    return getattr(interactive and interactive.get_ipython(), "kernel", None) is not None
