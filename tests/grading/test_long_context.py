"""Lab 13's checks: their right answers are what the course's context parallelism does, and what the lab's text says."""

import pytest
import torch

from helpers.grading import task_of
from helpers.grading.long_context import blocks, sequence, traffic
from helpers.grading.tensor_cases import CaseGenerator
from helpers.parallel.context_parallel import document_starts, shifted_labels, token_indices


# -- 13.zigzag -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("num_tokens", "num_ranks"), [(1, 1), (5, 1), (2, 2), (11, 2), (16, 4), (5, 4), (29, 4), (29, 7)]
)
def test_the_zigzag_is_that_of_the_ring(num_tokens, num_ranks):
    shards, places = sequence.zigzag(num_tokens, num_ranks)
    assert shards == [indices.tolist() for indices in token_indices(num_tokens, num_ranks, zigzag=True)]
    joined = sum(shards, [])
    assert [joined[place] for place in places] == list(range(num_tokens))


# -- 13.shard --------------------------------------------------------------------------------------------------------
def drawn(key):
    return task_of(key).inputs(1, 1)[0]["cases"]


def test_what_belongs_to_a_shard_is_what_context_parallel_computes():
    for tokens, documents, index in drawn("13.shard"):
        ids, numbers = torch.tensor([tokens]), torch.tensor([documents])
        starts, labels = document_starts(numbers)[0], shifted_labels(ids, numbers)[0]
        positions = torch.arange(len(tokens)) - starts
        expected = [[each[i].item() for i in index] for each in (positions, labels, starts)]
        assert sequence.own_shard(tokens, documents, index) == (*expected, (labels != -100).sum())


def test_documents_end_inside_chunks_and_between_them_and_their_numbers_come_again():
    ends_with_chunk, comes_again = set(), set()
    for _, documents, index in drawn("13.shard"):
        borders = [i for i in range(len(documents) - 1) if documents[i] != documents[i + 1]]
        comes_again.add(len(borders) + 1 > len(set(documents)))
        ends_with_chunk |= {i in borders for i in index[:-1] if i + 1 not in index}
    assert comes_again == ends_with_chunk == {True, False}


# -- 13.ulysses_bytes ------------------------------------------------------------------------------------------------
def test_the_bytes_of_the_texts_examples():
    assert traffic.attention_bytes(8192, 32, 8, 128, 4, 2) == [31_457_280, 31_457_280, 25_165_824, 50_331_648]
    assert traffic.attention_bytes(8192, 32, 8, 128, 16, 2)[:2] == [11_796_480, 11_796_480]
    assert traffic.attention_bytes(4096, 12, 4, 64, 8, 2)[:2] == [None, None]


# -- 13.hop ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("number", [0, 1])
def test_the_hops_of_a_ring_add_up_to_the_gradients_of_one_process(number):
    world_size = 3
    case = blocks.HOP.variations.cases(1)[number]
    inputs = blocks.make_hop(CaseGenerator.of(1, case), world_size)
    is_zigzag = number == 1
    length = len(inputs[0]["calls"][0]["query"])
    order = torch.cat(token_indices(world_size * length, world_size, is_zigzag))
    # The block of rank r is what the next rank has in its first hop.
    owned = [inputs[(rank + 1) % world_size]["calls"][0]["block"] for rank in range(world_size)]
    query = torch.cat([of_rank["calls"][0]["query"] for of_rank in inputs]).requires_grad_()
    block = torch.cat(owned, dim=1).requires_grad_()
    scores = (query @ block[0].T / query.shape[1] ** 0.5).masked_fill(order > order[:, None], -torch.inf)
    grad_out = torch.cat([of_rank["calls"][0]["grad_out"] for of_rank in inputs])
    (scores.softmax(1) @ block[1]).backward(grad_out)
    of_query, of_block = torch.zeros_like(query), torch.zeros_like(block)
    for rank in range(world_size):
        own = inputs[rank]["calls"][0] | {"block": owned[rank], "mask": _mask(order, length, rank)}
        for hop, call in enumerate([own, *inputs[rank]["calls"]]):
            zeros = {name: torch.zeros_like(call[name]) for name in ("grad_query", "grad_block")}
            rows, owner = slice(rank * length, (rank + 1) * length), (rank - hop) % world_size
            parts = blocks.added_up(call | zeros)
            of_query[rows] += parts[0]
            of_block[:, owner * length : (owner + 1) * length] += parts[1]
    torch.testing.assert_close(of_query, query.grad, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(of_block, block.grad, rtol=1e-12, atol=1e-12)


def _mask(order, length, rank):
    """Which of its own keys a rank's queries see."""
    own = order[rank * length : (rank + 1) * length]
    return own <= own[:, None]
