"""04.master: a model in 16 bits whose optimizer works on fp32 copies. Runs on one rank, a dtype a case."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from helpers.grading.amp import LAB
from helpers.grading.drawing import Axes, Draw, laid_out
from helpers.grading.kit import making
from helpers.grading.kit.judging import expect, expect_only
from helpers.grading.kit.stories import Story, judge_story, named, to_end, told_by
from helpers.grading.task import Finding, Task, Trial, Trouble, World

LEARNING_RATE = 2.0**-4
NUM_STEPS = 8
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def make(rng: Draw, world_size: int) -> list[dict[str, Any]]:
    """An update is 1/8 to 1/3 of the step between neighbours in 16 bits: it vanishes alone, several do not."""
    return [make_story(rng) for _ in range(world_size)]


def make_story(rng: Draw) -> dict[str, Any]:
    name, layout = rng.case.dtypes, rng.case.layouts
    shapes = (rng.integer(3, 5),), (2, rng.integer(2, 4)), (3,), (2,)
    weights = [laid_out((1.05 + 0.9 * torch.rand(shape, generator=rng)).to(DTYPES[name]), layout) for shape in shapes]
    signs = [torch.randint(0, 2, shape, generator=rng) * 2.0 - 1 for shape in shapes]
    spacing = torch.finfo(DTYPES[name]).eps / LEARNING_RATE
    steps: list[list[Tensor | None]] = [
        [(sign * spacing * (0.125 + 0.2 * torch.rand(sign.shape, generator=rng))).to(DTYPES[name]) for sign in signs]
        for _ in range(NUM_STEPS)
    ]
    steps[rng.integer(2, 5)][1] = steps[0][2] = None  # a layer that this batch did not use
    for step in steps:
        step[3] = None  # and one that none uses
    return {"dtype": name, "weights": weights, "steps": steps}


def act(submitted, inputs: dict[str, Any], trial: Trial) -> Generator[None, None, Story]:
    return (yield from playing(submitted, inputs))


def play(make_wrapper: Callable[..., Any], given: dict[str, Any]) -> Story:
    return to_end(playing(make_wrapper, given))


def playing(make_wrapper: Callable[..., Any], given: dict[str, Any]) -> Generator[None, None, Story]:
    """NUM_STEPS steps; gradients are added to what is there, as backward adds them."""
    weights, made = [nn.Parameter(tensor.clone()) for tensor in given["weights"]], []

    def make_optimizer(tensors: Any) -> making.Descent:
        made.append(making.Descent(tensors, LEARNING_RATE))
        return made[-1]

    wrapper, story = make_wrapper(list(weights), make_optimizer), []
    for gradients in given["steps"]:
        yield
        wrapper.zero_grad()
        for parameter, gradient in zip(weights, gradients, strict=True):
            if gradient is not None:
                gradient = gradient.to(parameter.dtype)
                parameter.grad = gradient.clone() if parameter.grad is None else parameter.grad + gradient
        wrapper.step()
        masters = given_to(made[-1], weights) | named("masters", made[-1].parameters) if made else {}
        kinds = {f"dtype {i}": str(parameter.dtype).removeprefix("torch.") for i, parameter in enumerate(weights)}
        story.append(masters | kinds | named("weights", [parameter.float() for parameter in weights]))
    return story


def given_to(optimizer: making.Descent, weights: Sequence[nn.Parameter]) -> dict[str, str]:
    """What the optimizer works on: told by identity, since a copy in 16 bits has the same numbers."""
    own = {id(parameter) for parameter in weights}
    return {"given": "the weights" if any(id(one) in own for one in optimizer.parameters) else "copies"}


# -- the right one, and each known mistake ---------------------------------------------------------------------------
@dataclass(kw_only=True)
class Planted:
    """The task's answer with one mistake; none if all stays as it is. Called as the learner's class is."""

    dtype: torch.dtype = torch.float32  # of the masters
    on: str = "copies"  # what the optimizer is given; "weights": the 16-bit weights themselves
    anew: bool = False  # masters are made from the weights at every step
    gradients: str = "cast"  # "none": masters get no gradient; "stale": one that is missing is left as it was
    back: str = "copied"  # "never"; "in 32 bits": the weights become the masters
    zeroed: str = "weights"  # "masters": only those; "never"

    def __call__(self, weights: Sequence[nn.Parameter], make_optimizer: Callable[..., Any]) -> Planted:
        self.weights, self.make_optimizer = list(weights), make_optimizer
        self._make()
        return self

    def _make(self) -> None:
        copies = [parameter.detach().to(self.dtype, copy=True) for parameter in self.weights]
        self.masters = copies if self.on == "copies" else self.weights
        self.optimizer = self.make_optimizer(self.masters)

    def zero_grad(self) -> None:
        if self.zeroed == "weights":
            making.Descent(self.weights, 0.0).zero_grad()

    @torch.no_grad()
    def step(self) -> None:
        if self.anew:
            self._make()
        for parameter, master in zip(self.weights, self.masters, strict=True):
            if self.on == "copies" and self.gradients != "none":
                stale = master.grad if self.gradients == "stale" else None
                master.grad = stale if parameter.grad is None else parameter.grad.to(self.dtype)
        self.optimizer.step()
        for parameter, master in zip(self.weights, self.masters, strict=True):
            if self.back == "copied" and parameter is not master:
                parameter.copy_(master)
            elif self.back == "in 32 bits":
                parameter.data = master.detach().clone()


def planted(dtype: torch.dtype) -> dict[str, list[Planted]]:
    return {
        "optimizer_on_weights": [Planted(on="weights"), Planted(on="weights", back="never")],
        "masters_in_16_bits": [Planted(dtype=dtype)],
        "masters_made_anew": [Planted(anew=True)],
        "gradients_not_copied": [Planted(gradients="none"), Planted(gradients="none", back="never")],
        "stale_gradient": [Planted(gradients="stale")],
        "not_copied_back": [Planted(back="never")],
        "weights_in_32_bits": [Planted(back="in 32 bits")],
        "zeroes_masters_only": [Planted(zeroed="never")],
    }


def judge(world: World) -> Iterator[Finding]:
    given, got = world.inputs[0], world.outputs[0]
    made = isinstance(got, list) and all(isinstance(step, dict) and "masters 0" in step for step in got)
    yield expect(made, "make_optimizer is never called", "没有调用 make_optimizer", mistakes=["no_optimizer"])
    if made:
        known = told_by(lambda one: play(one, given), planted(DTYPES[given["dtype"]]))
        yield from judge_story(play(Planted(), given), got, known)
    yield from expect_only(world, [])


REFUSED = {  # by torch, in words that change with its version
    "assign a gradient with dtype": "gradients_not_cast",
    "assigned grad has data of a different type": "gradients_not_cast",
    "in-place operation": "no_grad_forgotten",
    "NoneType": "gradient_missing",
}


def recognise(trouble: Trouble) -> list[str]:
    if trouble.kind != "exception":
        return []
    return list(dict.fromkeys(key for text, key in REFUSED.items() if text in trouble.text))


MASTER = Task(
    key="04.master",
    signature="MasterWeights(parameters, make_optimizer)",
    make=make,
    act=act,
    judge=judge,
    recognise=recognise,
    hints=LAB.hints(*planted(torch.float16), "no_optimizer", *REFUSED.values()),
    world_sizes=(1,),
    axes=Axes(dtypes=("bfloat16", "float16"), layouts=("contiguous", "transposed")),
)
