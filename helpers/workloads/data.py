"""Makes the data sets of the course: handwritten digits, a generated text of characters, and synthetic samples.

The same seed gives the same numbers on every rank. Legend: N = samples, F = features, C = classes, T = tokens.

There are two kinds of random numbers. What all ranks must agree on (a data set, a global batch) depends on the seed
alone, and each rank takes its `rank_slice` of it. What ranks must not share (noise, dropout) comes from
`rank_generator(seed, rank)`, which gives every rank a random stream of its own.
"""

from __future__ import annotations

import random
import re
import string
from dataclasses import dataclass

import torch
from torch import Tensor

# The text comes from a grammar, so that a text of any length can be made without a file. A symbol in capitals is
# replaced by one of its lines until no symbol is left. SUM and NUMBER are symbols, too, for which `_expand` has rules.
# Sums are right ("4 and 3 make 7"), so there is more to learn than spelling. Only `random.Random(seed).random()` is
# used, whose sequence Python keeps between versions.
ALPHABET = "\n " + string.ascii_lowercase + string.ascii_uppercase + string.digits + ".,:;"  # 68 characters

GRAMMAR = {
    "STORY": [
        "On DAY PERSON starts NUMBER ranks. SENTENCE SENTENCE SENTENCE\n",
        "SENTENCE SENTENCE\n",
        "PERSON asks: why does the THING VERB; Because the THING is ADJECTIVE.\n",
        "PERSON asks: which rank VERBs; Rank NUMBER does.\n",
        "PERSON asks: how many THINGs VERB; SUM.\n",
    ],
    "SENTENCE": [
        "Rank NUMBER sends its THING to rank NUMBER.",
        "The ring VERBs, and every rank VERBs.",
        "Rank NUMBER VERBs while the others VERB.",
        "If one rank VERBs, then the ADJECTIVE THING VERBs; nobody else VERBs.",
        "PERSON counts the THINGs: SUM.",
        "The THING of rank NUMBER is ADJECTIVE.",
    ],
    "THING": ["gradient", "bucket", "message", "weight", "tensor", "shard", "key", "value", "buffer"],
    "VERB": ["wait", "listen", "answer", "arrive", "overlap", "return", "break", "join", "zoom"],
    "ADJECTIVE": ["late", "small", "exact", "heavy", "quick", "frozen", "equal"],
    "PERSON": ["Ada", "Bo", "Chen", "Dai", "Emi", "Femi", "Gus", "Hui", "Ines", "Jun", "Kai", "Lin", "Mei"]
    + ["Nia", "Oto", "Pia", "Qi", "Rui", "Sam", "Tao", "Uma", "Vik", "Wen", "Xia", "Yan", "Zoe"],
    "DAY": ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"],
}
_SYMBOL = re.compile("SUM|NUMBER|" + "|".join(GRAMMAR))  # also inside a word: "VERBs" becomes "waits"


def write_text(num_characters: int, seed: int = 0) -> str:
    """The first `num_characters` characters of the endless text with this seed. ValueError for fewer than 1."""
    if num_characters < 1:
        raise ValueError(f"a text of {num_characters} characters: expected 1 or more")
    generator, stories, length = random.Random(seed), [], 0
    while length < num_characters:
        stories.append(_expand("STORY", generator))
        length += len(stories[-1])
    return "".join(stories)[:num_characters]


def _expand(symbol: str, generator: random.Random) -> str:
    """A random text for one symbol of the grammar."""
    if symbol == "SUM":
        a, b = _random_below(10, generator), _random_below(10, generator)
        return f"{a} and {b} make {a + b}"
    if symbol == "NUMBER":
        return str(_random_below(10, generator))
    line = GRAMMAR[symbol][_random_below(len(GRAMMAR[symbol]), generator)]
    return _SYMBOL.sub(lambda match: _expand(match[0], generator), line)


def _random_below(limit: int, generator: random.Random) -> int:
    return int(generator.random() * limit)


def rank_generator(seed: int, rank: int = 0) -> torch.Generator:
    """A random generator on the CPU for one rank. Different pairs of seed and rank have different streams.

    Ranks must be below 100,000: the prime factor keeps the seeds of two pairs apart up to there.
    """
    return torch.Generator().manual_seed(seed * 100_003 + rank)


def rank_slice(batch: Tensor, rank: int, world_size: int) -> Tensor:
    """This rank's rows of a global batch of shape (N, ...): about N / world_size consecutive rows.

    The slices of all ranks, concatenated in rank order, are the batch. Where world_size does not divide N, the first
    ranks have one row more. Raises ValueError for a rank out of range.
    """
    if not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} of {world_size}: ranks count from 0 to world_size - 1")
    return batch.tensor_split(world_size)[rank]


def digits(split: str = "train", *, flat: bool = True, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """scikit-learn's handwritten digits: 1,797 grey images of 8 x 8, ten classes.

    Returns images in [0, 1], (N, 64) or with flat=False (N, 1, 8, 8), and labels (N,) int64. `split` is "train" (the
    first 1,437 of a fixed shuffle), "test" (the other 360) or "all". Raises ValueError for another split.
    """
    from sklearn.datasets import load_digits  # this import takes half a second, so only callers pay it

    if split not in ("train", "test", "all"):
        raise ValueError(f'digits(split={split!r}): expected "train", "test" or "all"')
    images, labels = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
    order = torch.randperm(len(labels), generator=rank_generator(0))
    chosen = {"train": order[:1437], "test": order[1437:], "all": order}[split]  # 80 % for training
    images = (images[chosen] / 16).to(dtype)  # (N, 64); the raw values go from 0 to 16
    return (images if flat else images.view(-1, 1, 8, 8)), labels[chosen].long()


def synthetic(
    num_samples: int, num_features: int = 64, num_classes: int = 10, *, seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Random features and the class that a fixed random linear teacher gives them, so there is something to learn.

    Returns (N, F) and (N,) int64. Raises ValueError for a number below 1.
    """
    if min(num_samples, num_features, num_classes) < 1:
        raise ValueError(f"synthetic({num_samples}, {num_features}, {num_classes}): expected 1 or more of each")
    # The second stream of the seed makes the teacher, so that it is independent of the features.
    teacher = torch.randn(num_features, num_classes, generator=rank_generator(seed, 1), dtype=torch.float64)  # (F, C)
    features = torch.randn(num_samples, num_features, generator=rank_generator(seed), dtype=torch.float64)  # (N, F)
    return features.to(dtype), (features @ teacher).argmax(1)


def synthetic_tokens(num_sequences: int, num_tokens: int, vocab_size: int, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Uniform random tokens (N, T) and the targets (N, T), one token ahead: for timing, as nothing can be learned.

    Raises ValueError for a number below 1.
    """
    if min(num_sequences, num_tokens, vocab_size) < 1:
        raise ValueError(f"synthetic_tokens({num_sequences}, {num_tokens}, {vocab_size}): expected 1 or more of each")
    tokens = torch.randint(vocab_size, (num_sequences, num_tokens + 1), generator=rank_generator(seed))
    return tokens[:, :-1], tokens[:, 1:]


@dataclass(frozen=True, kw_only=True)
class Characters:
    """A text as tokens, one token per character. `tokens` is (num_characters,) int64 with values below `vocab_size`."""

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
        """This rank's part of the global batch of one step: inputs and targets, each (this rank's rows, context) int64.

        `context` is the number of tokens of a sequence, and `batch_size` counts the sequences of all ranks together.
        The batch depends on seed and step alone and is split by `rank_slice`, so one process with world_size=1 sees
        what all ranks together see. Raises ValueError for a context that is longer than the text.
        """
        if context + 1 > len(self.tokens):
            raise ValueError(
                f"batch(context={context}): the text has {len(self.tokens)} characters, one more is needed"
            )
        generator = rank_generator(seed * 1_000_003 + step)  # the prime keeps the streams of two steps apart
        starts = torch.randint(len(self.tokens) - context, (batch_size, 1), generator=generator)  # (N, 1)
        rows = self.tokens[rank_slice(starts, rank, world_size) + torch.arange(context + 1)]  # (rows, context + 1)
        return rows[:, :-1], rows[:, 1:]


def characters(num_characters: int = 40_000, *, seed: int = 0) -> Characters:
    """A text that the grammar above writes, as tokens over an alphabet of 68 characters.

    Raises ValueError for num_characters below 1.
    """
    text = write_text(num_characters, seed)
    codes = {character: code for code, character in enumerate(ALPHABET)}
    return Characters(text=text, tokens=torch.tensor([codes[c] for c in text], dtype=torch.int64))
