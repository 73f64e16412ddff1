"""The data: the same seed gives the same numbers, and ranks together see what one process sees."""

import hashlib
import re

import pytest
import torch

from helpers.workloads import characters, digits, rank_generator, rank_slice, synthetic, synthetic_tokens
from helpers.workloads.data import ALPHABET, write_text


def test_digits_shapes_range_and_split():
    train, test, both = digits("train"), digits("test"), digits("all")
    assert train[0].shape == (1437, 64) and test[0].shape == (360, 64) and both[0].shape == (1797, 64)
    assert train[0].min() == 0 and train[0].max() == 1 and train[1].dtype == torch.int64
    assert torch.equal(torch.cat([train[0], test[0]]), both[0])
    assert set(test[1].tolist()) == set(range(10))
    assert digits(flat=False, dtype=torch.float64)[0].shape == (1437, 1, 8, 8)


def test_digits_refuses_another_split():
    with pytest.raises(ValueError, match='"train", "test" or "all"'):
        digits("valid")


def test_text_is_fixed_for_ever():
    text = write_text(40_000)
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "8ceca2ea8eaffea4"
    assert set(text) == set(ALPHABET) and len(text) == 40_000
    assert write_text(100) == text[:100] != write_text(100, seed=1)


def test_sums_in_the_text_are_right():
    sums = re.findall(r"(\d+) and (\d+) make (\d+)[,.]", write_text(40_000))
    assert len(sums) > 50
    assert all(int(a) + int(b) == int(c) for a, b, c in sums)


def test_no_symbol_of_the_grammar_is_left():
    words = set(write_text(40_000).replace(".", " ").replace(";", " ").split())
    assert not [word for word in words if len(word) > 2 and word.isupper()]


def test_characters_encode_decode():
    corpus = characters(2000)
    assert corpus.decode(corpus.tokens) == corpus.text
    assert torch.equal(corpus.encode(corpus.text[:50]), corpus.tokens[:50])
    assert corpus.tokens.max() < corpus.vocab_size == 68
    with pytest.raises(ValueError, match="alphabet"):
        corpus.encode("α")


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_ranks_together_see_the_global_batch(world_size):
    corpus = characters(2000)
    whole = corpus.batch(5, 8, 16)
    parts = [corpus.batch(5, 8, 16, rank=rank, world_size=world_size) for rank in range(world_size)]
    for position in (0, 1):
        assert torch.equal(torch.cat([part[position] for part in parts]), whole[position])
    assert torch.equal(whole[0][:, 1:], whole[1][:, :-1])


def test_batches_differ_by_step_and_by_seed():
    corpus = characters(2000)
    first = corpus.batch(0, 8, 16)[0]
    assert torch.equal(first, corpus.batch(0, 8, 16)[0])
    assert not torch.equal(first, corpus.batch(1, 8, 16)[0])
    assert not torch.equal(first, corpus.batch(0, 8, 16, seed=1)[0])


def test_the_longest_context_fits_and_one_more_is_refused():
    corpus = characters(20)
    assert corpus.batch(0, 2, 19)[1][0, -1] == corpus.tokens[-1]
    with pytest.raises(ValueError, match="20 characters"):
        corpus.batch(0, 2, 20)


def test_rank_slice_is_uneven_in_order_and_checked():
    batch = torch.arange(10)
    assert [len(rank_slice(batch, rank, 4)) for rank in range(4)] == [3, 3, 2, 2]
    assert torch.equal(torch.cat([rank_slice(batch, rank, 4) for rank in range(4)]), batch)
    with pytest.raises(ValueError, match="rank 4 of 4"):
        rank_slice(batch, 4, 4)


def test_rank_generators_differ():
    streams = {
        tuple(torch.rand(4, generator=rank_generator(seed, rank)).tolist()) for seed in (0, 1, 2) for rank in range(8)
    }
    assert len(streams) == 24


def test_synthetic_is_deterministic_and_learnable():
    features, labels = synthetic(500, 16, 4, seed=2)
    again = synthetic(500, 16, 4, seed=2)
    assert torch.equal(features, again[0]) and torch.equal(labels, again[1])
    assert features.shape == (500, 16) and set(labels.tolist()) == {0, 1, 2, 3}
    assert not torch.equal(features, synthetic(500, 16, 4, seed=3)[0])
    one_hot = torch.nn.functional.one_hot(labels, 4).float()
    fit = torch.linalg.lstsq(features, one_hot).solution
    assert ((features @ fit).argmax(1) == labels).float().mean() > 0.7


def test_synthetic_tokens_are_one_step_apart():
    tokens, targets = synthetic_tokens(3, 9, 5)
    assert tokens.shape == targets.shape == (3, 9) and tokens.max() < 5
    assert torch.equal(tokens[:, 1:], targets[:, :-1])


@pytest.mark.parametrize("make", [lambda: synthetic(0), lambda: synthetic_tokens(1, 0, 5), lambda: characters(0)])
def test_empty_requests_get_a_sentence(make):
    with pytest.raises(ValueError, match="expected 1 or more"):
        make()
