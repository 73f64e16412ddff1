"""The parts of the ring: head-tail order, what is seen of a block, rows without keys, and the merge in any order."""

import pytest
import torch

from helpers.parallel.context_parallel import token_indices
from helpers.parallel.context_parallel.ring import attend, attend_backward, merge, visible_part


def test_head_tail_order_of_16_tokens_on_4_ranks():
    found = [each.tolist() for each in token_indices(16, 4, zigzag=True)]
    assert found == [[0, 1, 14, 15], [2, 3, 12, 13], [4, 5, 10, 11], [6, 7, 8, 9]]


def test_the_order_is_that_of_torch():
    balancers = pytest.importorskip("torch.distributed.tensor.experimental._context_parallel._load_balancer")
    expected = balancers._HeadTailLoadBalancer(24, 3, torch.device("cpu"))._generate_indices().flatten().tolist()
    assert torch.cat(token_indices(24, 3, zigzag=True)).tolist() == expected


def test_lengths_that_do_not_divide():
    assert [len(each) for each in token_indices(2_999, 4)] == [750, 750, 750, 749]
    assert [len(each) for each in token_indices(2_999, 4, zigzag=True)] == [749, 750, 750, 750]
    for zigzag in (False, True):
        assert torch.cat(token_indices(13, 4, zigzag)).sort().values.tolist() == list(range(13))


def part(queries, keys, starts=None):
    """As lists: the slices of what is seen, and the mask."""
    rows, columns, mask = visible_part(torch.tensor(queries), torch.tensor(keys), starts)
    return (rows.start, rows.stop), (columns.start, columns.stop), mask.tolist()


def test_only_what_is_seen_is_computed():
    everything = [[True] * 2] * 4
    # rank 1 of 2, in zigzag order, sees the head of rank 0; rank 0 sees rank 1 with its tail only
    assert part([2, 3, 4, 5], [0, 1, 6, 7]) == ((0, 4), (0, 2), everything)
    assert part([0, 1, 6, 7], [2, 3, 4, 5]) == ((2, 4), (0, 4), [[True] * 4] * 2)
    assert part([0, 1], [2, 3]) == ((0, 0), (0, 0), [])  # contiguous: the later rank's keys are skipped
    assert part([2, 3], [2, 3]) == ((0, 2), (0, 2), [[True, False], [True, True]])


def test_a_document_that_has_ended_is_skipped():
    starts = torch.tensor([[0, 0, 0, 0, 4, 4, 4, 4], [0, 0, 0, 3, 3, 3, 3, 3]])
    assert part([6, 7], [0, 1, 2], starts)[:2] == ((0, 0), (0, 0))
    assert part([6, 7], [0, 1, 2, 3], starts)[:2] == ((0, 2), (3, 4))  # of the second sequence


def test_a_row_without_keys_has_an_lse_of_minus_infinity_and_changes_nothing():
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 1, 1, 1, 2, 4, dtype=torch.float64)
    mask = torch.tensor([[False, False], [True, False]])
    out, lse = attend(query, key, value, mask)
    assert lse[..., 0, 0].item() == -torch.inf and torch.equal(out[..., 0, :], torch.zeros_like(out[..., 0, :]))
    full = attend(query, key, value, torch.ones(2, 2, dtype=torch.bool))
    for merged in (merge(*full, out, lse), merge(out, lse, *full)):
        assert torch.equal(merged[0][..., 0, :], full[0][..., 0, :])
        assert torch.equal(merged[1][..., 0, :], full[1][..., 0, :])
    nothing = merge(torch.zeros_like(out), torch.full_like(lse, -torch.inf), out, lse)
    assert not torch.isnan(nothing[0]).any()


def test_blocks_merge_in_any_order():
    torch.manual_seed(0)
    query, (key, value) = torch.randn(1, 1, 2, 3, 4).double(), torch.randn(2, 1, 1, 1, 9, 4).double()
    seen = torch.ones(3, 3, dtype=torch.bool)
    expected = attend(query, key, value, seen.repeat(1, 3))
    blocks = [attend(query, *each, seen) for each in zip(key.split(3, -2), value.split(3, -2), strict=True)]
    for order in ((0, 1, 2), (2, 0, 1)):
        out, lse = torch.zeros_like(query), torch.full_like(query[..., :1], -torch.inf)
        for place in order:
            out, lse = merge(out, lse, *blocks[place])
        torch.testing.assert_close((out, lse), expected, rtol=1e-12, atol=1e-14)


def test_gradients_of_a_row_without_keys_are_zero():
    query, key, value, grad_out = torch.randn(4, 1, 1, 1, 2, 4, dtype=torch.float64)
    mask = torch.zeros(2, 2, dtype=torch.bool)
    out, lse = attend(query, key, value, mask)
    delta = (grad_out * out).sum(-1, keepdim=True)
    for gradient in attend_backward(grad_out, delta, lse, query, key, value, mask):
        assert not gradient.any()
