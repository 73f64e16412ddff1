"""What a function leaves behind does not change the next check: it is put back, or the process is not used again."""

from __future__ import annotations

import os
import random
import resource
import signal
import sys
import threading

import cloudpickle
import pytest
import torch
import torch.distributed as dist

from helpers.grading import failures
from helpers.grading.verdict import words
from tests.grading.safeguards.conftest import SIZE
from tests.grading.test_run_on_ranks import right

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as what a cell defines: a rank does not import this file


def settings():
    """What a later check would meet, as data."""
    return {
        "dtype": str(torch.get_default_dtype()),
        "device": str(torch.empty(1).device),
        "grad": torch.is_grad_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "threads": torch.get_num_threads(),
        "environment": "WORLD_OF_MINE" in os.environ,
        "folder": os.getcwd(),
        "handler": signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL,
        "interrupt": signal.getsignal(signal.SIGINT).__name__,
        "timer": signal.getitimer(signal.ITIMER_REAL)[0],
        "out": type(sys.stdout).__name__,
        "umask": os.umask(0o22),
        "path": "/nowhere" in sys.path,
        "limit": sys.getrecursionlimit(),
    }


def changes_settings(model):
    right(model)
    torch.set_default_dtype(torch.float16)
    torch.set_grad_enabled(False)
    torch._C._set_deterministic_algorithms(True, warn_only=False)  # torch's own imports inductor, for seconds
    torch.set_num_threads(3)
    os.environ["WORLD_OF_MINE"] = "1"
    os.mkdir(f"folder{dist.get_rank()}")
    os.chdir(f"folder{dist.get_rank()}")
    signal.signal(signal.SIGUSR1, print)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.setitimer(signal.ITIMER_REAL, 1000)
    sys.stdout = None
    sys.path.insert(0, "/nowhere")
    sys.setrecursionlimit(500)
    os.umask(0)


def test_settings_are_put_back(run, own, next_works):
    assert run(right).failure is None
    world = own[:SIZE]
    before, pids = world.run(settings), world.pids
    assert run(changes_settings).failure is None
    assert world.run(settings) == before
    assert world.pids == pids
    next_works()


def test_numbers_are_drawn_alike_whatever_was_drawn_before(run, own):
    def draws(model):
        print(torch.rand(1).item(), random.random())

    first = run(draws).printed
    own[:SIZE].run(torch.manual_seed, 5)
    assert run(draws).printed == first


def no_all_reduce(model):
    dist.all_reduce = lambda *args, **kwargs: None


def leaves_a_thread(model):
    def burns():
        while True:
            pass

    threading.Thread(target=burns, daemon=True).start()


def fails_too(model):
    no_all_reduce(model)
    raise ValueError("no")


SPENT = {
    "no all-reduce": no_all_reduce,
    "no all-reduce, and fails": fails_too,
    "another division": lambda model: setattr(torch.Tensor, "__itruediv__", lambda self, other: self),
    "a hook": lambda model: torch.nn.modules.module.register_module_forward_hook(print),
    "a mode": lambda model: torch.set_default_device("meta"),
    "a thread": leaves_a_thread,
    "no world": lambda model: dist.destroy_process_group(),
    "a lower limit": lambda model: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)),
    "much memory": lambda model: setattr(sys, "kept", torch.ones(100_000_000)),
}


@pytest.mark.parametrize("function", SPENT.values(), ids=SPENT)
def test_a_process_that_is_not_what_it_was_is_not_used_again(function, run, own, next_works):
    assert run(right).failure is None
    before = own[:SIZE].pids
    run(function)
    assert set(own[:SIZE].pids).isdisjoint(before)
    next_works()


def test_a_right_answer_leaves_the_ranks_as_they_are(run, own):
    assert run(right).failure is None
    before = own[:SIZE].pids
    assert run(right).failure is None
    assert own[:SIZE].pids == before


def test_every_kind_of_trouble_has_its_sentence():
    assert {f"trouble.{kind}" for kind in failures.KINDS.values()} <= words.keys()
