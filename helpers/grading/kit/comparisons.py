"""Compares numbers, texts and messages with what is right, and says in words how the two differ.

A task's `judge` calls the `expect_…` functions, each of which returns or yields Judgements:

    yield expect_equal("the number of steps", 3, got, rank=rank, mistakes={"one_too_many": 4})

A mistake is a wrong solution that learners often write, and the lab has a hint about it. `mistakes` maps the key of
such a hint to the value that this mistake would give. Where `got`, the learner's value, equals that value, the
Judgement names the mistake. What was sent is judged from the communication log (`world.logs`, one per rank), never from
the learner's source text. Tensors are compared by tensor_comparisons.py, since this file needs no torch.

`Words` is a text in English and Chinese with places to fill in, and `words["at"]` is one of values.yaml, which holds
the sentences of this file. `what` is how a sentence names the value that is compared, such as "the number of steps".
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from os.path import commonprefix
from typing import Any

from helpers.grading.plain_data import MAX_SHOWN, shortened_text
from helpers.grading.task import JudgedWorld, Judgement
from helpers.learner.words import Words, book
from helpers.quantities.units import format_bytes

words = book("values")
COMMA = Words(en=", ", zh="、")  # COMMA.join(names) is a list of names in a sentence
HintKeys = Sequence[str]
MIN_NUMBER_WITH_FACTOR = 10  # of smaller whole numbers nobody needs to be told the factor
MAX_WHOLE_FACTOR, MAX_RATIO_PART = 1024, 9  # factors that a sentence names: up to 1024, 1/1024, and such as 3/4
SHOWN_BEFORE = 24  # characters of a long value that stand before the first difference


# -- comparisons -----------------------------------------------------------------------------------------------------
def expect_equal(
    what: Words | str, expected: Any, got: Any, *, rank: int | None = None, mistakes: Mapping[str, Any] | None = None
) -> Judgement:
    """Expects `got == expected`, for numbers, strings and lists of them. The types must agree, so 3 is not 3.0."""
    if type(got) is type(expected) and got == expected:
        return Judgement(ok=True, message=Words.of(what), rank=rank)
    known = tuple(key for key, wrong in (mistakes or {}).items() if type(got) is type(wrong) and got == wrong)
    return Judgement(ok=False, message=describe_difference(Words.of(what), expected, got), rank=rank, mistakes=known)


def expect(ok: bool, message: Words, *, rank: int | None = None, mistakes: HintKeys = ()) -> Judgement:
    """Expects anything else that is true or false.

    message: the sentence about what is wrong if `ok` is false. mistakes: the keys of the hints that explain it then.
    """
    return Judgement(ok=bool(ok), message=message, rank=rank, mistakes=() if ok else tuple(mistakes))


def with_rule(rule: Words, judgements: Iterable[Judgement]) -> Iterator[Judgement]:
    """The judgements; below the sentence of each that failed stands the rule that decides there, with its numbers."""
    for one in judgements:
        yield one if one.ok else replace(one, message=Words.of("\n").join([one.message, rule]))


# -- comparisons with the communication log --------------------------------------------------------------------------
def is_lone_rank_without_messages(world: JudgedWorld) -> bool:
    """Whether this is a world of one rank that sends nothing. That is right as well, because there is no other rank."""
    return world.size == 1 and not world.logs[0].events


def expect_num_calls(
    world: JudgedWorld, op: str, count: int, *, mistakes: Mapping[str, int] | None = None
) -> Iterator[Judgement]:
    """Expects every rank to issue `op` exactly `count` times. mistakes: maps a key to the count that it gives."""
    for rank, log in enumerate(world.logs):
        yield expect_equal(words["num_calls"].format(op), count, log.count(op), rank=rank, mistakes=mistakes)


def expect_only_ops(
    world: JudgedWorld, ops: Sequence[str], *, mistakes: HintKeys = (), mistake_of_op: Mapping[str, str] | None = None
) -> Iterator[Judgement]:
    """Expects every rank to issue no other operation than these.

    mistakes: the keys for any other operation. mistake_of_op: maps an operation to the key for just this one.
    """
    needed = words["needs_only"].format(ops) if ops else words["needs_none"]
    for rank, log in enumerate(world.logs):
        others = [op for op in log.ops() if op not in ops]
        known = [*mistakes, *(key for op, key in (mistake_of_op or {}).items() if op in others)]  # hints that apply
        message = words["calls"].format(others=COMMA.join(others), needed=needed)
        yield expect(not others, message, rank=rank, mistakes=known)


def expect_payload_bytes(
    world: JudgedWorld,
    expected: int | Sequence[int],
    op: str | None = None,
    *,
    mistakes: Mapping[str, int] | None = None,
) -> Iterator[Judgement]:
    """Expects how many bytes each rank passes to all calls of `op` together, or to all operations if `op` is None.

    expected: one number for all ranks, or one per rank. mistakes: maps a key to the bytes that the mistake gives.
    """
    per_rank = [expected] * world.size if isinstance(expected, int) else list(expected)
    for rank, (log, num_bytes) in enumerate(zip(world.logs, per_rank, strict=True)):
        sent = log.payload_bytes(op)
        known = tuple(key for key, wrong in (mistakes or {}).items() if sent == wrong)
        # words["task"] names all operations of the answer together.
        message = words["moves"].format(op or words["task"], format_bytes(sent), format_bytes(num_bytes))
        yield expect(sent == num_bytes, message, rank=rank, mistakes=known)


# -- sentences about a wrong value -----------------------------------------------------------------------------------
def simple_factor(expected: float, got: float) -> str:
    """The factor between two numbers as a text, if it is one that a mistake would cause: "2", "1/8", "3/4"; else ""."""
    if not (got * expected > 0 and math.isfinite(got * expected)) or got == expected:
        return ""
    if isinstance(expected, int) and abs(expected) < MIN_NUMBER_WITH_FACTOR:
        return ""
    factor = Fraction(got / expected).limit_denominator(MAX_WHOLE_FACTOR)
    smaller, larger = sorted(factor.as_integer_ratio())
    is_simple = larger <= (MAX_WHOLE_FACTOR if smaller == 1 else MAX_RATIO_PART)
    return str(factor) if is_simple and math.isclose(got, factor * expected, rel_tol=1e-9) else ""


def describe_difference(what: Words, expected: Any, got: Any) -> Words:
    """A sentence about a wrong number, text, or list of them; for lists, about the first item that differs.

    Where items of a list are only missing, are too many, or stand in another order, it says so.
    """
    if not (isinstance(expected, list) and isinstance(got, list)):
        are_numbers = all(type(one) in (int, float) for one in (expected, got))
        factor = simple_factor(expected, got) if are_numbers else ""
        shown, due = shortened_pair(got, expected)
        return words["value_times" if factor else "value"].format(what=what, at="", got=shown, due=due, number=factor)
    texts, due_texts = list(map(repr, got)), list(map(repr, expected))  # items may be lists, which cannot be counted
    missing, extra = Counter(due_texts) - Counter(texts), Counter(texts) - Counter(due_texts)
    if bool(missing) != bool(extra):
        name, some = ("missing", missing) if missing else ("extra", extra)
        first = shortened_text(next(iter(some)))
        return words[name].format(what, len(got), len(expected), first=first, num=some.total())
    pairs = enumerate(zip(texts, due_texts, strict=False))
    index = next((i for i, (one, right) in pairs if one != right), len(expected) - 1)
    name = "item" if missing else "other_order"
    return words[name].format(what, index + 1, *shortened_pair(got[index], expected[index]))


def shortened_pair(got: Any, expected: Any) -> list[str]:
    """Both values as texts. Long ones are cut around their first difference, so that they do not look equal."""
    texts = [repr(got), repr(expected)]
    is_long = max(map(len, texts)) > MAX_SHOWN
    start = max(0, len(commonprefix(texts)) - SHOWN_BEFORE) if is_long else 0
    return [shortened_text(text, start) for text in texts]
