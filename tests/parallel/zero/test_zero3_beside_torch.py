"""Our Zero3 and torch's FSDP2, side by side: equal losses and weights, whichever way torch reshards."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

from helpers.devices import computing_device
from helpers.observe.comms import record_comms
from helpers.observe.equality import assert_equal
from helpers.parallel.zero import Zero3
from helpers.workloads import MLP

STEPS, SIZES = 5, [8, 16, 12, 4]  # FSDP2 cuts along dimension 0


def plain(dtype=torch.float64):
    torch.manual_seed(0)
    return MLP(SIZES).to(dtype)


def torch_fsdp(dtype=torch.float64, mesh=None, **options):
    model = plain(dtype)
    names = ("shard",) if mesh is None else ("replicate", "shard")
    mesh = init_device_mesh(computing_device().type, mesh or (dist.get_world_size(),), mesh_dim_names=names)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def train(model, dtype=torch.float64, clip=None):
    """Losses, averaged over ranks, and norms of the gradients."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-3)
    history = {}
    for step in range(STEPS):
        torch.manual_seed(100 * step + dist.get_rank())
        optimizer.zero_grad()
        loss = model(torch.randn(4, SIZES[0], dtype=dtype)).float().square().mean()
        loss.backward()
        if clip is not None:
            ours = isinstance(model, Zero3)
            norm = model.clip_grad_norm_(clip) if ours else nn.utils.clip_grad_norm_(model.parameters(), clip)
            history[f"norm {step}"] = norm if ours else norm.full_tensor()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean, op=dist.ReduceOp.AVG)
        history[f"loss {step}"] = mean
    return history


def weights_of(model):
    if isinstance(model, Zero3):
        return model.full_state()
    return {name: tensor.full_tensor().clone() for name, tensor in model.state_dict().items()}


def ours_on_rank(dtype=torch.float64, clip=None, **options):
    model = Zero3(plain(dtype), **options)
    return train(model, dtype, clip) | weights_of(model)


def torch_on_rank(dtype=torch.float64, clip=None, **options):
    model = torch_fsdp(dtype, **options)
    return train(model, dtype, clip) | weights_of(model)


@pytest.mark.parametrize(
    "world_size", [pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow), 4]
)
def test_equal_to_fsdp2(ranks, world_size):
    theirs, ours = (ranks[:world_size].run(f, clip=0.1) for f in (torch_on_rank, ours_on_rank))
    assert_equal(theirs[0], ours)


@pytest.mark.parametrize("keep", [True, False])
def test_reshard_after_forward_is_keep_parameters(ranks, keep):
    """reshard_after_forward=True is ZeRO-3; False keeps the weights until backward, so it holds what stage 2 holds."""

    def gathers(make):
        model = make()
        with record_comms() as recorder:
            model(torch.ones(4, SIZES[0], dtype=torch.float64)).sum().backward()
        return sum(event.op == "all_gather" for event in recorder.log.events), train(model) | weights_of(model)

    def theirs():
        return gathers(lambda: torch_fsdp(reshard_after_forward=not keep))

    def ours():
        return gathers(lambda: Zero3(plain(), keep_parameters=keep))

    for (expected, right), (found, mine) in zip(ranks[:2].run(theirs), ranks[:2].run(ours), strict=True):
        assert found == expected == (3 if keep else 6)
        assert_equal(right, mine)


def test_hybrid_sharding_gives_the_same_numbers(ranks):
    """FSDP2 on a mesh of 2 x 2 shards over two ranks and copies over two; shards over all four must train alike."""
    theirs = ranks.run(torch_on_rank, mesh=(2, 2))
    assert_equal(theirs[0], theirs)
    assert_equal(theirs[0], ranks.run(ours_on_rank))


def test_mixed_precision_rounds_as_fsdp2_does(ranks):
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    theirs = ranks[:2].run(torch_on_rank, torch.float32, mp_policy=policy)
    ours = ranks[:2].run(ours_on_rank, torch.float32, param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    assert_equal(theirs[0], ours, rtol=1e-4)
    exact = ranks[:2].run(ours_on_rank, torch.float32)
    with pytest.raises(AssertionError):
        assert_equal(theirs[0], exact, rtol=1e-4)


def test_bf16_gathers_and_an_fp32_reduction_send_as_many_bytes_as_an_fp32_all_reduce(ranks):
    """2 + 2 + 4 bytes per parameter. With one dtype for all it is 1.5 times what data parallelism sends."""

    def sent_per_parameter(**dtypes):
        policy = MixedPrecisionPolicy(**dtypes)
        model = torch_fsdp(torch.float32, mp_policy=policy)
        with record_comms() as recorder:
            model(torch.ones(4, SIZES[0])).float().sum().backward()
        count, size = sum(p.numel() for p in plain().parameters()), dist.get_world_size()
        # The payload of an all-gather is a shard, and that of a reduce-scatter the whole.
        events = [(event.op, event.payload_bytes) for event in recorder.log.events]
        return [sum(n * (size if op == "all_gather" else 1) for op, n in events if op == name) / count
                for name in ("all_gather", "reduce_scatter")]  # fmt: skip

    usual = {"param_dtype": torch.bfloat16, "reduce_dtype": torch.float32}
    assert ranks[:2].run(sent_per_parameter, **usual) == [[2 + 2, 4]] * 2
    assert ranks[:2].run(sent_per_parameter) == [[4 + 4, 4]] * 2  # 12 bytes: 1.5 times the 8 of an fp32 all-reduce


def test_offload_of_torch_gives_the_same_numbers(ranks):
    theirs = ranks[:2].run(torch_on_rank, offload_policy=CPUOffloadPolicy(pin_memory=False))
    assert_equal(theirs[0], ranks[:2].run(ours_on_rank))
