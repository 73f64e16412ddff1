"""A small GPT, trained by one process and by any plan: what the tests of composing compare."""

from contextlib import nullcontext
from dataclasses import replace
from functools import cache

import torch
from torch import Tensor, nn

from helpers.compose import Trainer
from helpers.observe.comms import record_comms
from helpers.observe.training import Training
from helpers.parallel.amp import GradScaler, autocast
from helpers.predict.traffic.axes import axis_traffic
from helpers.records import AxisTraffic, traffic_by_axis
from helpers.workloads import GPT, GPTConfig, characters, token_loss
from tests.compose.cases import LAYERS, Case

STEPS, ROWS, MAX_NORM = 5, 48, 0.5
ADAMW = dict(lr=1e-2, eps=1e-6)
NO_GRADIENT = {"*key.bias": 1e-9}  # in theory: softmax removes it, and Adam magnifies what rounding leaves


def build(case: Case, dtype: torch.dtype = torch.float64) -> GPT:
    """A vocabulary that no tp divides; heads, tokens and hidden sizes that all of the case's world's axes do."""
    heads, context, kv = (6, 6, 3) if case.world == 3 else (8, 8, 2)
    torch.manual_seed(0)
    config = GPTConfig.tiny(
        vocab_size=67,
        context=context,
        num_layers=LAYERS,
        hidden=4 * heads,
        num_heads=heads,
        num_kv_heads=kv if case.grouped else None,
        tied=case.tied,
    )
    return GPT(config).to(dtype)


def clipped_training(num_kv_heads: int) -> Training:
    """Three clipped steps of SGD of a small GPT: a factor on all gradients shows, which Adam would divide out again."""
    return Training(
        model=lambda: GPT(
            GPTConfig.tiny(context=8, num_layers=3, hidden=16, num_heads=4, num_kv_heads=num_kv_heads)
        ).double(),
        batch=lambda step: characters().batch(step, 8, 8),
        optimizer=torch.optim.SGD,
        options=dict(lr=0.5, momentum=0.9),
        steps=3,
        max_norm=0.2,
        state=nn.Module.state_dict,
    )


def batches(case: Case) -> list[tuple[Tensor, Tensor]]:
    """Rows with different numbers of targets that count, so that means of means are wrong."""
    context = 6 if case.world == 3 else 8
    tokens = torch.randint(0, 67, (STEPS, ROWS, context + 1), generator=torch.Generator().manual_seed(3))
    x, y = tokens[:, :, :-1], tokens[:, :, 1:].clone()
    for row in range(ROWS):
        y[:, row, 1 + row % context :] = -100
    return list(zip(x, y, strict=True))


def told(losses: list[Tensor], norms: list[Tensor], state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {"losses": torch.stack(losses).double(), "norms": torch.stack(norms).double()} | state


@cache
def one_process(case: Case, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
    """dtype: of autocast, with float32 weights."""
    model = build(case, torch.float32 if dtype else torch.float64)
    optimizer = torch.optim.AdamW(model.parameters(), **ADAMW)
    scaler, losses, norms = GradScaler(enabled=dtype == torch.float16), [], []
    for x, y in batches(case):
        optimizer.zero_grad()
        with autocast(dtype or torch.bfloat16, enabled=dtype is not None):
            loss = token_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM))
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.detach())
    return told(losses, norms, model.state_dict())


def composed(case: Case, dtype: torch.dtype | None = None) -> tuple[dict[str, Tensor], list[AxisTraffic]]:
    """The same on a rank, and what its first two steps sent."""
    model = build(case, torch.float32 if dtype else torch.float64)
    how = dict(loss=token_loss, optimizer=torch.optim.AdamW, max_norm=MAX_NORM, dtype=dtype, **ADAMW)
    trainer, losses, norms, sent = Trainer(model, case.plan, **how), [], [], []
    for x, y in batches(case):
        with record_comms() if len(sent) < 2 else nullcontext() as recorder:
            losses.append(trainer.step(x, y))
        norms.append(trainer.grad_norm)
        sent += [traffic_by_axis(recorder.log, trainer.mesh)] if recorder else []
    return told(losses, norms, trainer.full_state()), sent


def predicted(case: Case, rank: int, **how) -> list[AxisTraffic]:
    """What they send, from the shapes and the plan."""
    plan = replace(case.plan, micro_batch=ROWS // (case.plan.dp * case.plan.num_microbatches))
    return [axis_traffic(build(case).config.spec, plan, rank, first_step=first, **how) for first in (True, False)]
