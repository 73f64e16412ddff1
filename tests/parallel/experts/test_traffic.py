"""Ranks send the messages and bytes that predict/traffic/expert_messages.py says, also where experts get no token."""

import pytest
import torch
import torch.distributed as dist

from helpers.observe.comms import record_comms
from helpers.parallel.experts import count_choices, expert_parallel, route
from helpers.predict.traffic.expert_messages import crossings, expert_parallel_traffic, rows_to_others

HIDDEN, EXPERTS, TOP_K = 8, 12, 3


def choose(rank):
    """The experts (T, k) and weights of a rank's tokens: each rank has another number of them, and rank 0's all agree.

    One choice of each rank goes nowhere.
    """
    generator = torch.Generator().manual_seed(rank)
    logits = torch.randn(5 + 2 * rank, EXPERTS, generator=generator)
    if rank == 0:
        logits[:] = logits[0]
    experts, weights, _ = route(logits, TOP_K)
    experts[0, 1] = -1
    return experts, weights


def recorded():
    experts, weights = choose(dist.get_rank())
    tokens = torch.randn(len(experts), HIDDEN, requires_grad=True)
    with record_comms() as recorder:
        expert_parallel(tokens, experts, weights, lambda rows, counts: rows * 2, EXPERTS).sum().backward()
    return [(event.op, event.payload_bytes, event.shape) for event in recorder.log.events]


def test_every_message_is_predicted(world):
    rows = [count_choices(choose(rank)[0], EXPERTS).tolist() for rank in range(len(world))]
    for rank, found in enumerate(world.run(recorded)):
        predicted = expert_parallel_traffic(rows, rank=rank, hidden=HIDDEN, dtype_bytes=4)
        assert found == [(event.op, event.payload_bytes, event.shape) for event in predicted.events]


def test_rows_to_others_are_those_outside_the_rank():
    rows = [[1, 2, 3, 4], [5, 6, 7, 8]]
    assert [rows_to_others(rows, rank) for rank in (0, 1)] == [3 + 4, 5 + 6]


def test_a_token_crosses_once_to_each_node_if_its_copies_are_made_there():
    """Node 0 has experts 0 and 1, node 1 has 2 and 3, node 2 has 4 and 5; the tokens are on node 0."""
    chosen = [[0, 2, 3], [4, 5, 2], [-1, 1, 4]]
    assert crossings(chosen, node=0, experts_per_node=2) == 2 + 3 + 1
    assert crossings(chosen, node=0, experts_per_node=2, deduplicated=True) == 1 + 2 + 1


def test_counts_that_do_not_fit_are_refused_in_a_sentence():
    with pytest.raises(ValueError, match="counts of 3, 3 experts from 2 ranks"):
        expert_parallel_traffic([[1, 2, 3], [1, 2, 3]], rank=0, hidden=4)
