"""What a rank does in the jobs of restarts.py: `torchrun … -m helpers.observe.restart_job FOLDER '{"steps": 12, …}'`.

It is a training script as a cluster has it: the same line begins a run and goes on with it, on however many ranks.
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
ROWS = 12  # of the global batch, which stays when ranks go: 1, 2, 3 or 4 of them share it


def train(folder: Path, told: dict[str, Any]) -> None:
    """From the newest whole checkpoint in `folder` to step `told["steps"]`."""
    import torch
    import torch.distributed as dist

    from helpers.compose import Plan, Trainer
    from helpers.compose.checkpoint import step_folder
    from helpers.workloads import GPT, GPTConfig, characters, token_loss

    dist.init_process_group("gloo", timeout=timedelta(seconds=60))  # or a rank would wait half an hour for the others
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model, plan = GPT(GPTConfig.tiny()).double(), Plan(dp=world)
    how = {"loss": token_loss, "optimizer": torch.optim.AdamW, "lr": LR}
    whole = sorted(folder.glob("step_*/manifest.json"))
    trainer = Trainer.load(whole[-1].parent, model, plan, **how) if whole else Trainer(model, plan, **how)
    tell(rank, ranks=world, after=trainer.steps)
    while trainer.steps < told["steps"]:
        step = trainer.steps + 1
        wait_for_all(folder, told, step, world)
        die(folder, told, step, rank)
        loss = trainer.step(*characters().batch(step, ROWS, GPTConfig.tiny().context))
        tell(rank, step=step, loss=loss.item())
        if step % told["save_every"] == 0:
            trainer.save(step_folder(folder, step))
    dist.destroy_process_group()


def tell(rank: int, **what: Any) -> None:
    """A line in one piece, or two ranks' words mix."""
    os.write(1, f"{json.dumps({'rank': rank, **what})}\n".encode())


def die(folder: Path, told: dict[str, Any], step: int, rank: int) -> None:
    """In the step and on the rank that were told, once; "node": with the agent, as when a machine loses its power."""
    death = folder / "death"
    if told["dies"] == [rank, step] and not death.exists():
        death.touch()
        if told["what"] == "node":
            os.kill(os.getppid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


def wait_for_all(folder: Path, told: dict[str, Any], step: int, world: int) -> None:
    """Before the first step, and in the step before which a node comes back: these steps are short, agents are slow.

    With too few ranks it waits here until torchrun, which sees the new node, starts all ranks again.
    """
    is_early = step == 1 and not (folder / "death").exists()
    if (is_early or step == told["back_at"]) and world < told["ranks"]:
        time.sleep(told["limit"])
        raise TimeoutError(f"step {step} waited {told['limit']} s for {told['ranks']} ranks, and there are {world}")


if __name__ == "__main__":
    from helpers.ranks.inplace import leave

    train(Path(sys.argv[1]), json.loads(sys.argv[2]))
    leave(0)
