"""torch.profiler inside somebody else's script: a window of its steps, which the optimizer counts.

Loaded as `inside.py` is. It waits until the script imports torch's optimizers, and is told of each step that ends. Of
several optimizers the first that steps counts.
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

    def __init__(self, then):
        self.then = then

    def find_spec(self, name, path=None, target=None):
        if name != MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            self.then(module)

        spec.loader.exec_module = exec_module
        return spec


class Recorder:
    def __init__(self, wait, warmup, active, folder):
        self.wait, self.warmup, self.active, self.folder = wait, warmup, active, folder
        self.pid, self.rank, self.steps, self.first, self.profile = os.getpid(), os.environ["RANK"], 0, None, None

    def hook(self, module):
        module.register_optimizer_step_post_hook(self.stepped)
        atexit.register(self.end)

    def stepped(self, optimizer, *_):
        """The end of the first step opens the schedule, so that what came before it is in no window."""
        self.first = self.first or id(optimizer)
        if id(optimizer) != self.first or os.getpid() != self.pid:
            return
        self.steps += 1
        if self.profile is None:
            self.open()
        elif self.steps <= self.wait + self.warmup + self.active + 1:
            self.profile.step()

    def open(self):
        import torch.profiler as profiler

        self.profile = profiler.profile(
            schedule=profiler.schedule(wait=self.wait, warmup=self.warmup, active=self.active, repeat=1),
            on_trace_ready=profiler.tensorboard_trace_handler(self.folder, worker_name=f"rank{self.rank}"),
            record_shapes=True,
            profile_memory=True,
        )
        self.profile.start()

    def end(self):
        """What was recorded of a window that the job did not reach the end of is written too; of no step, nothing.

        A profiler that is left running ends the interpreter with a segmentation fault.
        """
        if os.getpid() == self.pid:
            before = self.wait + self.warmup + 1
            if 0 < self.steps < before + self.active:
                self.profile.on_trace_ready = self.profile.on_trace_ready if self.steps > before else None
                self.profile.stop()
            os.makedirs(self.folder, exist_ok=True)
            with open(os.path.join(self.folder, f"rank{self.rank}.steps"), "w") as out:
                out.write(str(self.steps))


def begin():
    told = os.environ.get(WINDOW)
    if told and "RANK" in os.environ:
        sys.meta_path.insert(0, Finder(Recorder(**json.loads(told)).hook))
