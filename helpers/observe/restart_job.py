"""Trains on one rank of a job that loses a node on purpose, and resumes from the newest checkpoint.

torchrun.py starts the job: torchrun's process on each node, the agent, runs this file with
`-m helpers.observe.restart_job FOLDER SETTINGS`. It is a training script as on a cluster: the same command starts a run
and resumes it, on any number of ranks. FOLDER holds the checkpoints. SETTINGS is JSON with these keys:

    steps        how many steps the whole training has
    save_every   after how many steps it saves a checkpoint
    at_step      in which step the node of rank 1 dies
    back_at      before which step the node is started again, or null
    limit        seconds after which the job is given up
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

LR = 1e-3
NUM_RANKS = 2  # while both nodes live
ROWS = 12  # of the global batch, which stays the same when ranks die: 1, 2, 3 or 4 of them divide it


def train(folder: Path, settings: dict[str, Any]) -> None:
    """Train from the newest complete checkpoint in `folder` to step `settings["steps"]`."""
    import torch
    import torch.distributed as dist

    from helpers.compose import Plan, Trainer
    from helpers.compose.checkpoint import step_folder
    from helpers.workloads import GPT, GPTConfig, characters, token_loss

    dist.init_process_group("gloo", timeout=timedelta(seconds=60))  # the default is half an hour
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model, plan = GPT(GPTConfig.tiny()).double(), Plan(dp=world)
    options = {"loss": token_loss, "optimizer": torch.optim.AdamW, "lr": LR}
    complete = sorted(folder.glob("step_*/manifest.json"))  # a checkpoint is complete once it has a manifest
    trainer = Trainer.load(complete[-1].parent, model, plan, **options) if complete else Trainer(model, plan, **options)
    print_line(rank, ranks=world, after=trainer.steps)
    while trainer.steps < settings["steps"]:
        step = trainer.steps + 1
        wait_for_all(folder, settings, step, world)
        die_if_planned(folder, settings, step, rank)
        loss = trainer.step(*characters().batch(step, ROWS, GPTConfig.tiny().context))
        print_line(rank, step=step, loss=loss.item())
        if step % settings["save_every"] == 0:
            trainer.save(step_folder(folder, step))
    dist.destroy_process_group()


def print_line(rank: int, **what: Any) -> None:
    """Print one line of JSON in one write, so that the lines of two ranks do not mix."""
    os.write(1, f"{json.dumps({'rank': rank, **what})}\n".encode())


def die_if_planned(folder: Path, settings: dict[str, Any], step: int, rank: int) -> None:
    """On rank 1, die once, in the step of the settings, together with the node's agent, as in a power failure."""
    death = folder / "death"  # a file that says that it has happened
    if (rank, step) == (1, settings["at_step"]) and not death.exists():
        death.touch()
        os.kill(os.getppid(), signal.SIGKILL)  # the agent
        os.kill(os.getpid(), signal.SIGKILL)


def wait_for_all(folder: Path, settings: dict[str, Any], step: int, world: int) -> None:
    """Wait for all ranks before the first step, and before the step at which a node comes back.

    Steps are short and agents start slowly. With too few ranks this one waits until torchrun, which sees the new node,
    starts all ranks again.
    """
    is_early = step == 1 and not (folder / "death").exists()
    if (is_early or step == settings["back_at"]) and world < NUM_RANKS:
        time.sleep(settings["limit"])
        raise TimeoutError(f"step {step} waited {settings['limit']} s for {NUM_RANKS} ranks, and there are {world}")


if __name__ == "__main__":
    from helpers.ranks.inplace import leave

    train(Path(sys.argv[1]), json.loads(sys.argv[2]))
    leave(0)  # ends the process with code 0
