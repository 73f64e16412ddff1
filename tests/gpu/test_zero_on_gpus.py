"""The stages of ZeRO over NCCL, and a checkpoint from one to the other. With one GPU: a world of one rank."""

from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn

from helpers.compose import Plan, Trainer
from helpers.observe.equality import assert_equal
from helpers.observe.training import DataParallelRanks, Training, beside_one_process
from helpers.parallel.memory import PinnedDevices
from helpers.parallel.zero import Zero1, Zero2, Zero3
from helpers.workloads import MLP
from tests.gpu.device import KIND, here

OPTIONS = dict(lr=1e-3, weight_decay=0.1, fused=True)
WAYS = {
    "stage 1": lambda model, *how, **options: Zero1(model.named_parameters(), *how, bucket_bytes=2000, **options),
    "stage 1, all_reduce": lambda model, *how, **options: Zero1(
        model.named_parameters(), *how, reduce="all_reduce", **options
    ),
    "stage 2": partial(Zero2, bucket_bytes=2000),
    "stage 3": Zero3,
    "stage 3, kept": partial(Zero3, keep_parameters=True),
    "stage 3, offloaded": lambda model: Zero3(model, offload=PinnedDevices(here())),
}


def build():
    return MLP([8, 13, 9, 5]).double().to(here())


def batch(step):
    torch.manual_seed(step)
    return [torch.randn(4 * dist.get_world_size(), width).double().to(here()) for width in (8, 5)]


class Stage(DataParallelRanks):
    def __init__(self, model, training, way):
        if "3" in way:
            super().__init__(WAYS[way](model), training)
        else:
            optimizer = WAYS[way](model, training.optimizer, **training.options)
            super().__init__(model, training, optimizer=optimizer)

    def state(self):
        return self.model.full_state() if isinstance(self.model, Zero3) else super().state()


TRAINING = Training(
    model=build, batch=batch, loss=nn.functional.mse_loss, options=OPTIONS, steps=10, state=nn.Module.state_dict
)


@pytest.mark.parametrize("way", WAYS)
def test_ten_steps_equal_one_process(on_nccl, way):
    beside_one_process(on_nccl, TRAINING.under(Stage, way=way), on_nccl.run(TRAINING.run)[0])


def train_half(stage, folder):
    """Five steps with a Trainer: the first five with stage 1, which saves, the others with stage 2, which loads."""
    plan = Plan(dp=dist.get_world_size(), zero=stage)
    how = dict(loss=nn.functional.mse_loss, optimizer=torch.optim.AdamW, **OPTIONS)
    torch.manual_seed(0)
    trainer = Trainer(build(), plan, **how) if stage == 1 else Trainer.load(folder, build(), plan, **how)
    for step in range(trainer.steps, trainer.steps + 5):
        trainer.step(*batch(step))
    if stage == 1:
        trainer.save(folder)
    return trainer.full_state()


def test_a_checkpoint_goes_on_in_another_stage(on_nccl, tmp_path):
    folder = str(tmp_path / "step_5")
    on_nccl.run(train_half, 1, folder)
    expected = on_nccl.run(TRAINING.run)[0]
    del expected["losses"]
    assert_equal(expected, on_nccl.run(train_half, 2, folder))


def test_a_model_built_on_the_meta_device_trains_on_the_gpu(on_nccl):
    def build():
        model = Zero3.build(lambda: MLP([8, 64, 64, 5]))
        model(torch.ones(2, 8, device=here())).sum().backward()
        model.clip_grad_norm_(1.0)
        return {str(piece.device.type) for piece in model.parameters()}

    assert on_nccl.run(build) == [{KIND}] * len(on_nccl)
