"""Outputs and gradients of split attention equal those of one process, in each way, order, length and grouping."""

import runpy
from dataclasses import dataclass

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

from helpers.observe.equality import assert_equal
from helpers.parallel.context_parallel import (
    METHODS,
    document_starts,
    join_sequence,
    ring,
    split_sequence,
    token_indices,
)
from helpers.ranks import RankError
from tests.standalone import standalone


@dataclass(frozen=True)
class Case:
    """One attention. documents: the length of each document in the two sequences, None for one document each."""

    num_tokens: int = 16
    num_heads: int = 12
    num_kv_heads: int = 12
    zigzag: bool = True
    documents: tuple | None = None
    seed: int = 0
    dtype: torch.dtype = torch.float64

    def tensors(self):
        """Query, key, value and the gradient of the output, of the full sequences: (2, heads, tokens, 4).

        Their values are numbers of `dtype`.
        """
        generator = torch.Generator().manual_seed(self.seed)
        heads = (self.num_heads, self.num_kv_heads, self.num_kv_heads, self.num_heads)
        drawn = [torch.randn(2, h, self.num_tokens, 4, generator=generator, dtype=torch.float64) for h in heads]
        return [each.to(self.dtype) for each in drawn]

    def starts(self):
        if self.documents is None:
            return None
        numbers = [torch.arange(len(row)).repeat_interleave(torch.tensor(row)) for row in self.documents]
        return document_starts(torch.stack(numbers))


PACKED = ((5, 1, 7), (2, 11))  # boundaries inside chunks and on ranks that hold several documents
CASES = [
    Case(zigzag=zigzag, num_tokens=num_tokens, num_kv_heads=num_kv_heads, documents=documents)
    for zigzag in (False, True)
    for num_tokens, num_kv_heads, documents in [
        (24, 12, None),
        (16, 1, None),  # grouped queries
        (13, 12, None),  # uneven for 2, 3 and 4 ranks
        (13, 1, PACKED),
        (4, 12, None),  # for 4 ranks one token each, so most of the 8 chunks are empty
        (24, 12, ((3, 3, 3, 3, 3, 3, 3, 3), (12, 12))),  # many blocks in which no query sees a key
    ]
]


def in_one_process(case):
    """Without the code under test: attention with the full mask, which autograd differentiates."""
    query, key, value, grad_out = (each.double() for each in case.tensors())
    inputs = [each.requires_grad_() for each in (query, key, value)]
    index, starts = torch.arange(case.num_tokens), case.starts()
    mask = (index <= index[:, None]).expand(2, 1, -1, -1)
    if starts is not None:
        mask = mask & (starts[:, None, :, None] == starts[:, None, None, :])
    out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=True)
    out.backward(grad_out)
    return dict(zip(("out", "query", "key", "value"), [out.detach(), *(each.grad for each in inputs)], strict=True))


def on_ranks(method, cases):
    """On a rank: the shards of the output and of the three gradients, joined again, for each case."""
    return [joined_attention(METHODS[method], case, None) for case in cases]


def joined_attention(attention, case, group):
    rank, num_ranks = dist.get_rank(group), dist.get_world_size(group)
    indices = token_indices(case.num_tokens, num_ranks, case.zigzag)
    *inputs, grad_out = (split_sequence(each, indices, rank, dim=2) for each in case.tensors())
    inputs = [each.requires_grad_() for each in inputs]
    out = attention(*inputs, indices, group, case.starts())
    out.backward(grad_out)
    shards = [out.detach(), *(each.grad for each in inputs)]
    of_ranks = [None] * num_ranks
    dist.all_gather_object(of_ranks, shards, group=group)
    full = [join_sequence(of_one, indices, dim=2) for of_one in zip(*of_ranks, strict=True)]
    return dict(zip(("out", "query", "key", "value"), full, strict=True))


@pytest.mark.parametrize("method", METHODS)
def test_every_way_equals_one_process(world, method):
    for case, found in zip(CASES, zip(*world.run(on_ranks, method, CASES), strict=True), strict=True):
        try:
            assert_equal(in_one_process(case), found)
        except AssertionError as error:
            raise AssertionError(f"{case}: {error}") from None


@pytest.mark.parametrize("num_kv_heads", [2, 4])
@pytest.mark.parametrize("method", METHODS)
def test_key_and_value_heads_may_be_as_many_as_ranks_or_fewer(ranks, method, num_kv_heads):
    case = Case(num_kv_heads=num_kv_heads, num_heads=8)
    assert_equal(in_one_process(case), [found for (found,) in ranks.run(on_ranks, method, [case])])


@pytest.mark.parametrize("method", METHODS)
def test_16_bits_lose_no_more_than_the_rounding_of_what_is_sent(ranks, method):
    """The outputs of the blocks are merged in 32 bits; gradients of keys and values are rounded at each hop."""
    case = Case(num_tokens=96, dtype=torch.bfloat16)
    expected = in_one_process(case)
    for (found,) in ranks.run(on_ranks, method, [case]):
        for name, tensor in found.items():
            error = (tensor.double() - expected[name]).norm() / expected[name].norm()
            assert tensor.dtype == torch.bfloat16 and error < (0.003 if name == "out" else 0.008), (name, error)


@pytest.mark.parametrize("method", METHODS)
def test_two_groups_work_on_sequences_of_their_own(ranks, method):
    def in_pairs():
        pairs = [dist.new_group([0, 2]), dist.new_group([3, 1])]
        number = dist.get_rank() % 2
        try:
            return joined_attention(METHODS[method], Case(num_tokens=9 + number, seed=number), pairs[number])
        finally:
            for pair in pairs:
                if pair is not dist.GroupMember.NON_GROUP_MEMBER:
                    dist.destroy_process_group(pair)

    for rank, found in enumerate(ranks.run(in_pairs)):
        assert_equal(in_one_process(Case(num_tokens=9 + rank % 2, seed=rank % 2)), found)


def test_ulysses_says_which_numbers_of_heads_it_can_share(ranks):
    for heads, message in (
        (dict(num_heads=4, num_kv_heads=4), "3 ranks cannot share 4 query heads: choose a number of ranks"),
        (dict(num_heads=6, num_kv_heads=2), "cannot give 3 ranks equally many of 2 key and value heads"),
    ):
        with pytest.raises(RankError, match=message):
            ranks[:3].run(on_ranks, "all_to_all", [Case(**heads)])


def test_the_ring_has_no_limit_of_heads(ranks):
    case = Case(num_heads=2, num_kv_heads=1)
    assert_equal(in_one_process(case), [found for (found,) in ranks.run(on_ranks, "ring", [case])])


def test_the_core_file_copied_alone_equals_one_process(ranks, tmp_path):
    path, case = standalone(ring, tmp_path), CASES[3]

    def copied():
        return joined_attention(runpy.run_path(path)["ring_attention"], case, None)

    assert_equal(in_one_process(case), ranks[:3].run(copied))
