"""SyncBatchNorm on N ranks equals BatchNorm in one process: forward, backward and running statistics."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from helpers.chapters.ddp import AveragedGradients
from helpers.devices import computing_device
from helpers.observe.equality import assert_equal
from helpers.observe.training import Training, beside_one_process
from helpers.parallel.ddp import DistributedDataParallel
from helpers.parallel.ddp.sync_batch_norm import SyncBatchNorm

ROWS = {"even": (3, 3, 3, 3), "uneven": (2, 4, 1, 5), "one empty": (2, 0, 3, 1)}


def model_of(dims, **options):
    torch.manual_seed(0)
    norm = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}[max(dims, 1)](4, **options)
    if options.get("affine", True):
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
    return nn.Sequential(norm, nn.Tanh()).double()


def batch(dims, rows, dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(rows, 4, *[3] * dims, generator=generator, dtype=dtype) * 3 + 5


def record(model, x, share, total):
    """Outputs, gradients of input and weights (of a loss over all ranks), running statistics, after two steps."""
    for _ in range(2):
        model.zero_grad()
        mine = x[share].clone().requires_grad_()
        output = model(mine)
        (output.square() * torch.arange(output.shape[1]).view(1, -1, *[1] * (x.dim() - 2))).sum().backward()
    return {
        "output": output.detach(),
        "input.grad": mine.grad,
        **{f"{n}.grad": p.grad for n, p in model.named_parameters()},
        **dict(model.named_buffers()),
        "eval": model.eval()(x).detach(),
    }


def on_rank(dims, rows, options):
    rank, start = dist.get_rank(), sum(rows[: dist.get_rank()])
    model = SyncBatchNorm.convert(model_of(dims, **options))
    found = record(model, batch(dims, sum(rows)), slice(start, start + rows[rank]), sum(rows))
    for name, value in found.items():
        if name.startswith("0.") and name.endswith(".grad"):
            dist.all_reduce(value)
    return found


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
@pytest.mark.parametrize(
    ("dims", "options"), [(0, {}), (1, {"momentum": None}), (2, {}), (2, {"affine": False}), (3, {"eps": 0.1})], ids=str
)
def test_equals_one_process(ranks, dims, options, rows, world_size):
    rows = rows[:world_size]
    expected = record(model_of(dims, **options), batch(dims, sum(rows)), slice(None), sum(rows))
    results = ranks[:world_size].run(on_rank, dims, rows, options)
    for name in ("output", "input.grad"):
        torch.testing.assert_close(torch.cat([r.pop(name) for r in results]), expected.pop(name), rtol=1e-9, atol=1e-9)
    assert_equal(expected, results)


def test_without_running_statistics_eval_uses_the_batch(ranks):
    def evaluate():
        norm = SyncBatchNorm(4, track_running_stats=False).to(computing_device(), torch.float64).eval()
        return norm(batch(0, 6)[dist.get_rank() :: 2])

    expected = nn.BatchNorm1d(4, track_running_stats=False).double().eval()(batch(0, 6))
    for rank, found in enumerate(ranks[:2].run(evaluate)):
        torch.testing.assert_close(found, expected[rank::2])


def test_float32_with_a_large_mean_keeps_its_variance(ranks):
    def normalise():
        return SyncBatchNorm(4).to(computing_device())(batch(2, 8, torch.float32)[dist.get_rank() :: 2] + 1e4).detach()

    expected = nn.BatchNorm2d(4)(batch(2, 8, torch.float32) + 1e4).detach()
    for rank, found in enumerate(ranks[:2].run(normalise)):
        torch.testing.assert_close(found, expected[rank::2], rtol=1e-3, atol=1e-3)


def test_trains_under_ddp_as_one_process(ranks):
    training = Training(
        model=lambda: nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2)).double(),
        batch=lambda _: (batch(0, 12),) * 2,
        loss=lambda output, _: output.square().mean(),
        optimizer=torch.optim.SGD,
        options=dict(lr=0.1, momentum=0.9),
        steps=4,
        # Without gradients: that of the bias before the norm is zero in theory.
        state=lambda model: {name: tensor.clone() for name, tensor in model.state_dict().items()},
    )
    wrap = lambda model: DistributedDataParallel(SyncBatchNorm.convert(model))  # noqa: E731
    for world_size in (2, 3, 4):
        beside_one_process(ranks[:world_size], training.under(AveragedGradients, wrap=wrap))


def test_bad_input_gets_a_sentence(ranks):
    def mistakes():
        with pytest.raises(ValueError, match=r"shape \(2, 3\): expected \(batch, 4, ...\)"):
            SyncBatchNorm(4)(torch.zeros(2, 3))
        with pytest.raises(ValueError, match="one value a channel"):
            SyncBatchNorm(4)(torch.zeros(1, 4))

    ranks[:1].run(mistakes)
