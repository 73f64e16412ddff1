"""On practice cards memory that is still in use is found, with both lines, and what waits as it should is let pass."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from helpers.ranks import RankError

HEAD = """
import torch, torch.distributed as dist
from torch import card
def ones(*shape): return torch.ones(*shape, device='card')
x, big = ones(4), ones(1000)
side, main = card.Stream(), card.current_stream()
ops = [dist.P2POp(way, one, 1 - dist.get_rank()) for way, one in ((dist.isend, x), (dist.irecv, ones(4)))]
"""
# What races: the last line of a cell touches, the line with a # uses.
RACES = {
    "work = dist.all_reduce(x, async_op=True)  #\nx.mul_(2)": "writes into memory into which a message still writes",
    "work = dist.all_reduce(x, async_op=True)  #\ny = x * 2": "reads memory into which a message still writes",
    "works = dist.batch_isend_irecv(ops)  #\nx[1:].zero_()": "a message still reads",
    "y = ones(2, 4)\nwork = dist.all_gather_into_tensor(y.view(-1), x, async_op=True)  #\nprint(y)": "reads memory",
    "work = dist.all_reduce(x, async_op=True)  #\n"
    "other = dist.broadcast(x, 0, group=dist.new_group())": "a message still",
    "y = torch.ones(4, device='card')  #\nwith card.stream(side): z = y + 1": "reads what another stream writes",
    "with side: y = torch.ones(4, device='card')  #\nz = y + 1": "nothing makes its own stream wait",
    "with card.stream(side): y = torch.ones(4, device='card')  #\n"
    "main.wait_event(card.Event())\ny.add_(1)": "writes where another stream writes",
    "side.wait_stream(main)\nwith side: y = x + 1  #\nx.zero_()": "writes over what another stream reads",
    "side.wait_stream(main)\n"
    "with side: y = big * 2  #\ndel big\nz = ones(1000)": "may be given memory that was freed while",
    "host = x.to('cpu', non_blocking=True)  #\nhost.tolist()": "touches CPU memory into which a copy",
    "host = torch.empty(4, pin_memory=True)\nhost[0].copy_(x[0], non_blocking=True)  #\nhost[0] + 1": "CPU memory",
    "host = torch.ones(4).pin_memory()\ny = host.to('card', non_blocking=True)  #\n"
    "host.zero_()": "writes into pinned memory",
    "layer = torch.nn.Linear(4, 4, device='card')\nside.wait_stream(main)\n"
    "with side: layer(x).sum().backward()  #\nlayer.weight.grad.zero_()": "writes where another stream writes",
    "host = torch.ones(4).pin_memory()\nrows = host.numpy()\ny = host.to('card', non_blocking=True)  #\n"
    "rows[:] = 2; card.synchronize()": "was written over before the host had waited",
    "layer = torch.nn.Linear(4, 4, device='card')\nside.wait_stream(main)\n"
    "with side: y = layer.weight.detach() + 0  #\nlayer(x).sum().backward()\n"
    "with torch.no_grad(): layer.weight.zero_()": "writes over what another stream reads",
}
CLEAN = {
    "a wait": "work = dist.all_reduce(x, async_op=True)\nwork.wait()\nx.mul_(2)",
    "a later one": "works = [dist.all_reduce(one, async_op=True) for one in (x, big)]\nworks[1].wait()\nx.mul_(2)",
    "the card": "work = dist.all_reduce(x, async_op=True)\ncard.synchronize()\ny = x * 2\nwork.wait()",
    "a part": "y = ones(4, 4)\nwork = dist.broadcast(y[0], 0, async_op=True)\ny[1:].zero_()\nwork.wait()",
    "two readers": "works = dist.batch_isend_irecv(ops)\ny = x * 2\n[w.wait() for w in works]",
    "columns": "y = ones(4, 4)\nside.wait_stream(main)\nwith side: y[:, :2].zero_()\ny[:, 2:].zero_()",
    "streams": "y = ones(4)\nside.wait_stream(main)\n"
    "with card.stream(side): y.add_(1)\nmain.wait_stream(side)\nz = y + 1",
    "events": "with side:\n    y = ones(4)\n    done = side.record_event()\nz = ones(4)\ndone.wait()\ny += z",
    "the host": "with side: value = (ones(4) + 1).sum().item()\ny = ones(4)\ny.sum().item()\nwith side: z = y + value",
    "given back": "side.wait_stream(main)\nwith side: y = big * 2\nbig.record_stream(side)\n"
    "big.untyped_storage().resize_(0)\nbig.untyped_storage().resize_(4000)\nbig.zero_()",
    "lent": "side.wait_stream(main)\nwith side: y = big * 2\nbig.record_stream(side)\ndel big\nz = ones(1000)",
    "copies": "host = x.to('cpu', non_blocking=True)\nshape = host.shape, host[0], host.is_pinned()\n"
    "card.synchronize()\nassert type(host) is torch.Tensor and host.tolist()",
    "pinned": "host = torch.ones(4).pin_memory()\nfor _ in range(3):\n"
    "    y = host.to('card', non_blocking=True)\n    done = main.record_event()\n    done.synchronize()\n    host += 1",
    "numpy": "host = torch.ones(4).pin_memory()\nfor n in range(3):\n    host.numpy()[:] = n\n"
    "    y = host.to('card', non_blocking=True)\n    card.synchronize()",
    "a forward": "layer = torch.nn.Linear(4, 4, device='card')\nside.wait_stream(main)\n"
    "with side: loss = layer(x).sum()\n"
    "loss.backward()\nlayer.weight.grad.zero_()",
}


def lines_of(cell: str) -> tuple[str, str]:
    lines = [line.strip() for line in cell.splitlines()]
    return lines[-1], next(line for line in lines if line.endswith("#"))


@pytest.mark.parametrize("cell", RACES)
def test_a_race_is_told_with_both_lines(cards, cell):
    with pytest.raises(RankError) as error:
        cards.cell(HEAD + cell)
    touched, used = lines_of(cell)
    said = str(error.value)
    assert error.value.kind == "race" and RACES[cell] in said and f"`{used}`" in said
    sites = cards.run(found_sites)[0]
    assert sites == []  # a new task: what was found belongs to the one before
    cards.cell("x = big = y = z = work = works = other = host = side = None; import torch; torch.card.synchronize()")


def found_sites():
    from helpers.devices.cards import races

    return races.findings


@pytest.mark.parametrize("name", CLEAN)
def test_what_waits_passes(cards, name):
    cards.cell(HEAD + CLEAN[name])


# -- torch's own engines use streams, events and hooks of their own ----------------------------------------------------
def engine_step(kind: str):
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(3))).to("card")
    if kind == "FSDP2":
        for layer in model:
            fully_shard(layer)
        model = fully_shard(model)
    else:
        model = DistributedDataParallel(model, gradient_as_bucket_view="view" in kind)
    optimizer, side = torch.optim.AdamW(model.parameters()), torch.card.Stream()
    for _ in range(2):
        side.wait_stream(torch.card.current_stream())
        with torch.card.stream(side) if "side" in kind else torch.card.stream(None):
            loss = model(torch.ones(2, 8, device="card")).square().sum()
        torch.card.current_stream().wait_stream(side)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return dist.get_rank()


@pytest.mark.parametrize("kind", ["FSDP2", "DDP", "DDP view", "DDP side", "FSDP2 side"])
def test_engines_pass(cards, kind):
    assert cards.run(engine_step, kind) == [0, 1]
