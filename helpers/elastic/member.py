"""What a process of the job does in one generation: meet, load, train, save."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from helpers.compose import Trainer
from helpers.compose.checkpoint import step_folder
from helpers.elastic.chaos import Kill, arm
from helpers.elastic.heartbeat import Heartbeat
from helpers.elastic.rendezvous import Rendezvous
from helpers.elastic.settings import Settings
from helpers.ranks import wire, worker
from helpers.specs import Plan
from helpers.workloads import GPT, GPTConfig, characters, token_loss

CONFIG = GPTConfig.tiny()
TEXT = characters()
HOW = dict(optimizer=torch.optim.AdamW, lr=1e-3)


def connect(port: int) -> dist.TCPStore:
    return dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)


def model(seed: int) -> GPT:
    """float64, so that sums in another order, over more or fewer copies, change nothing that could be seen."""
    torch.manual_seed(seed)
    return GPT(CONFIG).double()


def train(told: Settings, number: int, plan: Plan, port: int, resume: Path | None, folder: Path, boards: Path):
    """All that this process does in generation `number`; from rank 0 the weights at its end.

    port: of the store. resume: the checkpoint to go on from. folder: for new ones. boards: where ranks compare calls.
    """
    num_ranks, store = plan.world_size, connect(port)
    meeting = Rendezvous(store, number)
    rank = meeting.join(num_ranks)
    tell("placed", rank)
    if rank is None:
        return meeting.wait_for_the_end()
    boards.mkdir(exist_ok=True)
    wire.install(wire.WireConfig(rank=rank, world_size=num_ranks, board_dir=str(boards)))
    beats = dist.PrefixStore(f"generation {number}", connect(port))  # its own connection: the other may be waiting
    with Heartbeat(beats, rank) as heart:
        meeting.make_group(rank, num_ranks, backend="wire")
        how = dict(loss=token_loss, **HOW)
        trainer = Trainer.load(resume, model(told.seed), plan, **how) if resume else None
        trainer = trainer or Trainer(model(told.seed), plan, **how)
        run(trainer, told, folder, heart, Orders(store, rank))
        weights = trainer.full_state()
    return weights if rank == 0 else None


def run(trainer: Trainer, told: Settings, folder: Path, heart: Heartbeat, orders: Orders) -> None:
    """The batch depends on the seed and the step alone: who resumes sees what the dead would have seen."""
    usual = {"step": 0.02, "save": 0.02}  # seconds, until one was measured

    def timed(what: str, action: Callable[..., Tensor | None], *given: Tensor | Path) -> Tensor | None:
        orders.look(heart.step, what, usual[what])
        start = time.monotonic()
        made = action(*given)
        usual[what] = time.monotonic() - start
        return made

    while trainer.steps < told.steps:
        heart.step, start = trainer.steps + 1, time.monotonic()
        batch = TEXT.batch(trainer.steps, told.batch, CONFIG.context, seed=told.seed)
        loss = timed("step", trainer.step, *batch)
        if dist.get_rank() == 0:  # ahead of the pause: who dies as the next step begins does not take this one along
            tell("step", (heart.step, loss.item(), time.monotonic()))
        time.sleep(max(0.0, told.pace - (time.monotonic() - start)))
        if trainer.steps % told.save_every == 0:
            try:
                timed("save", trainer.save, step_folder(folder, trainer.steps))
            except ValueError as problem:  # the same on every rank: a disk that is full ends no training
                tell("unsaved", (heart.step, str(problem)))


def tell(what: str, value: object) -> None:
    """To the agent, through the pipe that it holds of each process."""
    worker.ACTIVE.send((what, value))


class Orders:
    """Kills that somebody has ordered, in the store for all generations: each is carried out once."""

    def __init__(self, store: dist.Store, rank: int):
        self.store, self.rank, self.read, self.open = store, rank, 0, {}

    def look(self, step: int, during: str, usual: float) -> None:
        """Ahead of a step or a save: what is meant for it, or was meant for one that is over already."""
        while self.store.check([key := f"order{self.read}"]):
            self.open[self.read] = Kill(**json.loads(self.store.get(key)))
            self.read += 1
        for number, kill in list(self.open.items()):
            if kill.rank == self.rank and kill.step <= step and kill.during == during:
                del self.open[number]
                if self.store.add(f"obeyed{number}", 1) == 1:  # a step that is done again kills nobody again
                    arm(kill, usual)
