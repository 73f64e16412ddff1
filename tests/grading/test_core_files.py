"""The core files of the chapters, each copied alone into an answer, run there and pass the checks of the labs.

A chapter shows such a file whole, so a learner may copy it as it is. The tests of DDP and of recomputation do the same
for their own files.
"""

from __future__ import annotations

import inspect
from types import ModuleType

import pytest

from helpers.chapters import four_verbs
from helpers.collectives import ring_all_reduce
from helpers.parallel.amp import mixed_precision
from helpers.parallel.tensor_parallel import transformer_block
from tests.grading.submissions import Submission
from tests.standalone import plain_source

DATA_PARALLEL = """
def train_step(model, optimizer, x, y, num_devices):
    optimizer.zero_grad()
    outputs = data_parallel(model, x, ["cpu"] * num_devices)
    loss = ((outputs - y) ** 2).sum() / len(x)
    loss.backward()
    optimizer.step()
    return loss
"""
SCALER = """
class LossScaler:
    def __init__(self, scale, growth_interval):
        self.scaler = MiniGradScaler(scale, growth_interval)

    @property
    def scale(self):
        return self.scaler.factor

    def step(self, optimizer, parameters):
        optimizer.param_groups = [{"params": parameters}]  # as any optimizer of torch has them
        self.scaler.step(optimizer)
        self.scaler.update()
"""
ORDER = """
from contextlib import nullcontext

def train_step(model, optimizer, scaler, micro_batches, max_norm):
    amp_step(model, nn.functional.mse_loss, optimizer, scaler, micro_batches, max_norm, autocast=nullcontext)
"""
OVERFLOW = """
def step_together(optimizer, parameters, scale):
    optimizer.param_groups = [{"params": parameters}]
    scaler = MiniGradScaler(scale, group=dist.group.WORLD)
    scaler.step(optimizer)
    scaler.update()
    return scaler.factor
"""
OPERATOR_F = """
def identity_all_reduce(x):
    return CopyToTensorParallelRegion.apply(x, None)
"""
OPERATOR_G = """
def all_reduce_identity(x):
    return ReduceFromTensorParallelRegion.apply(x, None)
"""
RING = "\nall_reduce = ring_all_reduce\n"


def core(task: str, module: ModuleType, adapter: str) -> Submission:
    """The file of `module`, and below it what the lab asks for, made of what the file has."""
    source = plain_source(module)
    lab = {"01": "01_collectives", "02": "02_data_parallel", "04": "04_amp", "07": "07_tensor_parallel"}[task[:2]]
    return Submission(lab=lab, name="core", task=task, write=lambda: source + adapter, alone=True)


CASES = [
    core("01.all_reduce", inspect.getmodule(ring_all_reduce), RING),
    core("02.step", four_verbs, DATA_PARALLEL),
    core("04.scaler", mixed_precision, SCALER),
    core("04.order", mixed_precision, ORDER),
    core("04.overflow", mixed_precision, OVERFLOW),
    core("07.identity_all_reduce", transformer_block, OPERATOR_F),
    core("07.all_reduce_identity", transformer_block, OPERATOR_G),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.task)
def test_a_core_file_alone_passes_the_check_of_the_lab(case, passing):
    verdict = passing(case)
    assert verdict.passed, verdict.text()
