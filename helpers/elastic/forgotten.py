"""What is lost when it is not saved. Each time a run is stopped and goes on, and one thing was left out of its state.

    sampler           the position in the data: the epoch begins again, and what was seen is seen twice
    sampler_in_steps  the position, counted in steps: right until dp, and with it a step's samples, changes
    rng               each rank's random numbers: torch's, for dropout; Python's and NumPy's, which shape the data
    rng_of_rank_0     one rank's numbers for all of them: copies drop the same places
    loss_scale        it begins high again, and steps are skipped until it fits
    optimizer_step    AdamW takes its old means for new ones: after 8 steps the next update is twice as large as it
                      should be, late in a long run a third (the corrections 1 - beta^t, with t = 1)
    accumulated       gradients of the micro-batches before the stop

`run_forgetting("sampler")` gives the losses of the run that nobody stopped, and those of the one that forgot.
"""

from __future__ import annotations

import random
import tempfile
from contextlib import nullcontext
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import AdamW

from helpers.compose import Plan, Trainer
from helpers.parallel.amp import GradScaler, autocast
from helpers.ranks import Ranks
from helpers.ranks.live import keep_current
from helpers.workloads import GPT, GPTConfig, characters, token_loss

FORGETTABLE = ("sampler", "sampler_in_steps", "rng", "rng_of_rank_0", "loss_scale", "optimizer_step", "accumulated")
STEPS, STOP = 16, 8  # of a run, and before it is stopped
ROWS, TOKENS, SAMPLES = 4, 16, 192  # of a micro-batch, of a sample, of an epoch
MICRO_BATCHES, FEWER = 4, 2  # of a step; after dp was halved
START_SCALE, SQUARE = 2.0**22, Plan(dp=2, tp=2)
GENERATORS = ("python", "numpy", "torch")
Losses = list[float]


def run_forgetting(
    what: str, *, forget: bool = True, ranks: Ranks | None = None, only: tuple[str, ...] = GENERATORS
) -> tuple[Losses, Losses]:
    """Losses of the run that nobody stopped, and of the one that was stopped after 8 of 16 steps and lost `what`.

    forget=False: the stopped run saves it too, and the two are equal. "rng" takes four ranks (ranks: yours) as dp 2 x
    tp 2; only: these generators are lost. Raises ValueError for what is not in FORGETTABLE.
    """
    if what not in FORGETTABLE:
        raise ValueError(f"run_forgetting({what!r}): expected one of {', '.join(FORGETTABLE)}")
    if not isinstance(only, (tuple, list)) or not set(only) <= set(GENERATORS):
        raise ValueError(f"only={only!r}: expected a tuple of names among {', '.join(GENERATORS)}")
    if ranks is not None and not isinstance(ranks, Ranks):
        raise ValueError(f"ranks={ranks!r}: expected your Ranks({SQUARE.world_size}), or None for ranks of its own")
    if what.startswith("rng"):
        with keep_current(), tempfile.TemporaryDirectory() as folder:
            with nullcontext(ranks) if ranks else Ranks(SQUARE.world_size, device="cpu", quiet=True) as ranks:
                return ranks.run(stopped_with_dropout, folder, only if forget else (), what == "rng_of_rank_0")[0]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # so small a model only loses by more
    try:
        return _stopped(what, forget)
    finally:
        torch.set_num_threads(threads)


def _stopped(what: str, forget: bool) -> tuple[Losses, Losses]:
    """On one process: the undisturbed run goes on where the other one's state is taken."""
    training, resumed = (Training(fp16=what == "loss_scale") for _ in range(2))
    training.run(STOP)
    for _ in range(MICRO_BATCHES - 1 if what == "accumulated" else 0):
        training.micro_batch()
    state = deepcopy(training.state())
    resumed.load(without(what, state) if forget else state)
    for one in (training, resumed):
        one.micro_batches = FEWER if what == "sampler_in_steps" else MICRO_BATCHES
        one.run(STEPS)
    return training.losses, resumed.losses


def without(what: str, state: dict[str, Any]) -> dict[str, Any]:
    """The state as it is when nobody saved `what`: as at the start of a run."""
    match what:
        case "sampler":
            state["samples"] = 0
        case "sampler_in_steps":
            state["samples"] = len(state["losses"]) * FEWER * ROWS
        case "loss_scale":
            state["scaler"] = GradScaler(START_SCALE).state_dict()
        case "optimizer_step":
            for of_parameter in state["optimizer"]["state"].values():
                of_parameter["step"].zero_()
        case "accumulated":
            state["gradients"] = [None] * len(state["gradients"])
    return state


class Training:
    """One process that trains a GPT on samples in a shuffled order, and all that it must save: `state`, `load`."""

    def __init__(self, *, fp16: bool):
        torch.manual_seed(0)
        model = GPT(GPTConfig.tiny(context=TOKENS))
        self.model = model if fp16 else model.double()
        self.optimizer = AdamW(self.model.parameters(), lr=3e-3)
        self.scaler = GradScaler(START_SCALE, enabled=fp16)
        self.region = autocast(torch.float16) if fp16 else nullcontext()
        self.tokens, self.micro_batches = characters(SAMPLES * TOKENS + 1).tokens, MICRO_BATCHES
        self.samples = 0  # that were seen: the sampler's position
        self.begun: Losses = []  # of the step that has begun, one per micro-batch
        self.losses: Losses = []

    def take(self) -> tuple[Tensor, Tensor]:
        """The next samples, (4, 16) tokens and targets. Each epoch has an order of its own, which its number tells."""
        epoch, place = divmod(self.samples, SAMPLES)
        order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(epoch))
        starts = order[place : place + ROWS, None] * TOKENS  # (4, 1)
        self.samples += ROWS
        rows = self.tokens[starts + torch.arange(TOKENS + 1)]  # (4, 17)
        return rows[:, :-1], rows[:, 1:]

    def micro_batch(self) -> None:
        inputs, targets = self.take()
        with self.region:
            loss = token_loss(self.model(inputs), targets)
        self.scaler.scale(loss / self.micro_batches).backward()
        self.begun.append(loss.item())

    def run(self, steps: int) -> None:
        """Go on until `steps` steps are done."""
        while len(self.losses) < steps:
            while len(self.begun) < self.micro_batches:
                self.micro_batch()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad()
            self.losses.append(sum(self.begun) / len(self.begun))
            self.begun = []

    def state(self) -> dict[str, Any]:
        told = {name: getattr(self, name).state_dict() for name in ("model", "optimizer", "scaler")}
        told |= {name: getattr(self, name) for name in ("samples", "begun", "losses")}
        return told | {"gradients": [parameter.grad for parameter in self.model.parameters()]}

    def load(self, state: dict[str, Any]) -> None:
        state = deepcopy(state)
        for name in ("model", "optimizer", "scaler"):
            getattr(self, name).load_state_dict(state[name])
        self.samples, self.begun, self.losses = state["samples"], state["begun"], state["losses"]
        for parameter, gradient in zip(self.model.parameters(), state["gradients"], strict=True):
            parameter.grad = gradient


def stopped_with_dropout(folder: str, forget: tuple[str, ...], of_rank_0: bool) -> tuple[Losses, Losses]:
    """On a rank: both runs. The stopped one has a file of generators per rank beside its checkpoint."""
    trainer = _trainer()
    at_start, losses = generators(), _steps(trainer, STOP)
    trainer.save(f"{folder}/step_{STOP}")
    torch.save(generators(), f"{folder}/generators_{trainer.axes.rank}.pt")
    undisturbed = losses + _steps(trainer, STEPS)
    resumed = _trainer(f"{folder}/step_{STOP}")
    whose = 0 if of_rank_0 and forget else trainer.axes.rank
    saved = torch.load(f"{folder}/generators_{whose}.pt", weights_only=False)
    set_generators(saved if of_rank_0 else saved | {name: at_start[name] for name in forget})
    return undisturbed, losses + _steps(resumed, STEPS)


def generators() -> dict[str, Any]:
    """Where this rank's generators are. What a tensor rank draws for its part follows from torch's and its place."""
    return {"python": random.getstate(), "numpy": np.random.get_state(), "torch": torch.get_rng_state()}


def set_generators(state: dict[str, Any]) -> None:
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])


def _trainer(folder: str = "") -> Trainer:
    for seed in (torch.manual_seed, random.seed, np.random.seed):
        seed(0)
    model = GPT(GPTConfig.tiny(context=TOKENS, num_layers=1, dropout=0.2)).double()
    how = dict(loss=token_loss, optimizer=AdamW, lr=3e-3, seed=1)
    return Trainer.load(folder, model, SQUARE, **how) if folder else Trainer(model, SQUARE, **how)


def _steps(trainer: Trainer, steps: int) -> Losses:
    losses, text = [], characters(4_000)
    while trainer.steps < steps:
        inputs, targets = text.batch(trainer.steps, ROWS * MICRO_BATCHES, TOKENS)
        inputs = inputs.roll(random.randrange(TOKENS), dims=1)  # Python's numbers, the same on every rank
        noise = torch.from_numpy(np.random.rand(*inputs.shape) < 0.1)  # and NumPy's
        losses.append(trainer.step(inputs.masked_fill(noise, 0), targets).item())
    return losses
