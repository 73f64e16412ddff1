"""04.scaler: dynamic loss scaling, judged by what it does over some twenty steps with overflows. Runs on one rank."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from helpers.grading.amp import LAB
from helpers.grading.drawing import Axes, Draw
from helpers.grading.kit import making
from helpers.grading.kit.judging import expect_only
from helpers.grading.kit.stories import Story, judge_story, named, number, overflow_notes, to_end, told_by
from helpers.grading.task import Finding, Task, Trial, Trouble, World

LEARNING_RATE = 0.1
OVERFLOWS = (("inf", 0), ("nan", 1), ("-inf", 2), ("inf", 2))  # the value, and the gradient in which it stands
SETTINGS = ((2.0**10, 3), (1.0, 2), (2.0**24, 4), (1000.0, 1))  # of each case: about the first scale, the interval


def make(rng: Draw, world_size: int) -> list[dict[str, Any]]:
    return [make_story(rng) for _ in range(world_size)]


def make_story(rng: Draw) -> dict[str, Any]:
    """Growth; an overflow short of the next growth, twice; two growths in a row; numbers whose squares overflow."""
    scale, interval = SETTINGS[rng.case.number]
    shapes = [(rng.integer(3, 5),), (2, 3), (rng.integer(2, 4),)]
    order = [OVERFLOWS[i] for i in torch.randperm(len(OVERFLOWS), generator=rng)]
    good = [None] * interval
    plan = [*good, order[0], *good[1:], order[1], *good, order[2], None, order[3], *good, *good, None]
    steps = [drawn_gradients(rng, shapes, overflow) for overflow in plan]
    dtype = steps[0][0].dtype
    steps[-1] = [gradient * torch.finfo(dtype).max ** 0.55 for gradient in steps[-1]]
    unused = rng.integer(0, len(shapes))
    for gradients in steps:
        gradients.insert(unused, None)
    shapes.insert(unused, (2,))
    weights = [rng.tensor(*shape) for shape in shapes]
    scale *= 2.0 ** rng.integer(0, 3) if rng.case.number == 0 else 1.0
    return {"scale": scale, "interval": interval, "weights": weights, "steps": steps}


def drawn_gradients(rng: Draw, shapes: Sequence[tuple[int, ...]], overflow: tuple[str, int] | None) -> list[Any]:
    """overflow: a value, and the gradient whose first or last number it is."""
    gradients = [rng.tensor(*shape) for shape in shapes]
    if overflow:
        value, place = overflow
        gradients[place][(rng.one_of(0, -1),) * gradients[place].dim()] = float(value)
    return gradients


def act(submitted, inputs: dict[str, Any], trial: Trial) -> Generator[None, None, Story]:
    return (yield from playing(submitted, inputs))


def play(make_scaler: Callable[..., Any], given: dict[str, Any]) -> Story:
    return to_end(playing(make_scaler, given))


def playing(make_scaler: Callable[..., Any], given: dict[str, Any]) -> Generator[None, None, Story]:
    """As a loop does: backward of the scaled loss, then the scaler's step. One parameter has no gradient."""
    parameters = [nn.Parameter(tensor.clone()) for tensor in given["weights"]]
    optimizer, story = making.Descent(parameters, LEARNING_RATE), []
    scaler = make_scaler(given["scale"], given["interval"])
    for gradients in given["steps"]:
        yield
        optimizer.zero_grad()
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = None if gradient is None else (gradient * scaler.scale).to(gradient.dtype)
        scaler.step(optimizer, list(parameters))
        story.append({"scale": number(scaler.scale)} | named("weights", parameters))
    return story


# -- the right one, and each known mistake ---------------------------------------------------------------------------
def not_finite(gradients: Sequence[Tensor | None]) -> bool:
    return not all(bool(torch.isfinite(gradient).all()) for gradient in gradients if gradient is not None)


def some(test: Callable[[Tensor], Tensor]) -> Callable[[Sequence[Tensor]], bool]:
    """Whether the test is true for any number of any gradient."""
    return lambda gradients: any(bool(test(gradient).any()) for gradient in gradients)


@dataclass(kw_only=True)
class Planted:
    """The task's answer with one mistake; none if all stays as it is. Called as the learner's class is."""

    sees: Callable[[Sequence[Tensor]], bool] = not_finite
    keeps_flag: bool = False
    skips: bool = True
    unscales: Callable[[Planted, Tensor], Tensor] | None = lambda self, gradient: gradient / self.scale
    unscales_late: bool = False  # with the scale of the next step
    backoff: float = 0.5
    forgets: tuple[str, ...] = ("overflow", "growth")  # after which the count of good steps starts anew
    counts_overflow: bool = False
    grows: Callable[[Planted], bool] = lambda self: self.good_steps == self.interval
    flag: bool = field(default=False, init=False)

    def __call__(self, scale: float, interval: int) -> Planted:
        self.scale, self.interval, self.good_steps, self.flag = scale, interval, 0, False
        return self

    def step(self, optimizer: making.Descent, parameters: Sequence[nn.Parameter]) -> None:
        if not self.unscales_late:
            self._unscale(parameters)
        self.flag = self.sees([p.grad for p in parameters if p.grad is not None]) or (self.keeps_flag and self.flag)
        if self.unscales_late:
            self._adapt()
            self._unscale(parameters)
        if not (self.flag and self.skips):
            optimizer.step()
        if not self.unscales_late:
            self._adapt()

    def _unscale(self, parameters: Sequence[nn.Parameter]) -> None:
        for parameter in parameters:
            if parameter.grad is not None and self.unscales:
                parameter.grad = self.unscales(self, parameter.grad)

    def _adapt(self) -> None:
        if self.flag:
            self.scale *= self.backoff
            self.good_steps = 0 if "overflow" in self.forgets else self.good_steps + self.counts_overflow
            return
        self.good_steps += 1
        if self.grows(self):
            self.scale *= 2.0
            self.good_steps = 0 if "growth" in self.forgets else self.good_steps


def planted() -> dict[str, list[Planted]]:
    kept = [("growth",), ()]
    return {
        "never_skips": [Planted(skips=False)],
        "first_gradient_checked": [Planted(sees=lambda gradients: not_finite(gradients[:1]))],
        "flag_overwritten": [Planted(sees=lambda gradients: not_finite(gradients[-1:]))],
        "nan_missed": [Planted(sees=some(torch.isinf))],
        "inf_missed": [Planted(sees=some(torch.isnan))],
        "inf_compared": [Planted(sees=some(lambda gradient: gradient == torch.inf))],
        "squares_overflow": [Planted(sees=lambda gradients: not_finite([sum(g.square().sum() for g in gradients)]))],
        "flag_kept": [Planted(keeps_flag=True)],
        "not_unscaled": [Planted(unscales=None)],
        "multiplied": [Planted(unscales=lambda self, gradient: gradient * self.scale)],
        "unscaled_with_new_scale": [Planted(unscales_late=True)],
        "backoff_doubles": [Planted(backoff=2.0)],
        "never_backs_off": [Planted(backoff=1.0), Planted(backoff=1.0, forgets=("growth",))],
        "grows_every_step": [Planted(grows=lambda self: True)],
        "never_grows": [Planted(grows=lambda self: False)],
        "interval_off_by_one": [
            Planted(grows=lambda self: self.good_steps > self.interval),
            Planted(grows=lambda self: self.good_steps == self.interval - 1),
        ],
        "overflow_keeps_count": [
            *(Planted(forgets=one, counts_overflow=also) for one in kept[:1] for also in (False, True)),
            *(Planted(forgets=(), grows=each_interval, counts_overflow=also) for also in (False, True)),
        ],
        "growth_keeps_count": [
            Planted(forgets=("overflow",)),
            Planted(forgets=("overflow",), grows=lambda self: self.good_steps >= self.interval),
        ],
    }


def each_interval(scaler: Planted) -> bool:
    return scaler.good_steps % scaler.interval == 0


def judge(world: World) -> Iterator[Finding]:
    given = world.inputs[0]
    known = told_by(lambda one: play(one, given), planted())
    notes = overflow_notes([not_finite(gradients) for gradients in given["steps"]])
    yield from judge_story(play(Planted(), given), world.outputs[0], known, notes=notes)
    yield from expect_only(world, [])


def recognise(trouble: Trouble) -> list[str]:
    return ["gradient_missing"] if trouble.kind == "exception" and "NoneType" in trouble.text else []


SCALER = Task(
    key="04.scaler",
    signature="LossScaler(scale, growth_interval)",
    make=make,
    act=act,
    judge=judge,
    recognise=recognise,
    hints=LAB.hints(*planted(), "gradient_missing"),
    world_sizes=(1,),
    axes=Axes(dtypes=("float32", "float64"), layouts=("contiguous", "transposed"), calls=len(SETTINGS)),
)
