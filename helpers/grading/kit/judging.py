"""Comparisons for a task's `judge`: each returns one Finding. Pure functions of what went in and what came out.

    yield expect_tensor(GRADIENT.format(name), mean, got, rank=rank, mistakes={"sum_for_mean": mean * world.size})

`mistakes` maps the key of a hint to the value that this mistake would give; where `got` equals it, the Finding names
it. What was sent is judged from the log, never from the learner's source text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from helpers.grading.kit.telling import describe_difference, describe_tensor
from helpers.grading.task import ComparedTensors, JudgedWorld, Judgement
from helpers.learner.words import Words
from helpers.observe.equality import TOLERANCES
from helpers.quantities.units import format_bytes

Keys = Sequence[str]
Named = Mapping[str, Tensor]


def is_close(expected: Tensor, got: Any) -> bool:
    """Equal as the course means it: float64 1e-10 of the norm, float32 1e-5 of the largest value.

    Where terms cancel, a right answer is not: what a Finding compares, `rounding.forgiven` looks at once more.
    """
    if not isinstance(got, Tensor) or got.shape != expected.shape or got.dtype != expected.dtype:
        return False
    if not expected.dtype.is_floating_point or expected.numel() == 0:
        return torch.equal(expected, got)
    gap, size = (got - expected).double(), expected.double()
    if expected.dtype == torch.float64:
        return bool(gap.norm() <= TOLERANCES[torch.float64] * size.norm())
    tolerance = TOLERANCES.get(expected.dtype, 8 * torch.finfo(expected.dtype).eps)
    return bool(gap.abs().max() <= tolerance * size.abs().max())


def expect_tensor(
    what: Words | str,
    expected: Tensor,
    got: Any,
    *,
    rank: int | None = None,
    mistakes: Mapping[str, Any] | None = None,
    before: Tensor | None = None,
) -> Judgement:
    """`got` is a tensor with the shape, dtype and values of `expected`. A mistake may have a list of wrong values.

    before: what stood there, if it was to be changed in place; a value that stayed is then called unchanged.
    """
    pair = ComparedTensors(expected, got)
    if is_close(expected, got):
        return Judgement(ok=True, message=Words.of(what), rank=rank, pair=pair)
    known = tuple(key for key, wrong in (mistakes or {}).items() if _is_mistake(wrong, expected, got))
    says = describe_tensor(Words.of(what), expected, got, before)
    return Judgement(ok=False, message=says, rank=rank, mistakes=known, pair=pair)


def expect_number(
    what: Words | str,
    expected: float,
    got: float,
    *,
    rank: int | None = None,
    mistakes: Mapping[str, float] | None = None,
) -> Judgement:
    """`got` is a number as close to `expected` as one of a float64 tensor has to be."""
    known = {key: _number(value) for key, value in (mistakes or {}).items()}
    return expect_tensor(what, _number(expected), _number(got), rank=rank, mistakes=known)


def _number(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


def is_silent(world: JudgedWorld) -> bool:
    """A rank alone that sends nothing, which is as good: there is nobody to ask."""
    return world.size == 1 and not world.logs[0].events


def expect_tensors(
    what: Words,
    expected: Mapping[str, Tensor],
    got: Any,
    *,
    rank: int | None = None,
    mistakes: Mapping[str, Named | Sequence[Named]] | None = None,
    before: Named | None = None,
) -> Iterator[Judgement]:
    """The same for named tensors; `what` has braces for the name, and each mistake maps names too, or lists such."""
    given, stood = got if isinstance(got, Mapping) else {}, before or {}
    known = {key: [wrong] if isinstance(wrong, Mapping) else wrong for key, wrong in (mistakes or {}).items()}
    for name, tensor in expected.items():
        wrong = {key: [values[name] for values in several] for key, several in known.items()}
        yield expect_tensor(
            what.format(name), tensor, given.get(name), rank=rank, mistakes=wrong, before=stood.get(name)
        )


def expect_equal(
    what: Words | str,
    expected: Any,
    got: Any,
    *,
    rank: int | None = None,
    mistakes: Mapping[str, Any] | None = None,
) -> Judgement:
    """`got == expected`, for numbers, strings, and lists of them. 3 and 3.0 and True are not the same."""
    if type(got) is type(expected) and got == expected:
        return Judgement(ok=True, message=Words.of(what), rank=rank)
    known = tuple(k for k, wrong in (mistakes or {}).items() if type(got) is type(wrong) and got == wrong)
    return Judgement(ok=False, message=describe_difference(Words.of(what), expected, got), rank=rank, mistakes=known)


def expect(ok: bool, en: str, zh: str, *, rank: int | None = None, mistakes: Keys = ()) -> Judgement:
    """Anything else; the two sentences say what is wrong if `ok` is false."""
    return Judgement(ok=bool(ok), message=Words(en=en, zh=zh), rank=rank, mistakes=() if ok else tuple(mistakes))


def expect_ops(
    world: JudgedWorld, op: str, count: int, *, mistakes: Mapping[str, int] | None = None
) -> Iterator[Judgement]:
    """Every rank issues `op` exactly `count` times. mistakes: key to the number of times that this mistake gives."""
    what = Words(en="the number of {} calls", zh="{} 的调用次数").format(op)
    for rank, log in enumerate(world.logs):
        yield expect_equal(what, count, log.count(op), rank=rank, mistakes=mistakes)


def expect_only(world: JudgedWorld, ops: Sequence[str], *, mistakes: Keys = ()) -> Iterator[Judgement]:
    """No rank issues any other operation than these."""
    for rank, log in enumerate(world.logs):
        others = [op for op in log.ops() if op not in ops]
        needed = " and ".join(ops) + " only" if ops else "no communication"
        en = f"it calls {', '.join(others)}, and this task needs {needed}"
        zh = f"调用了 {'、'.join(others)}，而本题只需要 {'、'.join(ops) or '零通信'}"
        yield expect(not others, en, zh, rank=rank, mistakes=mistakes)


def expect_payload(
    world: JudgedWorld,
    expected: int | Sequence[int],
    op: str | None = None,
    *,
    mistakes: Mapping[str, int] | None = None,
) -> Iterator[Judgement]:
    """Bytes that each rank hands to `op` (None: to all operations): one number for all, or one a rank."""
    per_rank = [expected] * world.size if isinstance(expected, int) else list(expected)
    for rank, (log, num_bytes) in enumerate(zip(world.logs, per_rank, strict=True)):
        given = log.payload_bytes(op)
        known = tuple(key for key, wrong in (mistakes or {}).items() if given == wrong)
        en = f"{op or 'the whole task'} moves {format_bytes(given)}, expected {format_bytes(num_bytes)}"
        zh = f"{op or '总共'}传输了 {format_bytes(given)}，应为 {format_bytes(num_bytes)}"
        yield expect(given == num_bytes, en, zh, rank=rank, mistakes=known)


def _is_mistake(wrong: Any, expected: Tensor, got: Any) -> bool:
    """Whether `got` is what this mistake gives; one that gives the right value here tells nothing."""
    if isinstance(wrong, Sequence):
        return any(_is_mistake(one, expected, got) for one in wrong)
    if wrong is None:
        return got is None
    return is_close(wrong, got) and not is_close(expected, wrong)
