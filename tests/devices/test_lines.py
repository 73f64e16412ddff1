"""Whose line it was, and that asking is safe."""

from __future__ import annotations

import gc
import sys
import threading

import pytest

from helpers.devices import lines
from helpers.jobs import inside


def test_on_another_thread_it_is_the_line_of_the_main_thread():
    found = []
    thread = threading.Thread(target=lambda: found.append(lines.main_frame()))
    thread.start()
    thread.join()
    names = []
    frame = found[0]
    while frame is not None:
        names.append(frame.f_code.co_name)
        frame = frame.f_back
    assert "test_on_another_thread_it_is_the_line_of_the_main_thread" in names
    assert lines.call_site()[2] == "test_on_another_thread_it_is_the_line_of_the_main_thread"


@pytest.mark.parametrize("ask", [lines._current_frames, inside.current_frames])
@pytest.mark.parametrize("collects", [True, False])
def test_no_garbage_is_collected_while_the_frames_are_listed(ask, collects):
    """A group that is destroyed meanwhile gives the interpreter away, and Python 3.11 stands still."""
    met, threshold, before = [], gc.get_threshold(), gc.isenabled()

    def collecting(phase, info):
        met.append(sys._getframe(1).f_code.co_name)

    gc.callbacks.append(collecting)
    gc.set_threshold(1)
    gc.enable() if collects else gc.disable()
    try:
        for _ in range(50):
            ask()
        is_enabled = gc.isenabled()
    finally:
        gc.callbacks.remove(collecting)
        gc.set_threshold(*threshold)
        gc.enable() if before else gc.disable()
    assert ask.__name__ not in met and is_enabled is collects
