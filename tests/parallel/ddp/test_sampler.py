"""Index by index equal to torch's DistributedSampler."""

import itertools

import pytest
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler as TorchSampler

from helpers.parallel.ddp.data import DistributedSampler

CASES = [
    (length, num_replicas, shuffle, drop_last)
    for length, num_replicas, shuffle, drop_last in itertools.product(
        [1, 2, 7, 8, 100], [1, 2, 3, 8], *[[True, False]] * 2
    )
    if not (drop_last and length < num_replicas)  # torch's asks for more samples than there are
]


@pytest.mark.parametrize(("length", "num_replicas", "shuffle", "drop_last"), CASES)
def test_equals_torch_index_by_index(length, num_replicas, shuffle, drop_last):
    for rank in range(num_replicas):
        options = dict(num_replicas=num_replicas, rank=rank, shuffle=shuffle, drop_last=drop_last, seed=3)
        ours, theirs = DistributedSampler(range(length), **options), TorchSampler(range(length), **options)
        for epoch in range(3):
            ours.set_epoch(epoch)
            theirs.set_epoch(epoch)
            assert list(ours) == list(theirs)
            assert len(ours) == len(theirs)


def test_shares_cover_the_set_once():
    shares = [list(DistributedSampler(range(12), 4, rank)) for rank in range(4)]
    assert sorted(sum(shares, [])) == list(range(12))


def test_without_set_epoch_the_order_repeats():
    sampler = DistributedSampler(range(50), 2, 0)
    first = list(sampler)
    assert list(sampler) == first
    sampler.set_epoch(1)
    assert list(sampler) != first


def test_in_a_data_loader():
    loader = DataLoader(range(10), batch_size=2, sampler=DistributedSampler(range(10), 2, 1, shuffle=False))
    assert [batch.tolist() for batch in loader] == [[1, 3], [5, 7], [9]]


def test_rank_and_size_come_from_the_group(ranks):
    def share():
        return list(DistributedSampler(range(6), shuffle=False))

    assert ranks[:3].run(share) == [[0, 3], [1, 4], [2, 5]]


def test_bad_input_gets_a_sentence():
    with pytest.raises(ValueError, match="rank 3 of 3: give a rank from 0 to 2"):
        DistributedSampler(range(6), 3, 3)
    with pytest.raises(ValueError, match="empty data set"):
        DistributedSampler([], 1, 0)
