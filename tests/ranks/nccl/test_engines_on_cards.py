"""torch's own engines on practice cards: the CPU's numbers to the bit, and by NCCL's rules not a word."""

from __future__ import annotations

import tempfile

import pytest
import torch
import torch.distributed as dist
from torch.distributed import checkpoint
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from helpers.devices import computing_device
from tests.on_cards import OnCards
from tests.ranks.wire.test_torch import CASES, model, train


def saved_and_loaded(group):
    """torch.distributed.checkpoint of an FSDP2 model."""
    nets = [fully_shard(model(), mesh=init_device_mesh(computing_device().type, (2,))) for _ in range(2)]
    train(nets[0], torch.optim.SGD(nets[0].parameters(), lr=0.1))
    with tempfile.TemporaryDirectory() as folder:
        places = [folder]
        dist.broadcast_object_list(places, 0)
        checkpoint.save(nets[0].state_dict(), checkpoint_id=places[0])
        state = nets[1].state_dict()
        checkpoint.load(state, checkpoint_id=places[0])
        dist.barrier()
    return [tensor.full_tensor() + 0 for tensor in state.values()]


def on_world(case):
    return [tensor.detach() for tensor in case(dist.group.WORLD)]


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("case", [*CASES, saved_and_loaded], ids=lambda case: case.__name__)
def test_an_engine_on_cards_equals_the_cpu_and_passes_by_nccls_rules(ranks, cards, case, capsys):
    found, expected = OnCards.run(cards, on_world, case), ranks[:2].run(on_world, case)
    for mine, right in zip(found, expected, strict=True):
        assert len(mine) == len(right) > 0 and all(map(torch.equal, mine, right))
        assert {type(one) for one in mine} == {torch.Tensor}  # none is still on its way
    assert "NCCL" not in capsys.readouterr().out
