"""Whose line it was, and that asking is safe."""

import gc
import sys
import threading
import weakref

import pytest

from helpers.commands.jobs import probe
from helpers.devices import call_site


def test_on_another_thread_it_is_the_line_of_the_main_thread():
    found = []
    thread = threading.Thread(target=lambda: found.extend(call_site.main_stack()))
    thread.start()
    thread.join()
    name = "test_on_another_thread_it_is_the_line_of_the_main_thread"
    assert name in [function for _, _, function in found]
    assert call_site.call_site()[2] == name


@pytest.mark.parametrize("look", [call_site.main_stack, lambda: probe.stack(threading.main_thread().ident)])
def test_a_look_from_another_thread_keeps_nothing_alive(look):
    """What a function has left is gone, however often somebody asks where it is."""

    class Model:
        pass

    def step(depth):
        model = Model()
        return weakref.ref(model) if depth == 0 else step(depth - 1)

    def look_on():
        for _ in range(20_000):
            look()

    before, kept = sys.getswitchinterval(), 0
    thread = threading.Thread(target=look_on)
    sys.setswitchinterval(1e-6)
    thread.start()
    try:
        while thread.is_alive():
            kept += step(20)() is not None
    finally:
        sys.setswitchinterval(before)
        thread.join()
    assert kept == 0


@pytest.mark.parametrize("module", [call_site, probe])
@pytest.mark.parametrize("collects", [True, False])
def test_no_garbage_is_collected_while_the_frames_are_listed(module, collects):
    """A group that is destroyed meanwhile gives the interpreter away, and Python 3.11 stands still."""
    met, threshold, before = [], gc.get_threshold(), gc.isenabled()

    def collecting(phase, info):
        met.append(sys._getframe(1).f_code.co_name)

    gc.callbacks.append(collecting)
    gc.set_threshold(1)
    gc.enable() if collects else gc.disable()
    try:
        for _ in range(50):
            module.without_gc(module.frames_of(threading.get_ident()))
        is_enabled = gc.isenabled()
    finally:
        gc.callbacks.remove(collecting)
        gc.set_threshold(*threshold)
        gc.enable() if before else gc.disable()
    assert module.without_gc.__name__ not in met and is_enabled is collects
