"""Judges 13.zigzag: which tokens each rank has in a zigzag split, and where each token stands in the joined shards.

The learner's function is called in one process with drawn numbers of tokens and ranks. A case is the list of arguments
of one call. Below the sentence about a wrong value, `…_rule` says how the right one comes about, with the numbers of
the case. `Words` is a text in English and Chinese. Nothing here needs torch, so a page of the web edition judges it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from helpers.grading.kit.answers import first_difference, question_task
from helpers.grading.long_context import LAB
from helpers.grading.plain_data import shortened
from helpers.grading.task import NumberGenerator
from helpers.learner.words import Words

words = LAB.messages  # the texts of messages.yaml


def make_zigzag(rng: NumberGenerator, world_size: int) -> list[dict[str, Any]]:
    """The text's two examples, one rank, more chunks than tokens, more ranks than tokens; then random lengths.

    A case is: the number of tokens, and of ranks.
    """
    cases = [[8, 2], [11, 2], [16, 4], [rng.integer(3, 9), 1], [rng.integer(5, 7), 4], [rng.integer(1, 3), 4]]
    for num_ranks in (2, 3, 4, rng.integer(5, 8)):
        chunk = rng.integer(1, 4)
        cases.append([2 * num_ranks * chunk + rng.integer(1, 2 * num_ranks - 1), num_ranks])
    return [{"cases": cases}]


def chunks_of(num_tokens: int, num_ranks: int) -> list[list[int]]:
    """The tokens of each of the two chunks per rank, of which the first ones are longer by one if need be."""
    size, rest = divmod(num_tokens, 2 * num_ranks)
    edges = [chunk * size + min(chunk, rest) for chunk in range(2 * num_ranks + 1)]
    return [list(range(*pair)) for pair in pairwise(edges)]


def zigzag(num_tokens: int, num_ranks: int) -> tuple[list[list[int]], list[int]]:
    """The right answer to a case: the tokens of each rank, and the place of each token in the joined shards."""
    chunks = chunks_of(num_tokens, num_ranks)
    shards = [chunks[rank] + chunks[-1 - rank] for rank in range(num_ranks)]
    joined = sum(shards, [])
    return shards, [joined.index(token) for token in range(num_tokens)]


def shards_rule(case: list[int], got: Any) -> Words:
    """The lengths of the chunks, and which of them the first rank has whose shard is wrong."""
    (shards, _), num_ranks = zigzag(*case), case[1]
    rank = first_difference(shards, got)
    lengths = shortened([len(chunk) for chunk in chunks_of(*case)])
    values = {"lengths": lengths, "rank": rank, "tail": 2 * num_ranks - 1 - rank, "shard": shortened(shards[rank])}
    return words["shards_rule"].format(chunks=2 * num_ranks, **values)


def places_rule(case: list[int], got: Any) -> Words:
    """The joined shards, and where the first token stands there whose place is wrong."""
    shards, places = zigzag(*case)
    token = first_difference(places, got)
    return words["places_rule"].format(joined=shortened(sum(shards, [])), token=token, place=places[token])


ZIGZAG = question_task(
    "13.zigzag",
    "zigzag(num_tokens, num_ranks)",
    [words["shards"], words["places"]],
    zigzag,
    make_inputs=make_zigzag,
    rules=[shards_rule, places_rule],
    needs_torch=False,
)
