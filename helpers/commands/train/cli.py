"""`python -m helpers train …`, and the same line under torchrun: `torchrun --nproc-per-node=4 -m helpers train …`."""

from __future__ import annotations

import atexit
import os
import signal
import sys
from typing import TYPE_CHECKING

from helpers.commands.train.options import settings
from helpers.learner.words import book
from helpers.learner.words.wrapping import complain
from helpers.ranks.inplace import is_launched, last_words, leave

if TYPE_CHECKING:
    from helpers.ranks import Ranks

say = book("train")
REFUSED = 2  # the exit code, as argparse has it


def main(arguments: list[str]) -> int:
    """0 when all steps are done, 1 when ranks failed or the end was not saved, 2 for a sentence.

    130 after Ctrl-C and 143 after SIGTERM, but 0 under torchrun, once the run is saved.
    """
    speaks = os.environ.get("RANK", "0") == "0"
    try:
        told = settings(arguments)

        from helpers.commands.train import fits  # torch comes only when there is something to train

        told = fits.from_whole(told, print if speaks else None)
        done = fits.check(told)
        if done >= told.steps:  # --go-on
            if speaks:
                print(say("all_done", steps=done, checkpoint=told.resume))
            return 0

        from helpers.commands.train.loop import Loop
        from helpers.commands.train.screen import Screen

        if is_launched():
            _join()
        with _ranks(told.plan.world_size, quiet=not speaks) as ranks:
            code = Loop(ranks, told, done, Screen(told, sys.stdout if speaks else None)).run()
            atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)  # nobody needs to be told of a late Ctrl-C
        if is_launched():
            leave(code)
        return code
    except ValueError as problem:
        text = say("nothing", problem=problem)
        last_words(text)
        if speaks:
            complain(text)
        return REFUSED
    except KeyboardInterrupt:
        return 130


def _ranks(count: int, *, quiet: bool) -> Ranks:
    """ValueError where a rank cannot start: no room for its files, too few processes allowed."""
    from helpers.ranks import RankError, Ranks

    try:
        return Ranks(count, timeout=None, quiet=quiet)
    except RankError as problem:
        raise ValueError(str(problem)) from None


def _join() -> None:
    """Enter torchrun's world through the wire, which counts bytes. It compares nothing: nodes share no memory."""
    import torch.distributed as dist

    from helpers.devices import accelerator
    from helpers.ranks import wire

    if accelerator() is not None:
        return  # NCCL: Ranks joins by itself
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    wire.install(wire.WireConfig(rank=rank, world_size=world_size, board_dir="", check=False))
    dist.init_process_group("wire")
    atexit.register(dist.destroy_process_group)
