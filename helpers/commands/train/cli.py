"""The entry point of `python -m helpers train …`.

Without torchrun, this process starts the ranks as further processes and directs them. The same options work under
torchrun: `torchrun --nproc-per-node=4 -m helpers train …`. There, each rank runs this module, `launched()` is true,
and only rank 0 prints.
"""

from __future__ import annotations

import atexit
import signal
import sys
from typing import TYPE_CHECKING

from helpers.commands.train.options import parse_options
from helpers.learner.words import book
from helpers.learner.words.wrapping import complain
from helpers.ranks.inplace import leave, write_error_file
from helpers.ranks.processes.spec import launched

if TYPE_CHECKING:
    from helpers.ranks import Ranks

words = book("train")
REFUSED = 2  # the exit code that argparse uses for wrong options, too
INTERRUPTED = 128 + signal.SIGINT  # the exit code of shells after Ctrl-C


def main(arguments: list[str]) -> int:
    """Trains and returns the exit code: 0 when all steps are done, 1 when ranks failed or the last save failed.

    It is 2 for options that are refused with a sentence, 130 after Ctrl-C and 143 after SIGTERM. Under torchrun it is 0
    after a signal too, once the run is saved, because torchrun would take anything else for a failure.
    """
    does_print, code = (place := launched()) is None or place.rank == 0, None
    try:
        options = parse_options(arguments)

        from helpers.commands.train import checks  # imports torch, which takes seconds

        options = checks.resume_from_undamaged(options, print if does_print else None)
        done = checks.check(options)  # the steps that the checkpoint has behind it; 0 for a new run
        if done >= options.steps:  # only with --go-on; otherwise `check` has refused
            if does_print:
                print(words("all_done", steps=done, checkpoint=options.resume))
            return 0
        from helpers.commands.train.loop import Loop
        from helpers.commands.train.screen import Screen

        if launched():
            _join()
        with _ranks(options.plan.world_size, quiet=not does_print) as ranks:
            code = Loop(ranks, options, done, Screen(options, sys.stdout if does_print else None)).run()
            # A Ctrl-C that arrives at the very end prints no traceback.
            atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)
        if launched():
            leave(code)  # ends the process without destroying the interpreter, while threads of gloo still use it
        return code
    except ValueError as problem:
        text = words("nothing", problem=problem)
        write_error_file(text)  # which torchrun shows
        if does_print:
            complain(text)  # prints it as an error
        return REFUSED
    except KeyboardInterrupt:
        if code is None and does_print:
            complain(words("early"))
        return code or INTERRUPTED


def _ranks(count: int, *, quiet: bool) -> Ranks:
    """Starts the ranks. Raises ValueError where one cannot start, for lack of disk space or of processes.

    Raises KeyboardInterrupt after Ctrl-C.
    """
    from helpers.ranks import RankError, Ranks

    try:
        return Ranks(count, timeout=None, quiet=quiet)
    except RankError as problem:
        if problem.kind == "interrupted":
            raise KeyboardInterrupt from None
        raise ValueError(str(problem)) from None


def _join() -> None:
    """Joins torchrun's world through the wire, this course's process-group backend, which counts bytes.

    check=False: the wire does not compare the calls of different ranks here, since ranks on other nodes share no memory
    with this one. So it needs no folder for the files with which ranks compare calls (board_dir).
    """
    import torch.distributed as dist

    from helpers.devices import accelerator
    from helpers.ranks.wire import wire

    if accelerator() is not None:
        return  # with NCCL, Ranks joins by itself
    place = launched()
    wire.install(wire.WireConfig(rank=place.rank, world_size=place.world_size, board_dir="", check=False))
    dist.init_process_group("wire")
    atexit.register(dist.destroy_process_group)
