"""Judges 13.ulysses_bytes: the bytes that a rank sends per layer with Ulysses, and with the ring.

The learner's function is called in one process with drawn shapes of attention. A case is the list of arguments of one
call. The right numbers are those of the course's predictions. Below the sentence about a wrong value, `…_rule` says how
the right one comes about, with the numbers of the case. `Words` is a text in English and Chinese. Nothing here needs
torch, so a page of the web edition judges the task.
"""

from __future__ import annotations

from typing import Any

from helpers.grading.kit.answers import question_task
from helpers.grading.long_context import LAB
from helpers.grading.task import NumberGenerator
from helpers.learner.words import Words
from helpers.predict.traffic import context_parallel
from helpers.specs import ModelSpec

words = LAB.messages  # the texts of messages.yaml
NAMES = ("ulysses_forward", "ulysses_backward", "ring_forward", "ring_backward")  # what is asked for, in this order


def make_bytes(rng: NumberGenerator, world_size: int) -> list[dict[str, Any]]:
    """The text's examples, one rank, multi-head attention, as many ranks as heads, too many, three copies; random ones.

    A case is: the tokens of the full sequence, the query heads, the key and value heads, the elements of a head, the
    ranks, and the bytes of an element.
    """
    cases = [[8192, 32, 8, 128, 4, 2], [8192, 32, 8, 128, 16, 2], [4096, 16, 4, 64, 1, 2], [6144, 12, 12, 96, 3, 4]]
    cases += [[4096, 16, 2, 64, 16, 2], [4096, 16, 4, 64, 32, 2], [4096, 12, 4, 64, 8, 2], [6144, 12, 2, 64, 6, 2]]
    while len(cases) < 15:
        kv_heads, group = 2 ** rng.integer(0, 4), rng.one_of(1, 2, 3, 4, 6, 8)
        ranks = 2 ** rng.integer(1, 5)
        tokens = ranks * rng.integer(50, 500)
        cases.append([tokens, kv_heads * group, kv_heads, rng.one_of(64, 80, 128), ranks, rng.one_of(1, 2, 4)])
    return [{"cases": cases}]


def attention_bytes(
    tokens: int, heads: int, kv_heads: int, head_size: int, ranks: int, element: int
) -> list[float | None]:
    """The right answer to a case: Ulysses forward and backward, None where it cannot be, and the ring's."""
    shape = {"num_heads": heads, "num_kv_heads": kv_heads, "hidden": heads * head_size, "seq": tokens}
    how = {"model": ModelSpec(num_layers=1, vocab=1, **shape), "cp": ranks, "dtype_bytes": element}
    ring = [context_parallel.ring_attention_bytes(**how, backward=backward) for backward in (False, True)]
    if heads % ranks:
        return [None, None, *ring]
    return [context_parallel.ulysses_bytes(**how, backward=backward) for backward in (False, True)] + ring


def ulysses_rule(case: list[int], got: Any) -> Words:
    """Which heads a rank sends to the others, or why there is no right number."""
    tokens, heads, kv_heads, head_size, ranks, element = case
    if heads % ranks:
        return words["ulysses_rule.impossible"].format(ranks=ranks, heads=heads)
    both = max(kv_heads, ranks)
    values = {"copies": both // kv_heads, "to_each": (2 * heads + 2 * both) // ranks, "others": ranks - 1}
    values |= {"tokens": tokens // ranks, "bytes": head_size * element}
    return words["ulysses_rule.possible"].format(**values)


def ring_forward_rule(case: list[int], got: Any) -> Words:
    """How often a block is passed on, and how large it is."""
    tokens, _, kv_heads, head_size, ranks, element = case
    values = {"hops": ranks - 1, "heads": kv_heads, "tokens": tokens // ranks, "bytes": head_size * element}
    return words["ring_rule"].format(**values)


def ring_backward_rule(case: list[int], got: Any) -> Words:
    """The same, and that gradients travel, too."""
    return ring_forward_rule(case, got) + words["ring_backward_rule"]


ULYSSES_BYTES = question_task(
    "13.ulysses_bytes",
    "attention_bytes(tokens, heads, kv_heads, head_size, ranks, element)",
    [words[name] for name in NAMES],
    attention_bytes,
    rules=[ulysses_rule, ulysses_rule, ring_forward_rule, ring_backward_rule],
    make_inputs=make_bytes,
    needs_torch=False,
)
