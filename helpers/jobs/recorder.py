"""torch.profiler inside somebody else's script: a window of its steps, which the optimizer counts.

Loaded as `inside.py` is. It waits until the script imports torch's optimizers, and asks for each step that one ends. A
script with two optimizers is counted by the first that steps.
"""

from __future__ import annotations

import atexit
import importlib.abc
import importlib.machinery
import json
import os
import sys

WINDOW = "RANKS_JOB_WINDOW"  # wait, warmup, active, and the folder for the traces, as JSON
MODULE = "torch.optim.optimizer"


class Finder(importlib.abc.MetaPathFinder):
    """Finds one module as everybody would, and has `then` called when it is loaded."""

    def __init__(self, name, then):
        self.name, self.then = name, then

    def find_spec(self, name, path=None, target=None):
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            load, then = spec.loader.exec_module, self.then

            def exec_module(module):
                load(module)
                then(module)

            spec.loader.exec_module = exec_module
        return spec


class Recorder:
    def __init__(self, told):
        self.told, self.steps, self.first, self.profile = told, 0, None, None
        self.pid, self.length = os.getpid(), told["wait"] + told["warmup"] + told["active"]

    def hook(self, module):
        module.register_optimizer_step_post_hook(self.stepped)
        atexit.register(self.end)

    def stepped(self, optimizer, *_):
        """The first step that ends opens the schedule, so that what came before it is never in the window."""
        self.first = self.first or id(optimizer)
        if id(optimizer) != self.first or os.getpid() != self.pid:
            return
        self.steps += 1
        if self.profile is None:
            self.open()
        elif self.steps <= self.length + 1:
            self.profile.step()

    def open(self):
        import torch.profiler as profiler

        told, rank = self.told, os.environ.get("RANK", "0")
        self.profile = profiler.profile(
            schedule=profiler.schedule(wait=told["wait"], warmup=told["warmup"], active=told["active"], repeat=1),
            on_trace_ready=profiler.tensorboard_trace_handler(told["folder"], worker_name=f"rank{rank}"),
            record_shapes=True,
            profile_memory=True,
        )
        self.profile.start()

    def end(self):
        if os.getpid() != self.pid:
            return
        if self.profile is not None and self.told["wait"] + self.told["warmup"] < self.steps <= self.length:
            self.profile.stop()  # what was recorded of a window that was cut is written
        path = os.path.join(self.told["folder"], f"rank{os.environ.get('RANK', '0')}.steps")
        with open(path, "w") as out:
            out.write(str(self.steps))


def begin():
    told = os.environ.get(WINDOW)
    if told and "RANK" in os.environ:
        sys.meta_path.insert(0, Finder(MODULE, Recorder(json.loads(told)).hook))
