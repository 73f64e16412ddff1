"""Torch's FSDP2 trains like one process, as our Zero3 does, whichever way it reshards; both round alike."""

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

from helpers.devices import computing_device
from helpers.observe.comms import record_comms
from helpers.observe.equality import assert_equal
from helpers.observe.training import DataParallelRanks, Training, beside_one_process
from helpers.workloads import MLP
from tests.parallel.zero.zero3_rank import Zero3Rank

SIZES = [8, 16, 12, 4]  # FSDP2 cuts along dimension 0


def batch(step):
    generator = torch.Generator().manual_seed(step)
    return [torch.randn(16, width, generator=generator, dtype=torch.float64) for width in (8, 4)]


TRAINING = Training(
    model=lambda: MLP(SIZES).double(),
    batch=batch,
    loss=lambda output, target: (output - target).square().mean(),
    options=dict(lr=1e-2, eps=1e-3),
    steps=5,
    max_norm=0.1,
    state=nn.Module.state_dict,
)
IN_32_BITS = replace(
    TRAINING, model=lambda: MLP(SIZES), batch=lambda step: [each.float() for each in batch(step)], max_norm=None
)


class Torchs(DataParallelRanks):
    def __init__(self, model, training, **options):
        super().__init__(torch_fsdp(model, **options), training)

    def clip(self, max_norm):
        return super().clip(max_norm).full_tensor()

    def state(self):
        return {name: tensor.full_tensor().clone() for name, tensor in self.model.state_dict().items()}


def torch_fsdp(model, mesh=None, **options):
    names = ("shard",) if mesh is None else ("replicate", "shard")
    mesh = init_device_mesh(computing_device().type, mesh or (dist.get_world_size(),), mesh_dim_names=names)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


@pytest.mark.parametrize(
    "options",
    [{}, dict(mesh=(2, 2)), dict(offload_policy=CPUOffloadPolicy(pin_memory=False), reshard_after_forward=False)],
    ids=["shards", "hybrid", "offload, kept"],
)
def test_it_equals_one_process_as_ours_does(ranks, options):
    """Ours is held to one process here and in test_zero3.py. Hybrid: shards over two ranks, and copies over two."""
    training = replace(TRAINING, max_norm=None) if options else TRAINING  # torch clips one kind of mesh on one device
    beside_one_process(ranks, training.under(Torchs, **options))
    beside_one_process(ranks, TRAINING.under(Zero3Rank))


@pytest.mark.parametrize("keep", [True, False])
def test_reshard_after_forward_is_keep_parameters(ranks, keep):
    """reshard_after_forward=True is ZeRO-3; False keeps the weights until backward, so it holds what stage 2 holds."""

    def gathers(training):
        model = training.build().model
        with record_comms() as recorder:
            model(torch.ones(4, SIZES[0], dtype=torch.float64)).sum().backward()
        return sum(event.op == "all_gather" for event in recorder.log.events)

    theirs, ours = (
        TRAINING.under(Torchs, reshard_after_forward=not keep),
        TRAINING.under(Zero3Rank, keep_parameters=keep),
    )
    assert ranks[:2].run(gathers, theirs) == ranks[:2].run(gathers, ours) == [3 if keep else 6] * 2


def test_mixed_precision_rounds_as_fsdp2_does(ranks):
    dtypes = dict(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    theirs = ranks[:2].run(IN_32_BITS.under(Torchs, mp_policy=MixedPrecisionPolicy(**dtypes)).run)
    assert_equal(theirs[0], ranks[:2].run(IN_32_BITS.under(Zero3Rank, **dtypes).run), rtol=1e-4)
    with pytest.raises(AssertionError):
        assert_equal(theirs[0], ranks[:2].run(IN_32_BITS.under(Zero3Rank).run), rtol=1e-4)


def test_bf16_gathers_and_an_fp32_reduction_send_as_many_bytes_as_an_fp32_all_reduce(ranks):
    """2 + 2 + 4 bytes per parameter. With one dtype for all it is 1.5 times what data parallelism sends."""

    def sent_per_parameter(**dtypes):
        policy = MixedPrecisionPolicy(**dtypes)
        model = torch_fsdp(MLP(SIZES), mp_policy=policy)
        with record_comms() as recorder:
            model(torch.ones(4, SIZES[0])).float().sum().backward()
        count, size = sum(p.numel() for p in model.parameters()), dist.get_world_size()
        # The payload of an all-gather is a shard, and that of a reduce-scatter the whole.
        events = [(event.op, event.payload_bytes) for event in recorder.log.events]
        return [sum(n * (size if op == "all_gather" else 1) for op, n in events if op == name) / count
                for name in ("all_gather", "reduce_scatter")]  # fmt: skip

    usual = {"param_dtype": torch.bfloat16, "reduce_dtype": torch.float32}
    assert ranks[:2].run(sent_per_parameter, **usual) == [[2 + 2, 4]] * 2
    assert ranks[:2].run(sent_per_parameter) == [[4 + 4, 4]] * 2  # 12 bytes: 1.5 times the 8 of an fp32 all-reduce
