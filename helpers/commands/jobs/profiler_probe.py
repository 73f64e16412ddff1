"""Runs torch.profiler over a window of steps inside a user's script that never imports this package.

A generated `sitecustomize` loads this file by its path, as it does with `probe.py`, so it may import only the standard
library; it takes `ImportHook` from probe.py, which is loaded first, under the name `_ranks_job`. It waits until the
script imports torch's optimizers and counts the steps of the first optimizer that steps.
"""

from __future__ import annotations

import atexit
import json
import os
import sys

WINDOW = "RANKS_JOB_WINDOW"  # environment: wait, warmup, active, and the folder for the traces, as JSON
MODULE = "torch.optim.optimizer"


class WindowProfiler:
    """Profiles `active` steps of this rank, after `wait` and `warmup` steps, and writes the trace into `folder`.

    pid: this process; a forked child has the object, too, but does nothing. steps: that the optimizer made so far.
    optimizer_id: id() of the first optimizer that stepped; the steps of others do not count.
    """

    def __init__(self, wait, warmup, active, folder):
        self.wait, self.warmup, self.active, self.folder = wait, warmup, active, folder
        self.pid, self.rank, self.steps = os.getpid(), os.environ["RANK"], 0
        self.optimizer_id = self.profile = None

    def install(self, module):
        """Registers the hooks. module: torch.optim.optimizer."""
        module.register_optimizer_step_post_hook(self.on_step)
        atexit.register(self.end)

    def on_step(self, optimizer, *_):
        """Counts a step. The profiler starts after the first one, so that no set-up work is in its window."""
        self.optimizer_id = self.optimizer_id or id(optimizer)
        if id(optimizer) != self.optimizer_id or os.getpid() != self.pid:
            return
        self.steps += 1
        if self.profile is None:
            self.open()
        elif self.steps <= self.wait + self.warmup + self.active + 1:
            self.profile.step()

    def open(self):
        """Starts torch.profiler with the schedule of the window."""
        import torch.profiler as profiler

        schedule = profiler.schedule(wait=self.wait, warmup=self.warmup, active=self.active, repeat=1)
        handler = profiler.tensorboard_trace_handler(self.folder, worker_name=f"rank{self.rank}")
        options = {"schedule": schedule, "record_shapes": True, "profile_memory": True}
        self.profile = profiler.profile(on_trace_ready=handler, **options)
        self.profile.start()

    def end(self):
        """Stops the profiler when the process ends, and writes how many steps were made.

        If the job ended inside the window, the recorded steps are written; if none was recorded, no trace is. The
        profiler must be stopped, because one that still runs makes the interpreter crash as it ends.
        """
        if os.getpid() == self.pid:
            before = self.wait + self.warmup + 1  # steps before the first recorded one
            if 0 < self.steps < before + self.active:
                if self.steps <= before:
                    self.profile.on_trace_ready = None
                self.profile.stop()
            os.makedirs(self.folder, exist_ok=True)
            with open(os.path.join(self.folder, f"rank{self.rank}.steps"), "w") as out:
                out.write(str(self.steps))


def begin():
    """The entry point, which the generated `sitecustomize` calls."""
    window = os.environ.get(WINDOW)
    if window and "RANK" in os.environ:
        hook = sys.modules["_ranks_job"].ImportHook(MODULE, WindowProfiler(**json.loads(window)).install)
        sys.meta_path.insert(0, hook)
