"""What several steps leave behind: the right story, the learner's, and the story that each known mistake tells.

A story is a list of steps, a step maps names to numbers, texts and tensors: {"scale": 1024.0, "weights 0": tensor}.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from helpers.grading.kit.comparisons import expect, expect_equal, expect_tensor
from helpers.grading.task import Judgement
from helpers.learner.words import Words

_EXPLAINED: ContextVar[bool] = ContextVar("explained", default=True)
History = Sequence[Mapping[str, Any]]
WrongHistories = Callable[[], Mapping[str, Sequence[History]]]
VALUE_NAMES = {
    "scale": Words(en="the scale after step {1}", zh="第 {1} 步后的 scale "),
    "weights": Words(en="weights[{0}] after step {1}", zh="第 {1} 步后的 weights[{0}] "),
    "given": Words(en="what the optimizer works on in step {1}", zh="第 {1} 步中 optimizer 更新的对象"),
    "masters": Words(en="the master of weights[{0}] after step {1}", zh="第 {1} 步后 weights[{0}] 的主权重"),
    "dtype": Words(en="the dtype of weights[{0}] after step {1}", zh="第 {1} 步后 weights[{0}] 的类型"),
    "parameter": Words(en="the parameter {0} after step {1}", zh="第 {1} 步后的参数 {0} "),
}


def judge_history(
    right: History, got: Any, wrong: WrongHistories, *, notes: Sequence[Words] = (), rank: int | None = None
) -> Iterator[Judgement]:
    """One Finding a value, up to the first step that is not right: what follows is its consequence.

    wrong: asked only where needed, gives the key of a hint to the stories that this mistake tells. A mistake is named
    if one of them is the learner's to the end. notes: said behind the name of a value, one a step.
    """
    is_story = isinstance(got, list) and len(got) == len(right) and all(isinstance(step, Mapping) for step in got)
    yield expect(is_story, "the steps did not all happen", "没有走完所有步骤", rank=rank)
    if not is_story:
        return
    bad = next((n for n, pair in enumerate(zip(right, got, strict=True)) if not _same_step(*pair)), len(right))
    told = wrong() if bad < len(right) and _EXPLAINED.get() else {}
    known = _told(told, got)
    for number, (step, said) in enumerate(zip(right[: bad + 1], got, strict=False), 1):
        for name, value in step.items():
            finding = compare_value(value_name(name, number, notes), value, said.get(name), rank)
            yield finding if finding.ok else dataclasses.replace(finding, mistakes=known)


def value_name(name: str, step: int, notes: Sequence[Words] = ()) -> Words:
    """ "weights 0" as the words for it, with the note of that step."""
    kind, _, place = name.partition(" ")
    said = VALUE_NAMES[kind].format(place, step)
    note = notes[step - 1] if notes else Words.of("")
    return Words(en=said.en + note.en, zh=said.zh.rstrip() + note.zh if note.zh else said.zh)


def overflow_notes(where: Sequence[Sequence[int] | bool]) -> list[Words]:
    """For each step, in which steps so far a gradient overflowed; a list names the ranks on which it did."""
    en, zh, notes = [], [], []
    for step, ranks in enumerate(where, 1):
        if ranks:
            on = [str(rank) for rank in ranks] if isinstance(ranks, Sequence) else []
            en.append(f"step {step}" + (f" on rank{'s' * (len(on) > 1)} {' and '.join(on)}" if on else ""))
            zh.append(f"第 {step} 步" + (f" rank {'、'.join(on)}" if on else ""))
        said = Words(en=f" (overflow in {', '.join(en)})", zh=f"（{'，'.join(zh)}溢出）")
        notes.append(said if en else Words.of(""))
    return notes


def compare_value(name: Words, right: Any, got: Any, rank: int | None = None) -> Judgement:
    """Numbers may be tensors of one number; tensors are compared as the course does."""
    if isinstance(right, Tensor):
        return expect_tensor(name, right, got, rank=rank)
    return expect_equal(name, right, as_number(got) if isinstance(right, float) else got, rank=rank)


def as_number(value: Any) -> Any:
    """A number, also from a tensor of one, as a float that nobody can change; anything else as it is."""
    value = value.item() if isinstance(value, Tensor) and value.numel() == 1 else value
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _same_step(right: Mapping[str, Any], got: Mapping[str, Any]) -> bool:
    return all(compare_value(value_name(name, 1), value, got.get(name)).ok for name, value in right.items())


def _told(wrong: Mapping[str, Sequence[History]], got: History) -> tuple[str, ...]:
    return tuple(key for key, stories in wrong.items() if any(is_same_history(one, got) for one in stories))


def is_same_history(story: History, got: History) -> bool:
    """Whether the learner's story begins like this one, which is not empty; here NaN equals NaN."""
    if not isinstance(got, list) or not all(isinstance(step, Mapping) for step in got):
        return False
    pairs = [(value, said.get(name)) for step, said in zip(story, got, strict=False) for name, value in step.items()]
    return bool(pairs) and all(_equal(*pair) for pair in pairs)


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        fits = isinstance(b, Tensor) and a.shape == b.shape and a.dtype == b.dtype
        return fits and torch.allclose(a, b, rtol=1e-5, atol=1e-7, equal_nan=True)
    a, b = as_number(a), as_number(b)
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-5) or (math.isnan(a) and math.isnan(b))
    return type(a) is type(b) and a == b


def run_to_end(story: Generator[None, None, Any]) -> Any:
    """What a story that stops at each step has told in the end."""
    while True:
        try:
            next(story)
        except StopIteration as end:
            return end.value


@contextmanager
def without_naming_mistakes() -> Iterator[None]:
    """Within, nobody asks which mistake it was: stories of mistakes, which take longest, are not played."""
    before = _EXPLAINED.set(False)
    try:
        yield
    finally:
        _EXPLAINED.reset(before)


def histories_of_mistakes(play: Callable[[Any], Any], planted: Mapping[str, Sequence[Any]]) -> WrongHistories:
    """The stories of planted mistakes, when they are asked for: play(one) for each."""
    return lambda: {key: [play(one) for one in several] for key, several in planted.items()}


def named_copies(kind: str, tensors: Sequence[Tensor]) -> dict[str, Tensor]:
    """Copies, as {"weights 0": tensor, …}."""
    return {f"{kind} {i}": tensor.detach().clone() for i, tensor in enumerate(tensors)}
