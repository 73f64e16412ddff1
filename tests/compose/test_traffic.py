"""What each axis sends, predicted from shapes and plan alone, is what the wire logs, to the byte, on every rank."""

from __future__ import annotations

import sys
from dataclasses import replace

import cloudpickle
import pytest
import torch

from helpers.compose import Trainer
from helpers.measure.comms import record_comms
from helpers.predict.traffic.axes import axis_traffic
from helpers.records import traffic_by_axis
from helpers.specs import ModelSpec
from helpers.workloads import token_loss
from tests.compose.cases import Case
from tests.compose.test_trainer import CASES, IN_CI
from tests.compose.training import ROWS, batches, build

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def spec_of(case: Case) -> ModelSpec:
    config = build(case).config
    return ModelSpec(
        num_layers=config.num_layers,
        hidden=config.hidden,
        num_heads=config.num_heads,
        num_kv_heads=config.kv_heads,
        vocab=config.vocab_size,
        seq=config.context,
        tied_embeddings=config.tied,
    )


def logged(case: Case, dtype=None):
    """By axis, of the first step and of the second."""
    model = build(case, torch.float32 if dtype else torch.float64)
    trainer = Trainer(model, case.plan, loss=token_loss, optimizer=torch.optim.SGD, lr=1e-3, max_norm=1.0, dtype=dtype)
    found = []
    for x, y in batches(case)[:2]:
        with record_comms() as recorder:
            trainer.step(x, y)
        found.append(traffic_by_axis(recorder.log, trainer.mesh))
    return found


def predicted(case: Case, rank: int, **how):
    plan = replace(case.plan, micro_batch=ROWS // (case.plan.dp * case.plan.num_microbatches))
    return [axis_traffic(spec_of(case), plan, rank, first_step=first, **how) for first in (True, False)]


def check(pool, case: Case) -> None:
    for rank, found in enumerate(pool[: case.world].run(logged, case)):
        assert found == predicted(case, rank, dtype_bytes=8), f"rank {rank}"


@pytest.mark.parametrize("case", IN_CI, ids=str)
def test_bytes_by_axis_are_those_that_were_predicted(eight, case):
    check(eight, case)


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in CASES if case not in IN_CI], ids=str)
def test_of_any_plan(eight, case):
    check(eight, case)
