"""A small trainer on each rank, and the state that a checkpoint must bring back."""

from pathlib import Path

import torch

from helpers.compose import Plan, Trainer
from helpers.workloads import GPT, GPTConfig, characters, token_loss

TWO = Plan(dp=2, zero=1)


def trainer_of(plan: Plan, folder: Path | None = None, *, dropout: float = 0.0, **how) -> Trainer:
    torch.manual_seed(0)
    model = GPT(GPTConfig.tiny(dropout=dropout))
    how = dict(loss=token_loss, optimizer=torch.optim.AdamW, lr=1e-2) | how
    return Trainer(model, plan, **how) if folder is None else Trainer.load(folder, model, plan, **how)


def train(trainer: Trainer, steps: int) -> list[float]:
    return [trainer.step(*characters().batch(trainer.steps, 8, 16)).item() for _ in range(steps)]


def said_by(work) -> str:
    try:
        work()
    except ValueError as error:
        return str(error)
    return ""


def saved_on(ranks, folder: Path, plan: Plan = TWO) -> Path:
    ranks[: plan.world_size].run(_save, plan, folder)
    return folder


def _save(plan: Plan, folder: Path) -> None:
    trainer = trainer_of(plan)
    train(trainer, 1)
    trainer.save(folder)
