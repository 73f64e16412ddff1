"""04.order: one step with loss scaling, accumulation and clipping. The scaler is the grader's, with torch's names.

Runs on one rank. The learner's four steps are compared with four right ones; the calls tell a known mistake.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from helpers.grading.amp import LAB
from helpers.grading.drawing import Axes, Draw
from helpers.grading.kit import making
from helpers.grading.kit.judging import expect_only
from helpers.grading.kit.stories import Story, judge_story, overflow_notes, to_end, told_by
from helpers.grading.task import Finding, Task, Trial, Trouble, World

LEARNING_RATE = 0.05
EXAMPLES = 4
KINDS = ("clipped", "overflow", "small", "clipped")  # of the steps
Batches = Sequence[tuple[Tensor, Tensor]]


class Scaler:
    """Dynamic loss scaling with torch's four methods; like torch's, it refuses what is out of order.

    turn: the number of the training step, so that it can say in which one `step` was called.
    """

    def __init__(self, scale: float):
        self._scale, self._found, self._unscaled_in = scale, None, None
        self.turn, self._stepped_in, self._updated_in, self._more = 0, None, None, False

    def scale(self, loss: Tensor) -> Tensor:
        self._more = self._stepped_in is not None
        return loss * self._scale

    def get_scale(self) -> float:
        return self._scale

    def unscale_(self, optimizer: making.Descent) -> None:
        self._refuse_after_step("unscale_()")
        if self._unscaled_in not in (None, self.turn):
            raise RuntimeError("unscale_() is called, but update() was not called in the training step before")
        if self._unscaled_in is not None:
            raise RuntimeError("unscale_() has already been called on this optimizer since the last update()")
        gradients = [one.grad for one in optimizer.parameters if one.grad is not None]
        if not gradients:
            raise RuntimeError("unscale_() found no gradients: it belongs after backward()")
        for gradient in gradients:
            gradient /= self._scale
        self._found = not all(bool(gradient.isfinite().all()) for gradient in gradients)
        self._unscaled_in = self.turn

    def step(self, optimizer: making.Descent) -> None:
        self._refuse_after_step("step()")
        if self._unscaled_in is None:
            self.unscale_(optimizer)
        if not self._found:
            optimizer.step()
        self._stepped_in = self.turn

    def update(self) -> None:
        if self._found is None:
            raise RuntimeError("update() has nothing to go by: no gradients were unscaled since the last update()")
        self._scale *= 0.5 if self._found else 1.0
        self._found, self._unscaled_in, self._stepped_in, self._updated_in = None, None, None, self.turn

    def _refuse_after_step(self, what: str) -> None:
        if self._stepped_in is None:
            return
        if self._stepped_in != self.turn:
            early = "update() came before step()" if self._updated_in == self._stepped_in else "update() was not called"
            raise RuntimeError(f"{what} is called, but {early} in the training step before")
        when = "for another micro-batch after step(), without update()" if self._more else "after step()"
        raise RuntimeError(f"{what} is called {when}")


def make(rng: Draw, world_size: int) -> list[dict[str, Any]]:
    """Gradients far above max_norm, an infinity in one micro-batch, gradients far below, and far above again."""
    widths = [rng.integer(3, 5), rng.integer(3, 5), 2]
    num_batches = 1 if rng.case.sizes == "one_each" else rng.integer(2, 3)
    steps = []
    for kind in KINDS:
        size = 1e-3 if kind == "small" else 30.0
        targets = [making.normal(rng, EXAMPLES, 2).float() * size for _ in range(num_batches)]
        if kind == "overflow":
            targets[rng.integer(0, max(0, num_batches - 2))][0, 0] = math.inf
        steps.append([(making.normal(rng, EXAMPLES, widths[0]).float(), target) for target in targets])
    weights = {name: one.float() / 4 for name, one in making.weights_for(rng, making.mlp(widths)).items()}
    given = {"widths": widths, "weights": weights, "steps": steps, "max_norm": rng.one_of(1.0, 2.0, 3.5)}
    return [given | {"scale": 2.0 ** rng.integer(8, 14)} for _ in range(world_size)]


def act(submitted, inputs: dict[str, Any], trial: Trial) -> Generator[None, None, Story]:
    return (yield from playing(submitted, inputs))


def play(train_step: Callable[..., Any], given: dict[str, Any]) -> Story:
    return to_end(playing(train_step, given))


def playing(train_step: Callable[..., Any], given: dict[str, Any]) -> Generator[None, None, Story]:
    model = making.mlp(given["widths"]).float()
    model.load_state_dict(given["weights"])
    optimizer, scaler, story = making.Descent(model.parameters(), LEARNING_RATE), Scaler(given["scale"]), []
    for scaler.turn, batches in enumerate(given["steps"]):
        yield
        train_step(model, optimizer, scaler, [(x.clone(), y.clone()) for x, y in batches], given["max_norm"])
        weights = {f"parameter {name}": one.detach().clone() for name, one in model.named_parameters()}
        story.append({"scale": scaler.get_scale()} | weights)
    return story


# -- the right one, and each known mistake ---------------------------------------------------------------------------
END = ("unscale", "clip", "step", "update")


@dataclass(frozen=True, kw_only=True)
class Planted:
    """The task's answer with one mistake; none if all stays as it is. Called as the learner's function is.

    each: what happens after every micro-batch; end: what happens after all of them.
    """

    begin: tuple[str, ...] = ("zero",)
    before: tuple[str, ...] = ()
    each: tuple[str, ...] = ()
    end: tuple[str, ...] = END
    scaled: bool = True
    divided: bool = True

    def __call__(self, model: nn.Module, optimizer: Any, scaler: Scaler, batches: Batches, max_norm: float) -> None:
        does = {
            "zero": optimizer.zero_grad,
            "unscale": lambda: scaler.unscale_(optimizer),
            "clip apart": lambda: [nn.utils.clip_grad_norm_(one, max_norm) for one in model.parameters()],
            "clip values": lambda: nn.utils.clip_grad_value_(model.parameters(), max_norm),
            "clip": lambda: nn.utils.clip_grad_norm_(model.parameters(), max_norm),
            "step": lambda: scaler.step(optimizer),
            "update": scaler.update,
            "plain step": optimizer.step,
        }
        self._do(does, self.begin)
        for x, y in batches:
            self._do(does, self.before)
            loss = (model(x) - y).square().mean() / (len(batches) if self.divided else 1)
            (scaler.scale(loss) if self.scaled else loss).backward()
            self._do(does, self.each)
        self._do(does, self.end)

    @staticmethod
    def _do(does: dict[str, Callable[[], Any]], names: tuple[str, ...]) -> None:
        for name in names:
            does[name]()


def planted() -> dict[str, list[Planted]]:
    clip_first = [("clip", "step", "update"), ("clip", "unscale", "step", "update")]
    return {
        "steps_every_micro_batch": [
            Planted(each=END, end=(), divided=divided, begin=begin, before=before)
            for divided in (True, False)
            for begin, before in ((("zero",), ()), ((), ("zero",)))
        ],
        "clipped_scaled": [Planted(end=one) for one in clip_first],
        "clipped_apart": [Planted(end=("unscale", "clip apart", "step", "update"))],
        "values_clipped": [Planted(end=("unscale", "clip values", "step", "update"))],
        "not_clipped": [Planted(end=("step", "update"))],
        "update_before_step": [
            Planted(end=("unscale", "clip", "update", "step")),
            Planted(end=("unscale", "update", "clip", "step")),
        ],
        "optimizer_stepped": [
            Planted(end=("unscale", "clip", "plain step", "update")),
            Planted(end=("unscale", "clip", "plain step", "step", "update")),
            Planted(end=("unscale", "clip", "step", "plain step", "update")),
        ],
        "not_scaled": [Planted(scaled=False)],
        "not_cleared": [Planted(begin=())],
        "last_micro_batch_only": [Planted(begin=(), before=("zero",))],
        "not_divided": [Planted(divided=False)],
    }


def story_of(one: Planted, given: dict[str, Any]) -> Story:
    """A mistake that the scaler refuses tells none."""
    try:
        return play(one, given)
    except RuntimeError:
        return ()


def judge(world: World) -> Iterator[Finding]:
    given = world.inputs[0]
    known = told_by(lambda one: story_of(one, given), planted())
    notes = overflow_notes([kind == "overflow" for kind in KINDS])
    yield from judge_story(play(Planted(), given), world.outputs[0], known, notes=notes)
    yield from expect_only(world, [])


REFUSED = {
    "already been called on this optimizer": "unscaled_twice",
    "called for another micro-batch after step()": "steps_every_micro_batch",
    "called after step()": "unscaled_late",
    "update() was not called in": "update_forgotten",
    "update() came before step()": "update_before_step",
    "update() has nothing to go by": "update_before_step",
    "found no gradients": "unscaled_early",
}


def recognise(trouble: Trouble) -> list[str]:
    return [key for text, key in REFUSED.items() if trouble.kind == "exception" and text in trouble.text]


ORDER = Task(
    key="04.order",
    signature="train_step(model, optimizer, scaler, micro_batches, max_norm)",
    make=make,
    act=act,
    judge=judge,
    recognise=recognise,
    hints=LAB.hints(*planted(), *REFUSED.values()),
    world_sizes=(1,),
    axes=Axes(sizes=("uneven", "one_each")),
    keeps=("micro_batches",),
)
