"""Shows what goes wrong when a checkpoint lacks one part of the training state.

`resume_without("sampler")` returns the losses of a run that nobody stopped, and of one that was stopped and resumed
without that part. Chapter 12 of the course draws both. dp is the number of data-parallel replicas, tp that of
tensor-parallel ranks. The parts, and what happens without them:

    sampler           the position in the data: the epoch begins again, so samples are seen twice
    sampler_in_steps  the position, but counted in steps: wrong once dp, and so the samples per step, changes
    rng               each rank's random generators: torch's, for dropout; Python's and NumPy's, for the data
    rng_of_rank_0     rank 0's generators are restored on all ranks, so all replicas drop the same elements
    loss_scale        it begins high again, and steps are skipped until gradients no longer overflow
    optimizer_step    AdamW's corrections 1 - beta^t begin with t = 1 again while its means are old: after 8 steps the
                      next update is twice as large as it should be, late in a long run a third of it
    accumulated       the gradients of the micro-batches before the stop
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

PARTS = ("sampler", "sampler_in_steps", "rng", "rng_of_rank_0", "loss_scale", "optimizer_step", "accumulated")
STEPS, STOP = 16, 8  # steps of a run, and steps before it is stopped
ROWS, TOKENS, SAMPLES = 4, 16, 192  # rows per micro-batch, tokens per sample, samples per epoch
MICRO_BATCHES, FEWER_MICRO_BATCHES = 4, 2  # per step, before and after the number of replicas (dp) was halved
START_SCALE = 2.0**22  # high enough that fp16 gradients overflow in the first steps
RNG_PLAN = Plan(dp=2, tp=2)  # how the runs with dropout spread the model over four ranks
GENERATORS = ("python", "numpy", "torch")  # of random numbers
Losses = list[float]  # one per step


def resume_without(
    part: str, *, forget: bool = True, ranks: Ranks | None = None, only: tuple[str, ...] = GENERATORS
) -> tuple[Losses, Losses]:
    """Losses of a run that nobody stopped, and of one that was resumed after 8 of 16 steps without `part`.

    forget=False: the part is saved too, so the two are equal. "rng" and "rng_of_rank_0" run as dp 2 x tp 2 on four
    ranks: those given, or new ones, which leave the notebook's %%ranks cells on the ranks of before. only: which
    generators "rng" leaves out. Raises ValueError for a part that is not in PARTS.
    """
    if part not in PARTS:
        raise ValueError(f"resume_without({part!r}): expected one of {', '.join(PARTS)}")
    if not isinstance(only, (tuple, list)) or not set(only) <= set(GENERATORS):
        raise ValueError(f"only={only!r}: expected a tuple of names among {', '.join(GENERATORS)}")
    if ranks is not None and not isinstance(ranks, Ranks):
        raise ValueError(f"ranks={ranks!r}: expected your Ranks({RNG_PLAN.world_size}), or None for ranks of its own")
    if part.startswith("rng"):
        with keep_current(), tempfile.TemporaryDirectory() as folder:
            with nullcontext(ranks) if ranks else Ranks(RNG_PLAN.world_size, device="cpu", quiet=True) as ranks:
                # Every rank returns the same losses, so those of rank 0 are enough.
                return ranks.run(resume_with_dropout, folder, only if forget else (), part == "rng_of_rank_0")[0]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # so small a model is slower with more threads
    try:
        return _resume_on_one_process(part, forget)
    finally:
        torch.set_num_threads(threads)


def _resume_on_one_process(part: str, forget: bool) -> tuple[Losses, Losses]:
    """Both runs. The undisturbed one simply goes on after its state was copied; the other one starts from the copy."""
    training, resumed = (StatefulTraining(fp16=part == "loss_scale") for _ in range(2))
    training.run(STOP)
    for _ in range(MICRO_BATCHES - 1 if part == "accumulated" else 0):
        training.micro_batch()
    state = deepcopy(training.state())
    resumed.load(state_without(part, state) if forget else state)
    for one in (training, resumed):
        one.micro_batches = FEWER_MICRO_BATCHES if part == "sampler_in_steps" else MICRO_BATCHES
        one.run(STEPS)
    return training.losses, resumed.losses


def state_without(part: str, state: dict[str, Any]) -> dict[str, Any]:
    """The state with this part as at the start of a run, which is what happens when nobody saved it."""
    match part:
        case "sampler":
            state["samples"] = 0
        case "sampler_in_steps":
            # The position is computed from the steps done and the new, smaller number of samples per step.
            state["samples"] = len(state["losses"]) * FEWER_MICRO_BATCHES * ROWS
        case "loss_scale":
            state["scaler"] = GradScaler(START_SCALE).state_dict()
        case "optimizer_step":
            for of_parameter in state["optimizer"]["state"].values():
                of_parameter["step"].zero_()
        case "accumulated":
            state["gradients"] = [None] * len(state["gradients"])
    return state


class StatefulTraining:
    """Trains a GPT on one process on samples in shuffled order. `state` and `load` are all that a resume needs."""

    def __init__(self, *, fp16: bool):
        torch.manual_seed(0)
        model = GPT(GPTConfig.tiny(context=TOKENS))
        # fp16 autocast starts from float32 weights. Elsewhere float64, so that rounding makes no difference.
        self.model = model if fp16 else model.double()
        self.optimizer = AdamW(self.model.parameters(), lr=3e-3)
        self.scaler = GradScaler(START_SCALE, enabled=fp16)
        self.region = autocast(torch.float16) if fp16 else nullcontext()
        # + 1: the last target.
        self.tokens, self.micro_batches = characters(SAMPLES * TOKENS + 1).tokens, MICRO_BATCHES
        self.samples = 0  # how many samples were read, which is the sampler's position
        self.step_losses: Losses = []  # of the present step, one per micro-batch
        self.losses: Losses = []

    def next_samples(self) -> tuple[Tensor, Tensor]:
        """The next samples: tokens and targets of shape (ROWS, TOKENS). The epoch's number seeds its order."""
        epoch, position = divmod(self.samples, SAMPLES)
        order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(epoch))
        starts = order[position : position + ROWS, None] * TOKENS  # (4, 1)
        self.samples += ROWS
        rows = self.tokens[starts + torch.arange(TOKENS + 1)]  # (4, 17)
        return rows[:, :-1], rows[:, 1:]

    def micro_batch(self) -> None:
        """Forward and backward of one micro-batch; the gradients accumulate."""
        inputs, targets = self.next_samples()
        with self.region:
            loss = token_loss(self.model(inputs), targets)
        self.scaler.scale(loss / self.micro_batches).backward()
        self.step_losses.append(loss.item())

    def run(self, steps: int) -> None:
        """Trains until `steps` steps are done."""
        while len(self.losses) < steps:
            while len(self.step_losses) < self.micro_batches:
                self.micro_batch()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad()
            self.losses.append(sum(self.step_losses) / len(self.step_losses))
            self.step_losses = []

    def state(self) -> dict[str, Any]:
        """Everything that the next step depends on."""
        state = {name: getattr(self, name).state_dict() for name in ("model", "optimizer", "scaler")}
        state |= {name: getattr(self, name) for name in ("samples", "step_losses", "losses")}
        return state | {"gradients": [parameter.grad for parameter in self.model.parameters()]}

    def load(self, state: dict[str, Any]) -> None:
        """Continues from this state."""
        state = deepcopy(state)
        for name in ("model", "optimizer", "scaler"):
            getattr(self, name).load_state_dict(state[name])
        self.samples, self.step_losses, self.losses = state["samples"], state["step_losses"], state["losses"]
        for parameter, gradient in zip(self.model.parameters(), state["gradients"], strict=True):
            parameter.grad = gradient


def resume_with_dropout(folder: str, forget: tuple[str, ...], of_rank_0: bool) -> tuple[Losses, Losses]:
    """Both runs on a rank, with dropout. Each rank saves its generators in a file beside the checkpoint.

    forget: the generators that are not restored. of_rank_0: instead, all are restored from rank 0's file.
    """
    trainer = _trainer()
    at_start, losses = generators(), _steps(trainer, STOP)
    trainer.save(f"{folder}/step_{STOP}")
    torch.save(generators(), f"{folder}/generators_{trainer.axes.rank}.pt")
    undisturbed = losses + _steps(trainer, STEPS)
    resumed = _trainer(f"{folder}/step_{STOP}")
    file_rank = 0 if of_rank_0 and forget else trainer.axes.rank  # whose generators this rank restores
    saved = torch.load(f"{folder}/generators_{file_rank}.pt", weights_only=True)
    set_generators(saved if of_rank_0 else saved | {name: at_start[name] for name in forget})
    return undisturbed, losses + _steps(resumed, STEPS)


def generators() -> dict[str, Any]:
    """The states of this rank's generators.

    Nothing else must be saved: what a rank draws for its tensor-parallel shard follows from torch's state and its rank.
    """
    name, key, *rest = np.random.get_state()
    # A list in place of NumPy's array, because `torch.load` with weights_only=True builds only plain data and tensors.
    return {"python": random.getstate(), "numpy": (name, key.tolist(), *rest), "torch": torch.get_rng_state()}


def set_generators(state: dict[str, Any]) -> None:
    """Restores what `generators` returned."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])


def _trainer(folder: str = "") -> Trainer:
    """A trainer of a new model with dropout, or of the checkpoint in a folder. All generators are seeded."""
    for seed in (torch.manual_seed, random.seed, np.random.seed):
        seed(0)
    model = GPT(GPTConfig.tiny(context=TOKENS, num_layers=1, dropout=0.2)).double()
    options = dict(loss=token_loss, optimizer=AdamW, lr=3e-3, seed=1)  # seed: of dropout
    return Trainer.load(folder, model, RNG_PLAN, **options) if folder else Trainer(model, RNG_PLAN, **options)


def _steps(trainer: Trainer, steps: int) -> Losses:
    """Trains until `steps` steps are done, on data that Python's and NumPy's generators change. The losses."""
    losses, text = [], characters(4_000)
    while trainer.steps < steps:
        inputs, targets = text.batch(trainer.steps, ROWS * MICRO_BATCHES, TOKENS)
        inputs = inputs.roll(random.randrange(TOKENS), dims=1)  # drawn by Python, equal on every rank
        noise = torch.from_numpy(np.random.rand(*inputs.shape) < 0.1)  # drawn by NumPy
        losses.append(trainer.step(inputs.masked_fill(noise, 0), targets).item())
    return losses
