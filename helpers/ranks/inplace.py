"""Runs Ranks under a launcher such as torchrun: this process is a rank already, so `run` calls the function here.

`Ranks` (live.py) makes a `LaunchedRanks` where a launcher has told this process its rank. The file also has two
functions for programs that torchrun launches: `leave` ends such a process safely, and `write_error_file` writes the
error that torchrun's report shows. A "card" is a practice card, which is a simulated GPU (helpers/devices/cards).
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from helpers.ranks.processes.limits import card_bytes
from helpers.ranks.processes.spec import launched


def write_error_file(text: str) -> None:
    """Write the error of this rank into the file that torchrun reads for the report that it prints at the end.

    The report then has this text even if the rank is killed later. The format is that of
    torch.distributed.elastic.multiprocessing.errors.
    """
    if path := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        report = {"message": {"message": text, "extraInfo": {"timestamp": str(int(time.time()))}}}
        with suppress(OSError):
            Path(path).write_text(json.dumps(report), encoding="utf-8")


def leave(code: int) -> NoReturn:
    """End a launched process once its work is done, without destroying the interpreter.

    A thread of gloo or of autograd that gives a tensor back asks for the interpreter's lock. Where the interpreter is
    being destroyed, Python before 3.14 ends that thread, and C++ then ends the process with SIGABRT (pytorch issue
    190489). Everything else that Python does at its end is done here.
    """
    for thread in threading.enumerate():
        if not thread.daemon and thread is not threading.current_thread():
            thread.join()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


class LaunchedRanks:
    """The launcher's ranks. A script may ask Ranks for another number, but the launcher has decided.

    device, memory: as Ranks has them. Joins the default process group if the script has not done so.
    """

    def __init__(self, device: str, memory: str | int | None = None):
        import torch
        import torch.distributed as dist

        from helpers.devices import install

        place = launched()
        self.world_size = place.world_size
        if device == "card":
            install(device, card_bytes(memory, place.local_world_size))
        else:
            card_bytes(memory, 1, device)  # raises ValueError if `memory` is given, since only cards have one
        gpus = torch.cuda.device_count() if device not in ("cpu", "card") else 0
        if device in ("cuda", "nccl") and not gpus:
            raise ValueError(f'device={device!r} needs an NVIDIA GPU, and torch sees none here: use device="cpu".')
        has_own_gpu = gpus >= place.local_world_size
        uses_gpu = gpus and (has_own_gpu or device == "cuda")  # with "cuda", ranks may share a GPU through gloo
        self.device = "card" if device == "card" else "cuda" if uses_gpu else "cpu"
        if self.device == "cuda":
            torch.cuda.set_device(place.local_rank % gpus)
        if not dist.is_initialized():
            dist.init_process_group("nccl" if self.device == "cuda" and has_own_gpu else "gloo")
            atexit.register(dist.destroy_process_group)

    def run(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
        """Call the function on every rank; the results in rank order, on every rank."""
        import torch.distributed as dist

        results: list[Any] = [None] * self.world_size
        dist.all_gather_object(results, fn(*args, **kwargs))
        return results
