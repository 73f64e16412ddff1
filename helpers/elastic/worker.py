"""Runs in each process of an elastic job for one generation: joins the rendezvous, loads, trains and saves.

A generation is the set of processes that train together until one of them dies or all are done. The agent (agent.py)
starts the processes and watches them. They are forked from one that has imported this file already, so that a restart
is fast. The rendezvous gives each process its rank. A process that gets none is a spare, which waits until a later
generation needs it.
"""

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
from helpers.elastic.rendezvous import Rendezvous, connect
from helpers.elastic.settings import ElasticSettings
from helpers.ranks.processes import worker
from helpers.ranks.wire import wire
from helpers.specs import Plan
from helpers.workloads import GPT, GPTConfig, characters, token_loss

CONFIG = GPTConfig.tiny()  # of the model
TEXT = characters()  # the training data
OPTIMIZER = dict(optimizer=torch.optim.AdamW, lr=1e-3)  # arguments of Trainer


def new_model(seed: int) -> GPT:
    """The model in float64, so that sums in another order, over more or fewer replicas, change nothing visible."""
    torch.manual_seed(seed)
    return GPT(CONFIG).double()


def run_generation(
    settings: ElasticSettings, number: int, plan: Plan, port: int, resume: Path | None, folder: Path, boards: Path
) -> dict[str, Tensor] | None:
    """All that this process does in generation `number`. Returns the final weights on rank 0, else None.

    plan: how the model is spread over the ranks. port: of the agent's key-value store. resume: the checkpoint to go on
    from, or None. folder: for new checkpoints. boards: a folder for the files in which the ranks compare their
    collective calls. The "wire", a wrapper around the process group, does that.
    """
    num_ranks, store = plan.world_size, connect(port)
    rendezvous = Rendezvous(store, number)
    rank = rendezvous.join(num_ranks)
    report_to_agent("rank", rank)
    if rank is None:
        return rendezvous.wait_for_the_end()
    boards.mkdir(exist_ok=True)
    wire.install(wire.WireConfig(rank=rank, world_size=num_ranks, board_dir=str(boards)))
    # The heartbeat has a connection of its own, since the other one may be blocked by a wait.
    with Heartbeat(dist.PrefixStore(f"generation {number}", connect(port)), rank) as heartbeat:
        rendezvous.make_group(rank, num_ranks, backend="wire")
        options = dict(loss=token_loss, **OPTIMIZER)
        model = new_model(settings.seed)
        trainer = Trainer.load(resume, model, plan, **options) if resume else Trainer(model, plan, **options)
        train(trainer, settings, folder, heartbeat, ScheduledKills(store, rank))
        weights = trainer.full_state()
    return weights if rank == 0 else None


def train(
    trainer: Trainer, settings: ElasticSettings, folder: Path, heartbeat: Heartbeat, kills: ScheduledKills
) -> None:
    """Trains until all steps are done. A batch depends on seed and step alone, so a resumed step sees the same one.

    The heartbeat tells the agent which step this is. kills: the deaths that are planned for this rank.
    """
    usual_seconds = {"step": 0.02, "save": 0.02}  # a guess until the first one was measured

    def timed(kind: str, action: Callable[..., Tensor | None], *arguments: Tensor | Path) -> Tensor | None:
        # Call the action and measure its duration. A death that is due in it is armed before, as an alarm.
        kills.check(heartbeat.step, kind, usual_seconds[kind])
        start = time.monotonic()
        result = action(*arguments)
        usual_seconds[kind] = time.monotonic() - start
        return result

    while trainer.steps < settings.steps:
        heartbeat.step, start = trainer.steps + 1, time.monotonic()
        batch = TEXT.batch(trainer.steps, settings.batch, CONFIG.context, seed=settings.seed)
        loss = timed("step", trainer.step, *batch)
        if dist.get_rank() == 0:  # before the pause, so that a death at the start of the next step cannot lose it
            report_to_agent("step", (heartbeat.step, loss.item(), time.monotonic()))
        time.sleep(max(0.0, settings.pace - (time.monotonic() - start)))
        if trainer.steps % settings.save_every == 0:
            try:
                timed("save", trainer.save, step_folder(folder, trainer.steps))
            except ValueError as problem:  # every rank raises the same; a full disk must not end the training
                report_to_agent("unsaved", (heartbeat.step, str(problem)))


def report_to_agent(kind: str, value: object) -> None:
    """Sends a message through the pipe that the agent has to each process."""
    worker.ACTIVE.send((kind, value))


class ScheduledKills:
    """The planned deaths (Kill, chaos.py) in the store, which hold for all generations. Each is carried out once."""

    def __init__(self, store: dist.Store, rank: int):
        self.store, self.rank = store, rank
        self.num_read, self.pending = 0, {}  # how many were read from the store; number -> Kill that is not over

    def check(self, step: int, during: str, usual_seconds: float) -> None:
        """Called before a step or a save: carries out a kill that is due in it, or was due in an earlier one.

        during: "step" or "save". usual_seconds: how long that usually takes, of which a kill names a fraction.
        """
        while self.store.check([key := f"kill{self.num_read}"]):
            self.pending[self.num_read] = Kill(**json.loads(self.store.get(key)))
            self.num_read += 1
        for number, kill in list(self.pending.items()):
            if kill.rank == self.rank and kill.step <= step and kill.during == during:
                del self.pending[number]
                if self.store.add(f"killed{number}", 1) == 1:  # a step that is done again kills nobody again
                    arm(kill, usual_seconds)
