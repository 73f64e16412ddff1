"""Splits a sequence over ranks and joins it again, and says where documents start and which labels tokens have.

What belongs to a token follows the token: its position, its label and its document. So all of these are made for the
full sequence, by global index, and are split afterwards with the same indices. Two mistakes are silent otherwise:

    labels that are shifted after the split      the last token of each chunk gets no label, or a wrong one
    positions that count from 0 on each rank     RoPE or learned positions give chunks the places of the first one

Several documents can be packed into one sequence. Then positions restart with each document, its last token has no
label, and no token attends to another document. Legend: B = sequences, T = tokens of the full sequence.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

NO_LABEL = -100  # cross_entropy ignores it


def split_sequence(tensor: Tensor, indices: Sequence[Tensor], rank: int, dim: int = 1) -> Tensor:
    """Return rank `rank`'s tokens of a tensor whose dimension `dim` is the full sequence.

    indices: those of each rank, as `token_indices` (ring.py) returns them.
    """
    return tensor.index_select(dim, indices[rank].to(tensor.device))


def join_sequence(shards: Sequence[Tensor], indices: Sequence[Tensor], dim: int = 1) -> Tensor:
    """Return the full sequence from the shards of all ranks, in rank order: the inverse of `split_sequence`."""
    in_rank_order = torch.cat(list(shards), dim)
    return in_rank_order.index_select(dim, torch.cat(list(indices)).argsort().to(in_rank_order.device))


def document_starts(documents: Tensor) -> Tensor:
    """For each token the index at which its document starts: (B, T) to (B, T), int64.

    documents: a number per token. Neighbours with the same number belong to one document.
    """
    index = torch.arange(documents.shape[1], device=documents.device)
    is_first = torch.ones_like(documents, dtype=torch.bool)
    is_first[:, 1:] = documents[:, 1:] != documents[:, :-1]
    return (index * is_first).cummax(1).values


def shifted_labels(tokens: Tensor, documents: Tensor | None = None) -> Tensor:
    """The label of each token, which is the next token of its document: (B, T) to (B, T), int64.

    The last token of a document has none (NO_LABEL), because what follows is another document.
    """
    labels = torch.full_like(tokens, NO_LABEL)
    labels[:, :-1] = tokens[:, 1:]
    if documents is not None:
        labels[:, :-1].masked_fill_(documents[:, 1:] != documents[:, :-1], NO_LABEL)
    return labels
