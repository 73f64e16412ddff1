"""Provides ZeroExplorer, which walks through one training step at each ZeRO stage, number by number.

ZeRO shards the optimizer state (stage 1), also the gradients (2) and also the parameters (3) over the ranks. The small
model has a few numbers, which are all shown. Below it stand the bytes that a rank of a model of real size stores and
sends at each stage. Chapter 08 uses it.

Explorer, the base class, shows `sentence`, `scene` (a picture as plain data) and `rows` (a table), and computes them
anew whenever a dial changes. A ValueError in one of them becomes a message instead of the picture. A saved notebook
keeps TEXT and a picture. SteppedExplorer adds buttons and a slider `step`, from 1 to `num_steps`.
"""

from __future__ import annotations

from helpers.draw.chapters.zero import StageBar, zero_scene
from helpers.draw.scene import Scene
from helpers.learner.words import book
from helpers.predict.by_hand.zero_steps import (
    BYTES,
    LAYERS,
    NUMBERS,
    RANKS,
    STAGES,
    ZeroStep,
    seconds,
    sent_bytes,
    zero_steps,
)
from helpers.predict.memory.states import model_states
from helpers.quantities import costs
from helpers.quantities.units import format_bytes, format_seconds
from helpers.records import MemoryBreakdown
from helpers.specs import LINKS, Plan
from helpers.widgets.controls import choice, dial
from helpers.widgets.explorer import Rows, SteppedExplorer

# Values of the dials: billions of parameters, and numbers of ranks.
BILLIONS = (0.125, 0.35, 1.5, 7.5, 13, 70, 175)
WORLDS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
words = book("zero")  # what a reader sees, by name, in the learner's language: learner/words/zero.yaml


class ZeroExplorer(SteppedExplorer):
    """One training step with ZeRO. Without a front end: `.stage.value, .step.value = 3, 5`, then `.text`.

    Dials: stage (0 to 3), parameters and ranks of the model of real size (mixed precision: 2 + 2 + 12 bytes
    per parameter), link (a name of `specs.LINKS`). step: 1 is before the training step, num_steps after it.
    Raises ValueError for a stage other than 0 to 3.
    """

    TEXT = "[widget] ZeroExplorer: a training step at each ZeRO stage, element by element, and a real model's bytes"

    def __init__(self, stage: int = 3, *, step: int = 1) -> None:
        # The texts named as tooltips say in a few words what each dial means.
        stages = [(words(f"stage.{number}"), number) for number in STAGES]
        self.stage = choice(stages, stage, words("stage.stage"), tooltip=words("stage.what"))
        sizes = [(words("billion", number=number), number * 1e9) for number in BILLIONS]
        self.parameters = dial(sizes, 7.5e9, words("parameters"), tooltip=words("of_model"))
        self.ranks = dial(WORLDS, 64, words("ranks"), tooltip=words("train"))
        self.link = dial(tuple(LINKS), "100 Gb/s", words("link"), tooltip=words("between"))
        super().__init__((self.stage, self.parameters, self.ranks, self.link))
        self.step.value = step

    @property
    def num_steps(self) -> int:
        """The last value of the slider `step`."""
        return len(zero_steps(self.stage.value))

    @property
    def shown_step(self) -> ZeroStep:
        """The step that is drawn."""
        return zero_steps(self.stage.value)[self.step.value - 1]

    def states(self, stage: int) -> MemoryBreakdown:
        """What a rank of the real model stores between steps."""
        return model_states(int(self.parameters.value), Plan(dp=self.ranks.value, zero=stage))

    def sent_bytes(self, stage: int) -> float:
        """Bytes that a rank of the real model sends per step."""
        return sent_bytes(stage, self.parameters.value, self.ranks.value)

    def seconds(self, stage: int) -> float:
        """Seconds that sending these bytes takes on the link, without overlap with computation."""
        return seconds(stage, self.parameters.value, self.ranks.value, LINKS[self.link.value])

    @property
    def scene(self) -> Scene:
        """The numbers of every rank in this step, and below them the real model's memory at each stage."""
        steps = {"step": self.step.value, "num_steps": self.num_steps}
        title = words("title", name=_name(self.stage.value), **steps, where=self._phase_text)
        what = words("bars", **self._model, link=self.link.value)
        return zero_scene(self.shown_step, title=title, bars=list(map(self._bar, STAGES)), bars_title=what)

    def _bar(self, stage: int) -> StageBar:
        """The memory of a rank of the real model at a stage, with what it sends."""
        sends = words("sends", size=format_bytes(self.sent_bytes(stage)), time=self._time(stage))
        return StageBar(name=_name(stage), memory=self.states(stage), words=sends, chosen=stage == self.stage.value)

    @property
    def sentence(self) -> str:
        """What happens in this step, what it sends, and what a rank of the real model stores."""
        step, stage = self.shown_step, self.stage.value
        most = max(each.total_bytes(0) for each in zero_steps(stage))  # of rank 0; all ranks store equally much
        here = {"now": step.total_bytes(0), "most": most, "real": format_bytes(self.states(stage).total)}
        # deed: what the ranks do, such as an all-gather.
        action = {"deed": words(f"deed.{step.action}"), "message": self._message_text if step.message else ""}
        return words("sentence", where=self._phase_text.capitalize(), **action, **here, **self._model)

    @property
    def rows(self) -> Rows:
        """One row per stage, for the real model."""
        return [self._row(stage) for stage in STAGES]

    def _row(self, stage: int) -> dict[str, str]:
        """A stage, as the cells of the table."""
        states = self.states(stage)
        kinds = ("parameters", "gradients", "optimizer", "total")
        sizes = {kind: format_bytes(getattr(states, kind)) for kind in kinds}
        sent = {"sends": format_bytes(self.sent_bytes(stage)), "time": self._time(stage)}
        return {words(f"column.{name}"): cell for name, cell in ({"stage": _name(stage)} | sizes | sent).items()}

    def _time(self, stage: int) -> str:
        """The time with one decimal, so that stages that send the same bytes show the same time despite latencies."""
        number, unit = format_seconds(self.seconds(stage)).split()
        return f"{float(number.replace(',', '')):,.1f} {unit}"

    @property
    def _model(self) -> dict[str, object]:
        """The size of the real model and its ranks, as the texts need them."""
        return {"parameters": self.parameters.label, "ranks": self.ranks.value}

    @property
    def _phase_text(self) -> str:
        """Where in the training step this is: "forward", and the layer where it is about one layer."""
        step, phase = self.shown_step, words(f"phase.{self.shown_step.phase}")
        return words("where", phase=phase, layer=step.layers) if len(step.layers) == 1 else phase

    @property
    def _message_text(self) -> str:
        """What this step of the small model sends."""
        message, stage, number = self.shown_step.message, self.stage.value, NUMBERS * len(LAYERS)
        # BYTES: of one number of this kind. `share`: the share of all numbers that the message carries.
        buffer = BYTES[message.kind] * message.share * number
        now = costs.sent_bytes(message.op, buffer, RANKS)
        # What is sent until this step, and in the whole training step (None).
        so_far, whole = (sent_bytes(stage, number, RANKS, until) for until in (self.step.value, None))
        return words("message", op=message.op.replace("_", "-"), now=now, so_far=so_far, whole=whole)


def _name(stage: int) -> str:
    """The name of a stage, such as "ZeRO-1"."""
    return words(f"name.{stage}")
