"""Tokens, labels and positions of packed documents, and the way back from shards to the full sequence."""

import pytest
import torch

from helpers.parallel.context_parallel import (
    document_starts,
    join_sequence,
    shifted_labels,
    split_sequence,
    token_indices,
)

DOCUMENTS = torch.tensor([[7, 7, 7, 2, 2, 9], [1, 1, 1, 1, 1, 1]])


@pytest.mark.parametrize("zigzag", [False, True])
@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("dim", [1, 2, -2])
def test_joining_is_the_inverse_of_splitting(num_ranks, zigzag, dim):
    full = torch.arange(2 * 13 * 13 * 3).view(2, 13, 13, 3)
    indices = token_indices(13, num_ranks, zigzag)
    shards = [split_sequence(full, indices, rank, dim) for rank in range(num_ranks)]
    assert torch.equal(join_sequence(shards, indices, dim), full)


def test_documents_start_where_the_number_changes():
    assert document_starts(DOCUMENTS).tolist() == [[0, 0, 0, 3, 3, 5], [0] * 6]


def test_labels_are_the_next_tokens_of_the_document():
    tokens = torch.arange(12).view(2, 6)
    assert shifted_labels(tokens).tolist() == [[1, 2, 3, 4, 5, -100], [7, 8, 9, 10, 11, -100]]
    assert shifted_labels(tokens, DOCUMENTS).tolist() == [[1, 2, -100, 4, -100, -100], [7, 8, 9, 10, 11, -100]]


def test_labels_that_are_shifted_after_the_split_are_other_ones():
    """The mistake that the order of the two steps avoids: the last token of each chunk loses its label."""
    tokens, indices = torch.arange(8).view(1, 8), token_indices(8, 2, zigzag=True)
    right = split_sequence(shifted_labels(tokens), indices, 0)
    wrong = shifted_labels(split_sequence(tokens, indices, 0))
    assert right.tolist() == [[1, 2, 7, -100]] and wrong.tolist() == [[1, 6, 7, -100]]
