"""The dials of chapter 08: one training step at each stage of ZeRO, number by number, and a real model's bytes."""

from __future__ import annotations

from helpers import costs
from helpers.draw.scene import Scene
from helpers.draw.zero import StageBar, zero_scene
from helpers.predict.states import model_states
from helpers.predict.zero_steps import BYTES, LAYERS, NUMBERS, RANKS, STAGES, ZeroStep, seconds, sent_bytes, zero_steps
from helpers.records import MemoryBreakdown
from helpers.specs import LINKS, Plan
from helpers.units import format_bytes, format_seconds
from helpers.widgets.dials import choice, dial
from helpers.widgets.explorer import Rows
from helpers.widgets.stepper import SteppedExplorer

BILLIONS = (0.125, 0.35, 1.5, 7.5, 13, 70, 175)
WORLDS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
WORDS = ("0: nothing is sharded", "1: optimizer state", "2: and gradients", "3: and parameters")
NAMES = {0: "stage 0", 1: "ZeRO-1", 2: "ZeRO-2", 3: "ZeRO-3"}


class ZeroExplorer(SteppedExplorer):
    """One training step with ZeRO. Without a front end: `.stage.value, .step.value = 3, 5`, then `.text`.

    Dials: stage (0 to 3), parameters and ranks of the model of real size (mixed precision: 2 + 2 + 12 bytes a
    parameter), link (a name of `specs.LINKS`). step: 1 is before the step, num_steps after it.
    ValueError when the stage is none of 0 to 3.
    """

    TEXT = "[widget] ZeroExplorer: a training step at each ZeRO stage, number by number, and a real model's bytes"

    def __init__(self, stage: int = 3, *, step: int = 1) -> None:
        stages = list(zip(WORDS, STAGES, strict=True))
        self.stage = choice(stages, stage, "stage", tooltip="what each rank holds only its share of")
        sizes = [(f"{number:g} billion", number * 1e9) for number in BILLIONS]
        self.parameters = dial(sizes, 7.5e9, "parameters", tooltip="of the model below, 2 + 2 + 12 bytes each")
        self.ranks = dial(WORLDS, 64, "ranks", tooltip="that train the model below, data parallel")
        self.link = dial(tuple(LINKS), "100 Gb/s", "link", tooltip="between the ranks that train the model below")
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
        title = f"{NAMES[self.stage.value]} · step {self.step.value} of {self.num_steps} · {self._where}"
        bars = [
            StageBar(
                name=NAMES[stage],
                memory=self.states(stage),
                words=f" · sends {format_bytes(self.sent(stage))}, {format_seconds(self.seconds(stage))}",
                chosen=stage == self.stage.value,
            )
            for stage in STAGES
        ]
        what = f"{self.parameters.label} parameters on {self.ranks.value} ranks, {self.link.value}"
        return zero_scene(self.shown, title=title, bars=bars, bars_title=what)

    @property
    def sentence(self) -> str:
        """What happens in this step, what it sends, and what the real model's rank holds."""
        step, stage = self.shown, self.stage.value
        most = max(one.total_bytes(0) for one in zero_steps(stage))
        sends = f" {self._message}" if step.message else ""
        here = f"A rank holds {step.total_bytes(0)} B now, {most} B at most."
        real = f"{format_bytes(self.states(stage).total)} a rank with {self.parameters.label} parameters"
        return (
            f"{self._where.capitalize()}: {step.deed}.{sends} {here} Between steps {real} on {self.ranks.value} ranks."
        )

    @property
    def rows(self) -> Rows:
        """The model of real size at each stage."""
        return [
            {
                "stage": NAMES[stage],
                "parameters": format_bytes(self.states(stage).parameters),
                "gradients": format_bytes(self.states(stage).gradients),
                "optimizer": format_bytes(self.states(stage).optimizer),
                "total": format_bytes(self.states(stage).total),
                "a rank sends": format_bytes(self.sent(stage)),
                "time": format_seconds(self.seconds(stage)),
            }
            for stage in STAGES
        ]

    @property
    def _where(self) -> str:
        step = self.shown
        return f"{step.phase}, layer {step.layers}" if len(step.layers) == 1 else step.phase

    @property
    def _message(self) -> str:
        """What this step sends, of the small model."""
        message, stage, number = self.shown.message, self.stage.value, NUMBERS * len(LAYERS)
        buffer = BYTES[message.kind] * message.share * number
        now = costs.sent_bytes(message.op, buffer, RANKS)
        so_far, whole = (sent_bytes(stage, number, RANKS, until) for until in (self.step.value, None))
        word = message.op.replace("_", "-")
        return f"The {word} makes each rank send {now:.0f} B, {so_far:.0f} of {whole:.0f} B so far."
