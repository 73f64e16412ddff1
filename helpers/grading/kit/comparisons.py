"""Compares what a learner's code returned and sent with what is right, and says in words how the two differ.

A task's `judge` calls the `expect_…` functions, each of which returns or yields Judgements:

    yield expect_tensor(GRADIENT.format(name), mean, got, rank=rank, mistakes={"sum_for_mean": mean * world.size})

`mistakes` maps the key of a hint to the value that this mistake would give. Where `got` equals that value, the Judgement
names the mistake. `describe_tensor` finds the sentence about a wrong tensor: its shape, the factor by which it is off, or
the index and the digit in which it differs. What was sent is judged from the communication log, never from the
learner's source text.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from helpers.grading.task import ComparedTensors, JudgedWorld, Judgement
from helpers.learner.words import Words, book
from helpers.observe.equality import TOLERANCES
from helpers.quantities.units import format_bytes

words = book("values")
NARROW = (torch.float32, torch.bfloat16, torch.float16)  # what rounding left differs least in the first
FEW = 4 * torch.finfo(torch.float32).eps  # a few roundings
CLOSE = 3  # digits in which two numbers agree before it is worth saying so
VISIBLE = 0.005  # a factor that differs less from 1 reads as 1.00


def describe_tensor(what: Words, expected: Tensor, got: Any, before: Tensor | None = None) -> Words:
    """What is wrong with `got`. before: what stood there before the call, if it was to be changed in place."""
    if not isinstance(got, Tensor):
        return words["no_tensor"].format(what=what, got=shortened(got), due=tuple(expected.shape))
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return _tell_kind(what, expected, got)
    gap = (got.double() - expected.double()).abs().nan_to_num(nan=math.inf)
    worst = int(gap.masked_fill(got == expected, 0).argmax())  # inf where inf is due is no gap
    place = [int(i) for i in torch.unravel_index(torch.tensor(worst), expected.shape)]
    values = got.flatten()[worst].item(), expected.flatten()[worst].item()
    at = words["at"].format(place) if got.numel() > 1 else Words.of("")
    told = {"what": what, "at": at} | _shown_numbers(*values)
    if bad := int((~got.isfinite() & expected.isfinite()).sum()):
        return words["not_finite" if got.numel() > 1 else "value"].format(bad=bad, all=got.numel(), **told)
    if before is not None and before.dtype == got.dtype and torch.equal(before, got):
        return words["unchanged"].format(**told)
    return _tell_values(told, expected, got, num_equal_digits(*values))


def _tell_kind(what: Words, expected: Tensor, got: Tensor) -> Words:
    kinds = {}
    if got.shape != expected.shape:
        kinds["shape"] = [str(tuple(one.shape)) for one in (got, expected)]
    if got.dtype != expected.dtype:
        kinds["dtype"] = [str(one.dtype).removeprefix("torch.") for one in (got, expected)]
    given, due = (" ".join(pair) for pair in zip(*kinds.values(), strict=True))
    return words["_and_".join(kinds)].format(what=what, got=given, due=due)


def _tell_values(told: dict[str, Any], expected: Tensor, got: Tensor, agree: int) -> Words:
    """Shape and dtype are right and every number is finite."""
    if got.numel() > 1 and not got.any():
        return words["zeros"].format(**told)
    factor = factor_of(expected, got)
    if factor is not None:
        return words["sign" if factor == -1 else "times"].format(factor=_factor(factor), **told)
    narrow = narrower_dtype(expected, got) if agree else ""
    if narrow or agree >= CLOSE:
        return words["rounded" if narrow else "digits"].format(agree=agree, dtype=narrow, **told)
    ordered = [one.double().flatten().sort().values for one in (got, expected)]
    is_moved = got.numel() > 1 and torch.allclose(*ordered, rtol=1e-10, atol=0)
    return words["order" if is_moved else "value"].format(**told)


def factor_of(expected: Tensor, got: Tensor) -> float | None:
    """By what the whole tensor is too large, if it is a multiple of the expected one and the factor can be seen."""
    a, b = expected.double().flatten(), got.double().flatten()
    if a.numel() < 2 or not a.norm() > 0:
        return None
    factor = (a @ b / (a @ a)).item()
    fits = (b - factor * a).norm() <= 1e-6 * a.norm()  # not where something is infinite
    if not fits or abs(factor) < 1e-9 or abs(factor - 1) < VISIBLE:
        return None
    return -1 if abs(factor + 1) < 1e-6 else factor


def _factor(factor: float) -> str:
    return f"{factor:.2f}" if abs(factor) >= 0.1 else f"{factor:.2g}"


def num_equal_digits(got: float, expected: float) -> int:
    """In how many digits two numbers agree: 3 for 1.00123 and 1.00099, none where the sign differs."""
    if got == expected or not got * expected > 0 or not math.isfinite(got):
        return 0
    return max(0, math.floor(-math.log10(abs(got - expected) / abs(expected))))


def _shown_numbers(got: float, expected: float) -> dict[str, str]:
    """Both with as many digits as tell them apart, six at least."""
    digits = max(6, num_equal_digits(got, expected) + 3)
    return {"got": _number_text(got, digits), "due": _number_text(expected, digits)}


def _number_text(value: float, digits: int) -> str:
    return f"{value + 0:.{digits}g}" if isinstance(value, float) else str(value)


def narrower_dtype(expected: Tensor, got: Tensor) -> str:
    """The narrower dtype that explains what came; "" for none. Of 16 bits: rounding gives exactly that. Of float32:
    every number fits in it, and a few roundings are the difference."""
    if not got.dtype.is_floating_point or torch.equal(got, got.round()):
        return ""  # whole numbers fit in every dtype
    for dtype in NARROW:
        if torch.finfo(dtype).eps > torch.finfo(got.dtype).eps and torch.equal(got, _through(dtype, got)):
            is_near = bool(((got - expected).abs() <= FEW * expected.abs().max()).all())
            rounded = _through(dtype, expected)
            is_lost = not torch.equal(rounded, expected)
            if torch.equal(got, rounded) or (dtype == torch.float32 and is_near and is_lost):
                return str(dtype).removeprefix("torch.")
    return ""


def _through(dtype: torch.dtype, tensor: Tensor) -> Tensor:
    return tensor.to(dtype).to(tensor.dtype)


def describe_difference(what: Words, expected: Any, got: Any) -> Words:
    """The same of numbers, texts and lists of them: of lists, the first place at which they part."""
    if not (isinstance(expected, list) and isinstance(got, list)):
        return Words(en="{} is {}, expected {}", zh="{}是 {}，应为 {}").format(
            what, shortened(got), shortened(expected)
        )
    place = next((i for i, pair in enumerate(zip(got, expected, strict=False)) if pair[0] != pair[1]), None)
    if place is None:
        says = Words(en="{}: there are {}, expected {}", zh="{}：共 {} 个，应为 {} 个")
        return says.format(what, len(got), len(expected))
    says = Words(en="{}: number {} is {}, expected {}", zh="{}：第 {} 个是 {}，应为 {}")
    return says.format(what, place + 1, shortened(got[place]), shortened(expected[place]))


def shortened(value: Any, room: int = 80) -> str:
    text = repr(value) if not isinstance(value, Tensor) else f"a tensor of shape {tuple(value.shape)}"
    return text if len(text) <= room else text[: room - 2] + " …"


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
