"""Copies that are started, killed and brought back, and the proof that nothing was lost."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from helpers.elastic.crew import Crew, Member, spec
from helpers.elastic.healing.copy import Copy, Settings, batch_of, fresh, rows_of
from helpers.elastic.healing.lighthouse import Lighthouse, Round
from helpers.observe.equality import assert_equal
from helpers.ranks.limits import folder_prefix
from helpers.ranks.transport import pack_call, unpack
from helpers.workloads import train_alone

ALIKE = {"*key.bias": 1e-9}  # a gradient that is zero in theory holds rounding noise
TICK = 0.002  # seconds between two looks into the store


@dataclass
class Run:
    """rounds: each quorum and what came of it. weights: of each copy that is there at the end."""

    settings: Settings
    rounds: tuple[Round, ...]
    weights: dict[int, dict[str, Tensor]]

    @property
    def losses(self) -> list[float]:
        """Of each step that was done, over all its samples."""
        return [one.loss for one in self.rounds if one.done]

    def equal(self) -> str:
        """The verdict: the copies' weights were equal after each step, and in the end, as all losses, those of one
        process that trained on exactly these samples. AssertionError, which says where, if not."""
        for one in self.rounds:
            assert len(set(one.digests)) <= 1, f"after step {one.step + 1} the copies' weights differ: {one}"
        losses, weights = trained_alone(self.rounds, self.settings)
        found = [{"losses": torch.tensor(self.losses, dtype=torch.float64)} | own for own in self.weights.values()]
        return assert_equal({"losses": losses} | weights, found, rtol=1e-10, atol=ALIKE)


def trained_alone(rounds: Sequence[Round], settings: Settings) -> tuple[Tensor, dict[str, Tensor]]:
    """Losses and weights of one process on the samples of each step that was done."""
    model, optimizer = fresh(seed=0)
    batches = (
        batch_of(torch.cat([rows_of(copy, told, settings) for copy in told.members]), told.step)
        for told in rounds
        if told.done
    )
    losses = torch.tensor([*train_alone(model, optimizer, batches)], dtype=torch.float64)
    return losses, model.state_dict()


def go_on(**said) -> Run:
    """Train on copies of which some die and come back: `go_on(copies=4, steps=12, kill={2: 4}, back={2: 8})`.

    What else can be said: Settings. Copy 2 is killed in its fifth step (SIGKILL); the others go on with that step at
    once. When 8 steps are done it is started anew, and healed. Raises ValueError for settings that make no run.
    """
    settings, lighthouse = Settings(**said), Lighthouse()
    with tempfile.TemporaryDirectory(prefix=folder_prefix()) as folder:
        copies = Copies(settings, lighthouse, folder)
        try:
            for copy in range(settings.copies):
                copies.start(copy)
            while copies.alive():
                copies.look()
        finally:
            copies.end()
    rounds = tuple(one for one in lighthouse.rounds if one.step < settings.steps)
    return Run(settings, rounds, {one.rank: unpack(one.value) for one in copies.states if one.value is not None})


def attend(port: int, number: int, life: str, settings: Settings) -> dict[str, Tensor]:
    """On a process: be a copy until the end, or until `kill` says otherwise."""

    def die(moment: str, step: int) -> None:
        if moment == settings.moment and life.endswith(".0") and settings.kill.get(number) == step:
            os.kill(os.getpid(), signal.SIGKILL)

    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    return Copy(number, life, store, settings, die).go_on()


class Copies(Crew):
    """A process per copy, each a world of its own: nobody's death ends another's."""

    def __init__(self, settings: Settings, lighthouse: Lighthouse, folder: str):
        super().__init__(b"", 0, folder, print)
        self.settings, self.lighthouse, self.folder = settings, lighthouse, folder
        self.lives: dict[int, str] = {}

    def start(self, copy: int) -> None:
        life = self.lives[copy] = f"{copy}.{sum(one.rank == copy for one in self.states)}"
        pid, conn = self.zygote.fork(spec(copy, self.folder))
        conn.send(("call", pack_call(attend, (self.lighthouse.store.port, copy, life, self.settings), {}, num_ranks=1)))
        self.states.append(Member(copy, conn, pid))

    def alive(self) -> dict[int, str]:
        """The copies that have not ended, and the names of their lives. RuntimeError where one raised."""
        if raised := next((state.failure for state in self.states if state.failure), None):
            raise RuntimeError(raised.traceback)
        return {state.rank: self.lives[state.rank] for state in self.unfinished}

    def look(self) -> None:
        """Start who is due, and let the lighthouse answer when all who live have asked."""
        self.receive(TICK)
        for copy, life in self.alive().items():
            self.lighthouse.hear(copy, life)
        asked = self.lighthouse.asked
        steps = max((one["steps"] for one in asked.values()), default=0)
        for copy in self.settings.back.keys() - self.alive().keys():
            if self.settings.back[copy] == steps:
                self.start(copy)
        if (lives := self.alive()) and lives.keys() == asked.keys():
            self.lighthouse.answer(lives)
