"""Judges 13.zigzag and 13.shard: which tokens each rank has, and what belongs to the tokens of one rank.

13.zigzag asks for the tokens of each rank in a zigzag split, and for the place of each token in the joined shards.
13.shard asks for the positions, labels and document starts of one rank's tokens, and for the number of labels.

The learner's function is called in one process with drawn cases. A case is the list of arguments of one call. Below the
sentence about a wrong value, `…_rule` says how the right one comes about, with the numbers of the case. `Words` is a
text in English and Chinese. Nothing here needs torch, so a page of the web edition judges both tasks.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from helpers.grading.kit.answers import first_difference, question_task
from helpers.grading.long_context import LAB
from helpers.grading.plain_data import shortened
from helpers.grading.task import NumberGenerator
from helpers.learner.words import Words
from helpers.predict.traffic.context_parallel import token_chunks

words = LAB.messages  # the texts of messages.yaml


# -- 13.zigzag -------------------------------------------------------------------------------------------------------
def make_zigzag(rng: NumberGenerator, world_size: int) -> list[dict[str, Any]]:
    """The text's two examples, an even split, one rank, as many ranks as tokens, empty chunks; then random lengths.

    A case is: the number of tokens, and of ranks.
    """
    cases = [[8, 2], [11, 2], [16, 4], [rng.integer(3, 9), 1], [4, 4], [rng.integer(5, 7), 4]]
    for num_ranks in (2, 3, 4, rng.integer(5, 8)):
        chunk = rng.integer(1, 4)
        cases.append([2 * num_ranks * chunk + rng.integer(1, 2 * num_ranks - 1), num_ranks])
    return [{"cases": cases}]


def zigzag(num_tokens: int, num_ranks: int) -> tuple[list[list[int]], list[int]]:
    """The right answer to a case: the tokens of each rank, and the place of each token in the joined shards."""
    shards = [[*head, *tail] for head, tail in token_chunks(num_tokens, num_ranks, zigzag=True)]
    places = [0] * num_tokens
    for place, token in enumerate(sum(shards, [])):
        places[token] = place
    return shards, places


def shards_rule(case: list[int], got: Any) -> Words:
    """The lengths of the chunks, and which of them the first rank has whose shard is wrong."""
    num_ranks, heads_and_tails = case[1], token_chunks(*case, zigzag=True)
    rank = first_difference([[*head, *tail] for head, tail in heads_and_tails], got)
    heads, tails = zip(*heads_and_tails, strict=True)
    lengths = shortened([len(chunk) for chunk in (*heads, *reversed(tails))])
    values = {"lengths": lengths, "rank": rank, "tail": 2 * num_ranks - 1 - rank}
    return words["shards_rule"].format(chunks=2 * num_ranks, shard=shortened([*heads[rank], *tails[rank]]), **values)


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

# -- 13.shard --------------------------------------------------------------------------------------------------------
NO_LABEL = -100
VOCAB = 90  # tokens are 0, or drawn from 10 to this, so that they look unlike indices and documents in a sentence
Case = list[list[int]]  # the tokens of the full sequence, the document of each, and the indices of one rank's tokens


def make_shard(rng: NumberGenerator, world_size: int) -> list[dict[str, Any]]:
    """The text's example; then all ranks of drawn sequences; then single tokens of one, and a sequence of one token.

    The first drawn one is a single document on two ranks without a zigzag. In the others documents of one token and
    more follow each other, a number may come again, and one of them begins where the sequence is split. In each the
    token 0 is a label twice, if that many tokens are one.
    """
    cases = [[[11, 12, 13, 14, 15, 16, 17, 18], [0, 0, 0, 1, 1, 1, 1, 1], [0, 1, 6, 7]]]
    for number, num_ranks in enumerate((2, 2, 3, 1, 4)):
        num_tokens = rng.integer(3 * num_ranks, 5 * num_ranks)
        shards = [sum(map(list, chunks), []) for chunks in token_chunks(num_tokens, num_ranks, zigzag=number > 0)]
        documents: list[int] = []
        while number and len(documents) < num_tokens:
            id = rng.one_of(*(each for each in range(4) if each not in documents[-1:]))
            documents += [id] * (len(shards[0]) // 2 if not documents and number > 1 else rng.integer(1, 5))
        documents = documents[:num_tokens] or [7] * num_tokens
        tokens = [rng.integer(10, VOCAB) for _ in range(num_tokens)]
        are_labels = [i + 1 for i, pair in enumerate(pairwise(documents)) if pair[0] == pair[1]]
        for place in rng.permutation(len(are_labels))[:2]:
            tokens[are_labels[place]] = 0
        cases += [[tokens, documents, shard] for shard in shards]
    cases.append([tokens, documents, list(range(1, num_tokens, 2))])
    return [{"cases": [*cases, [[rng.integer(10, VOCAB)], [0], [0]]]}]


def own_shard(tokens: list[int], documents: list[int], index: list[int]) -> tuple[list[int], list[int], list[int], int]:
    """The right answer to a case: positions, labels and document starts of the rank's tokens, and the labels of all."""
    starts, labels, last = [], [], len(tokens) - 1
    for i, document in enumerate(documents):
        starts.append(starts[-1] if i and documents[i - 1] == document else i)
        labels.append(tokens[i + 1] if i < last and documents[i + 1] == document else NO_LABEL)
    num_labels = len(labels) - labels.count(NO_LABEL)
    return [i - starts[i] for i in index], [labels[i] for i in index], [starts[i] for i in index], num_labels


def token_rule(number: int) -> Callable[[Case, Any], Words]:
    """The rule of a list with one value per token: which token the first wrong value belongs to, and its document.

    number: that of the list in the answer.
    """

    def rule(case: Case, got: Any) -> Words:
        _, documents, index = case
        place = first_difference(own_shard(*case)[number], got)
        token, start = index[place], own_shard(*case)[2][place]
        end = next((i for i in range(token, len(documents)) if documents[i] != documents[token]), len(documents)) - 1
        return words["token_rule"].format(number=place + 1, token=token, start=start, end=end)

    return rule


def num_labels_rule(case: Case, got: Any) -> Words:
    """How many tokens and how many documents there are."""
    documents = case[1]
    borders = sum(one != other for one, other in pairwise(documents))
    return words["num_labels_rule"].format(tokens=len(documents), documents=borders + 1)


SHARD = question_task(
    "13.shard",
    "own_shard(tokens, documents, index)",
    [words["positions"], words["labels"], words["starts"], words["num_labels"]],
    own_shard,
    make_inputs=make_shard,
    rules=[token_rule(0), token_rule(1), token_rule(2), num_labels_rule],
    recognise_failure=lambda failure: ["beyond_the_end"] if failure.type_name == "IndexError" else [],
    needs_torch=False,
)
