"""The dials of chapter 08: one training step at each stage of ZeRO, number by number, and a real model's bytes."""

from __future__ import annotations

from helpers.draw.scene import Scene
from helpers.draw.zero import StageBar, zero_scene
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
from helpers.widgets.dials import choice, dial
from helpers.widgets.explorer import Rows
from helpers.widgets.stepper import SteppedExplorer

BILLIONS = (0.125, 0.35, 1.5, 7.5, 13, 70, 175)
WORLDS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
say = book("zero")


class ZeroExplorer(SteppedExplorer):
    """One training step with ZeRO. Without a front end: `.stage.value, .step.value = 3, 5`, then `.text`.

    Dials: stage (0 to 3), parameters and ranks of the model of real size (mixed precision: 2 + 2 + 12 bytes a
    parameter), link (a name of `specs.LINKS`). step: 1 is before the step, num_steps after it.
    ValueError when the stage is none of 0 to 3.
    """

    TEXT = "[widget] ZeroExplorer: a training step at each ZeRO stage, number by number, and a real model's bytes"

    def __init__(self, stage: int = 3, *, step: int = 1) -> None:
        stages = [(say(f"stage.{number}"), number) for number in STAGES]
        self.stage = choice(stages, stage, say("stage.stage"), tooltip=say("stage.what"))
        sizes = [(say("billion", number=number), number * 1e9) for number in BILLIONS]
        self.parameters = dial(sizes, 7.5e9, say("parameters"), tooltip=say("of_model"))
        self.ranks = dial(WORLDS, 64, say("ranks"), tooltip=say("train"))
        self.link = dial(tuple(LINKS), "100 Gb/s", say("link"), tooltip=say("between"))
        super().__init__((self.stage, self.parameters, self.ranks, self.link))
        self.step.value = step

    @property
    def num_steps(self) -> int:
        return len(zero_steps(self.stage.value))

    @property
    def shown(self) -> ZeroStep:
        """The step that is drawn."""
        return zero_steps(self.stage.value)[self.step.value - 1]

    def states(self, stage: int) -> MemoryBreakdown:
        """Bytes of a rank of the model of real size, between steps."""
        return model_states(int(self.parameters.value), Plan(dp=self.ranks.value, zero=stage))

    def sent(self, stage: int) -> float:
        """Bytes that a rank of it sends in a step."""
        return sent_bytes(stage, self.parameters.value, self.ranks.value)

    def seconds(self, stage: int) -> float:
        """Seconds that this takes on the link, nothing hidden."""
        return seconds(stage, self.parameters.value, self.ranks.value, LINKS[self.link.value])

    @property
    def scene(self) -> Scene:
        """The picture of the dials as they stand."""
        steps = {"step": self.step.value, "num_steps": self.num_steps}
        title = say("title", name=_name(self.stage.value), **steps, where=self._where)
        bars = [
            StageBar(
                name=_name(stage),
                memory=self.states(stage),
                words=say("sends", size=format_bytes(self.sent(stage)), time=self._time(stage)),
                chosen=stage == self.stage.value,
            )
            for stage in STAGES
        ]
        what = say("bars", **self._model, link=self.link.value)
        return zero_scene(self.shown, title=title, bars=bars, bars_title=what)

    @property
    def sentence(self) -> str:
        """What happens in this step, what it sends, and what the real model's rank holds."""
        step, stage = self.shown, self.stage.value
        most = max(one.total_bytes(0) for one in zero_steps(stage))
        here = {"now": step.total_bytes(0), "most": most, "real": format_bytes(self.states(stage).total)}
        said = {"deed": say(f"deed.{step.action}"), "message": self._message if step.message else ""}
        return say("sentence", where=self._where.capitalize(), **said, **here, **self._model)

    @property
    def rows(self) -> Rows:
        """The model of real size at each stage."""
        return [self._row(stage) for stage in STAGES]

    def _row(self, stage: int) -> dict[str, str]:
        held = self.states(stage)
        kinds = {kind: format_bytes(getattr(held, kind)) for kind in ("parameters", "gradients", "optimizer", "total")}
        sent = {"sends": format_bytes(self.sent(stage)), "time": self._time(stage)}
        return {say(f"column.{name}"): cell for name, cell in ({"stage": _name(stage)} | kinds | sent).items()}

    def _time(self, stage: int) -> str:
        """With one decimal: stages that send the same bytes differ by a few latencies, which is not the point."""
        number, unit = format_seconds(self.seconds(stage)).split()
        return f"{float(number.replace(',', '')):,.1f} {unit}"

    @property
    def _model(self) -> dict[str, object]:
        return {"parameters": self.parameters.label, "ranks": self.ranks.value}

    @property
    def _where(self) -> str:
        step, phase = self.shown, say(f"phase.{self.shown.phase}")
        return say("where", phase=phase, layer=step.layers) if len(step.layers) == 1 else phase

    @property
    def _message(self) -> str:
        """What this step sends, of the small model."""
        message, stage, number = self.shown.message, self.stage.value, NUMBERS * len(LAYERS)
        buffer = BYTES[message.kind] * message.share * number
        now = costs.sent_bytes(message.op, buffer, RANKS)
        so_far, whole = (sent_bytes(stage, number, RANKS, until) for until in (self.step.value, None))
        return say("message", op=message.op.replace("_", "-"), now=now, so_far=so_far, whole=whole)


def _name(stage: int) -> str:
    return say(f"name.{stage}")
