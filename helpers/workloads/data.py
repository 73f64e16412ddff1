"""Data that is on the disk or made on the spot: the same seed gives the same numbers on every rank.

Legend: N = samples, F = features, T = tokens in a sequence, V = vocabulary.

Two rules keep ranks honest. What ranks must agree on (a data set, a global batch) depends on the seed alone; each rank
then takes its own `rank_slice`. What ranks must not share (noise, dropout) comes from `rank_generator(seed, rank)`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from .corpus import ALPHABET, write_text


def check_rank(rank: int, world_size: int):
    """ValueError unless 0 <= rank < world_size."""
    if not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} of {world_size}: ranks count from 0 to world_size - 1")


def rank_generator(seed: int, rank: int = 0) -> torch.Generator:
    """A CPU random generator for one rank; two (seed, rank) pairs share no stream (rank below 100,000)."""
    return torch.Generator().manual_seed(seed * 100_003 + rank)


def rank_slice(batch: Tensor, rank: int, world_size: int) -> Tensor:
    """This rank's rows of a global batch: contiguous, in rank order, the first ranks one row longer if uneven.

    (N, ...) to (about N / world_size, ...). Put together in rank order the slices are the batch. Raises ValueError
    for a rank out of range.
    """
    check_rank(rank, world_size)
    return batch.tensor_split(world_size)[rank]


def digits(split: str = "train", *, flat: bool = True, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """scikit-learn's handwritten digits: 1,797 grey images of 8 x 8, ten classes.

    Returns images in [0, 1], (N, 64) or with flat=False (N, 1, 8, 8), and labels (N,) int64. `split` is "train" (the
    first 1,437 of a fixed shuffle), "test" (the other 360) or "all". Raises ValueError for another split.
    """
    from sklearn.datasets import load_digits  # half a second: only for those who ask

    if split not in ("train", "test", "all"):
        raise ValueError(f'digits(split={split!r}): expected "train", "test" or "all"')
    images, labels = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
    order = torch.randperm(len(labels), generator=rank_generator(0))
    chosen = {"train": order[:1437], "test": order[1437:], "all": order}[split]
    images = (images[chosen] / 16).to(dtype)  # (N, 64)
    return (images if flat else images.view(-1, 1, 8, 8)), labels[chosen].long()


def synthetic(
    num_samples: int,
    num_features: int = 64,
    num_classes: int = 10,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor]:
    """Random features and the class that a fixed random linear teacher gives them, so there is something to learn.

    Returns (N, F) and (N,) int64. Raises ValueError for a number below 1.
    """
    if min(num_samples, num_features, num_classes) < 1:
        raise ValueError(f"synthetic({num_samples}, {num_features}, {num_classes}): expected 1 or more of each")
    teacher = torch.randn(num_features, num_classes, generator=rank_generator(seed, 1), dtype=torch.float64)  # (F, C)
    features = torch.randn(num_samples, num_features, generator=rank_generator(seed), dtype=torch.float64)  # (N, F)
    return features.to(dtype), (features @ teacher).argmax(1)


def synthetic_tokens(num_sequences: int, num_tokens: int, vocab_size: int, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Uniform random tokens (N, T) and the targets (N, T), one step ahead. Nothing to learn: for timing and traffic.

    Raises ValueError for a number below 1.
    """
    if min(num_sequences, num_tokens, vocab_size) < 1:
        raise ValueError(f"synthetic_tokens({num_sequences}, {num_tokens}, {vocab_size}): expected 1 or more of each")
    tokens = torch.randint(vocab_size, (num_sequences, num_tokens + 1), generator=rank_generator(seed))
    return tokens[:, :-1], tokens[:, 1:]


@dataclass(frozen=True, kw_only=True)
class Characters:
    """A text as tokens, one a character. `tokens` is (num_characters,) int64 with values below `vocab_size`."""

    text: str
    tokens: Tensor
    vocab_size: int = len(ALPHABET)

    def encode(self, text: str) -> Tensor:
        """A string to (len(text),) int64. Raises ValueError for a character outside the alphabet."""
        strange = sorted(set(text) - set(ALPHABET))
        if strange:
            raise ValueError(f"encode: {strange[0]!r} is not in the alphabet of {len(ALPHABET)} characters")
        return torch.tensor([ALPHABET.index(character) for character in text], dtype=torch.int64)

    def decode(self, tokens: Tensor) -> str:
        return "".join(ALPHABET[token] for token in tokens.tolist())

    def batch(
        self, step: int, batch_size: int, context: int, *, rank: int = 0, world_size: int = 1, seed: int = 0
    ) -> tuple[Tensor, Tensor]:
        """This rank's part of the global batch of one step: inputs and targets, each (its rows, context) int64.

        `batch_size` is global. The batch depends on (seed, step) alone and is cut by `rank_slice`, so one process with
        world_size=1 sees what all ranks together see. Raises ValueError for a context the text cannot fill.
        """
        if context + 1 > len(self.tokens):
            raise ValueError(
                f"batch(context={context}): the text has {len(self.tokens)} characters, one more is needed"
            )
        generator = rank_generator(seed * 1_000_003 + step)
        starts = torch.randint(len(self.tokens) - context, (batch_size, 1), generator=generator)  # (N, 1)
        rows = self.tokens[rank_slice(starts, rank, world_size) + torch.arange(context + 1)]  # (rows, context + 1)
        return rows[:, :-1], rows[:, 1:]


def characters(num_characters: int = 40_000, *, seed: int = 0) -> Characters:
    """A corpus written by the grammar in `corpus.py`: 68 characters in the alphabet, sums that are right.

    Raises ValueError for num_characters below 1.
    """
    text = write_text(num_characters, seed)
    codes = {character: code for code, character in enumerate(ALPHABET)}
    return Characters(text=text, tokens=torch.tensor([codes[c] for c in text], dtype=torch.int64))
