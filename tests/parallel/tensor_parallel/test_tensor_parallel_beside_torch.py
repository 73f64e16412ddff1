"""The same GPT through DTensor: parallelize_module, SequenceParallel and loss_parallel, beside ours."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

from helpers.devices import computing_device
from helpers.observe.comms import record_comms
from helpers.observe.equality import assert_equal
from helpers.parallel.tensor_parallel import shard_tensor_parallel, vocab_parallel_cross_entropy
from helpers.workloads import GPT, GPTConfig, token_loss

STEPS = 3
ZERO_IN_THEORY = {"*key.bias": 1e-9}
COLUMNS = ("attention.query", "attention.key", "attention.value", "feed_forward.up")


def build():
    torch.manual_seed(0)  # untied: parallelize_module would part a tied matrix in two
    return GPT(GPTConfig.tiny(vocab_size=48, context=12, hidden=24, num_heads=12, tied=False)).double()


def batches():
    tokens = torch.randint(0, 48, (STEPS, 4, 13), generator=torch.Generator().manual_seed(3))
    return [(each[:, :-1], each[:, 1:]) for each in tokens]


def plain_plan():
    return {
        "token_embedding": RowwiseParallel(input_layouts=Replicate()),
        **{f"blocks.*.{name}": ColwiseParallel() for name in COLUMNS},
        "blocks.*.attention.projection": RowwiseParallel(),
        "blocks.*.feed_forward.down": RowwiseParallel(),
        "head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),
    }


def sequence_plan():
    """In it activations between the parts are DTensors, cut along the tokens; ours are plain tensors of that shape."""
    whole = dict(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
    rows = dict(output_layouts=Shard(1), use_local_output=False)
    return {
        "token_embedding": RowwiseParallel(input_layouts=Replicate(), **rows),
        "position_embedding": RowwiseParallel(
            input_layouts=Replicate(), output_layouts=Shard(0), use_local_output=False
        ),
        **{f"blocks.*.{name}": SequenceParallel() for name in ("attention_norm", "feed_forward_norm")},
        **{f"blocks.*.{name}": PrepareModuleInput(**whole) for name in ("attention", "feed_forward")},
        **{f"blocks.*.{name}": ColwiseParallel() for name in COLUMNS},
        "blocks.*.attention.projection": RowwiseParallel(**rows),
        "blocks.*.feed_forward.down": RowwiseParallel(**rows),
        "final_norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False),
    }


def train(model, step):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-8, foreach=False)  # foreach refuses mixed kinds
    losses = {}
    for index, (tokens, targets) in enumerate(batches()):
        optimizer.zero_grad()
        losses[f"{index} loss"] = step(model, tokens, targets)
        optimizer.step()
    return losses


def one_step(model, tokens, targets):
    loss = token_loss(model(tokens), targets)
    loss.backward()
    return loss.detach()


def one_process():
    model = build()
    return train(model, one_step) | model.state_dict()


def our_step(model, tokens, targets):
    loss = vocab_parallel_cross_entropy(model(tokens), targets)
    loss.backward()
    return loss.detach()


def their_step(model, tokens, targets):
    with loss_parallel():
        loss = token_loss(model(tokens), targets)
        loss.backward()
    return loss.detach().full_tensor()


def theirs(sequence_parallel):
    mesh = init_device_mesh(computing_device().type, (dist.get_world_size(),))
    model = parallelize_module(build(), mesh, sequence_plan() if sequence_parallel else plain_plan())
    losses = train(model, their_step)
    return losses | {n: t.full_tensor() if isinstance(t, DTensor) else t for n, t in model.state_dict().items()}


@pytest.mark.parametrize(("num_ranks", "sequence_parallel"), [(2, True), (4, False)])
def test_it_equals_one_process_as_ours_does(ranks, num_ranks, sequence_parallel):
    """Ours is held to one process in test_tensor_parallel.py."""
    assert_equal(one_process(), ranks[:num_ranks].run(theirs, sequence_parallel), atol=ZERO_IN_THEORY)


def test_the_messages_beside_each_other(ranks):
    """Each of its layers all-reduces its own input's gradient; ours do it once for query, key and value."""

    def messages(which):
        if which == "ours":
            model, step = shard_tensor_parallel(build()), our_step
        else:
            mesh = init_device_mesh(computing_device().type, (2,))
            model, step = parallelize_module(build(), mesh, plain_plan()), their_step
        tokens, targets = batches()[0]
        with record_comms() as recorder:
            step(model, tokens, targets)
        big = 4 * 12 * 24 * 8  # bytes of (B, T, h)
        return sum(event.payload_bytes == big for event in recorder.log.events if event.op == "all_reduce")

    num_layers = 2
    assert ranks[:2].run(messages, "ours") == [4 * num_layers + 2] * 2
    assert ranks[:2].run(messages, "DTensor") == [6 * num_layers + 2] * 2
