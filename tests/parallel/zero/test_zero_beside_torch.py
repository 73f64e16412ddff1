"""torch's ZeroRedundancyOptimizer under DDP, and our stage 1: the same weights, another cut.

Torch gives whole parameters to ranks, as evenly as their sizes allow; we cut one vector into equal shards. So torch's
takes optimizers that are not elementwise, and its ranks may hold unequal amounts.
"""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from helpers.observe.comms import record_comms
from helpers.observe.equality import assert_equal
from helpers.parallel.zero import Zero1
from helpers.workloads import MLP

BATCH, STEPS = 12, 10


def build():
    torch.manual_seed(0)
    return MLP([8, 40, 3, 5]).double()  # the first matrix is more than half of all


def make(kind, group):
    model = build()
    options = dict(lr=1e-3, weight_decay=0.1)
    if kind == "ours":
        return model, Zero1(model.parameters(), torch.optim.AdamW, group, **options)
    from torch.distributed.optim import ZeroRedundancyOptimizer  # warns about torch.jit while it is imported

    wrapped = nn.parallel.DistributedDataParallel(model, process_group=group)
    return wrapped, ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, process_group=group, **options)


def train(kind):
    rank, size = dist.get_rank(), dist.get_world_size()
    model, optimizer = make(kind, dist.group.WORLD)
    for step in range(STEPS):
        torch.manual_seed(step)
        share = slice(rank * BATCH // size, (rank + 1) * BATCH // size)
        x, y = torch.randn(BATCH, 8).double()[share], torch.randn(BATCH, 5).double()[share]
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        with record_comms() as recorder:
            optimizer.step()
    inner = optimizer.optimizer if kind == "ours" else optimizer.optim
    held = sum(v.nbytes for state in inner.state.values() for v in state.values() if v.dim())
    weights = {name.removeprefix("module."): p.detach().clone() for name, p in model.named_parameters()}
    return weights, held, recorder.log.ops()


def test_same_weights_after_ten_steps(world):
    expected = world.run(train, "torch's")
    assert_equal(expected[0][0], [weights for weights, *_ in world.run(train, "ours")])


def test_ours_holds_even_shares_and_torchs_what_whole_parameters_allow(ranks):
    """503 parameters, of which one matrix has 320: torch's rank with it holds more than half of the state."""
    torchs, ours = ([held for _, held, _ in ranks[:2].run(train, kind)] for kind in ("torch's", "ours"))
    assert sum(torchs) == sum(ours) == 16 * sum(p.numel() for p in build().parameters())
    assert max(ours) - min(ours) <= 16 and max(torchs) > 0.6 * sum(torchs)


@pytest.mark.parametrize("kind, ops", [("torch's", ("broadcast",)), ("ours", ("reduce_scatter", "all_gather"))])
def test_what_a_step_sends(ranks, kind, ops):
    """Torch's: DDP all-reduced gradients in backward, then each owner broadcasts its parameters. Ours: see stage1."""
    assert all(found == ops for *_, found in ranks[:2].run(train, kind))
