"""Ranks send the messages and the bytes that predict/traffic/context_parallel.py says, in each way, also unevenly."""

import pytest
import torch
import torch.distributed as dist

from helpers.observe.comms import record_comms
from helpers.parallel.context_parallel import METHODS, split_sequence, token_indices
from helpers.predict.traffic.context_parallel import context_parallel_traffic, ulysses_bytes
from helpers.specs import ModelSpec

HEADS, HEAD_DIM, BATCH = 12, 4, 2


def model_of(num_tokens, num_kv_heads):
    return ModelSpec(
        num_layers=1, hidden=HEADS * HEAD_DIM, num_heads=HEADS, num_kv_heads=num_kv_heads, vocab=8, seq=num_tokens
    )


def forward_and_backward(method, num_tokens, num_kv_heads, zigzag):
    indices = token_indices(num_tokens, dist.get_world_size(), zigzag)
    shapes = [(BATCH, heads, num_tokens, HEAD_DIM) for heads in (HEADS, num_kv_heads, num_kv_heads)]
    shards = [split_sequence(torch.randn(shape), indices, dist.get_rank(), dim=2) for shape in shapes]
    inputs = [shard.requires_grad_() for shard in shards]
    out = METHODS[method](*inputs, indices)
    out.backward(torch.ones_like(out))


def messages(log):
    """(operation, bytes, shape) of each event; a sent message and one that arrives at the same time have no order."""
    events = [(event.op, event.payload_bytes, event.shape) for event in log.events]
    return {op: [event for event in events if event[0] == op] for op in log.ops()}


def recorded(*arguments):
    with record_comms() as recorder:
        forward_and_backward(*arguments)
    return messages(recorder.log)


@pytest.mark.parametrize("zigzag", [True, False])
@pytest.mark.parametrize("num_tokens", [24, 13])
@pytest.mark.parametrize("method", METHODS)
def test_every_message_is_predicted(world, method, num_tokens, zigzag):
    for num_kv_heads in (12, 1):
        model = model_of(num_tokens, num_kv_heads)
        for rank, found in enumerate(world.run(recorded, method, num_tokens, num_kv_heads, zigzag)):
            options = dict(cp=len(world), method=method, rank=rank, batch=BATCH, dtype_bytes=4, zigzag=zigzag)
            assert found == messages(context_parallel_traffic(model, **options))


def sent_to_others(num_tokens, zigzag):
    """Bytes that this rank sends to other ranks in all-to-alls, counted at the call, in forward and backward."""
    elements, exchange = [], dist.all_to_all_single

    def counted(output, given, output_splits, input_splits, group=None):
        elements.append(sum(input_splits) - input_splits[dist.get_rank(group)])
        return exchange(output, given, output_splits, input_splits, group=group)

    dist.all_to_all_single = counted
    try:
        forward_and_backward("all_to_all", num_tokens, 1, zigzag)
    finally:
        dist.all_to_all_single = exchange
    return [4 * sum(elements[:4]), 4 * sum(elements[4:])]


@pytest.mark.parametrize("zigzag", [True, False])
def test_what_a_rank_of_ulysses_sends_to_others_with_uneven_shards(ranks, zigzag):
    model, options = model_of(13, 1), dict(cp=4, batch=BATCH, dtype_bytes=4, zigzag=zigzag)
    for rank, found in enumerate(ranks.run(sent_to_others, 13, zigzag)):
        assert found == [ulysses_bytes(model, rank=rank, backward=each, **options) for each in (False, True)]
