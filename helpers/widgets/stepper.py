"""Explorers with steps: one button back, one forward, a slider, and Play. Nothing moves before somebody presses it."""

from __future__ import annotations

from collections.abc import Sequence

import ipywidgets

from helpers.draw.palette import words
from helpers.widgets.explorer import Explorer

_INTERVAL = 1200  # milliseconds a step stays: time to read its sentence


class Stepper(ipywidgets.HBox):
    """`step` is the slider, 1 to the number of steps. Play moves it in a browser; without one set `step.value`."""

    def __init__(self) -> None:
        said = {"description": words("step.step"), "tooltip": words("step.which")}
        self.step = ipywidgets.IntSlider(value=1, min=1, max=1, **said)
        self.step.style.description_width, self.step.layout.width = "initial", "270px"
        options = {"interval": _INTERVAL, "show_repeat": False, "tooltip": words("step.plays")}
        self.play = ipywidgets.Play(value=1, min=1, max=1, **options)
        ipywidgets.jslink((self.play, "value"), (self.step, "value"))
        self.play.layout.width = "96px"
        super().__init__([_button("previous", self._back), _button("next", self._forward), self.play, self.step])
        self.layout.flex_flow, self.layout.align_items = "row wrap", "center"

    def fit(self, num_steps: int) -> None:
        """Let the slider end at `num_steps`; a step beyond it becomes the last one."""
        for each in (self.play, self.step):
            each.max = max(1, num_steps)

    def _back(self, button: ipywidgets.Button) -> None:
        self.step.value = max(self.step.min, self.step.value - 1)

    def _forward(self, button: ipywidgets.Button) -> None:
        self.step.value = min(self.step.max, self.step.value + 1)


def _button(word: str, act: object) -> ipywidgets.Button:
    said = {"description": words(f"step.{word}"), "tooltip": words(f"step.the_{word}")}
    button = ipywidgets.Button(**said, layout=ipywidgets.Layout(width="80px"))
    button.on_click(act)
    return button


class SteppedExplorer(Explorer):
    """An Explorer that also has `num_steps`. `step.value` is the one to draw, counted from 1."""

    num_steps: int

    def __init__(self, dials: Sequence[ipywidgets.Widget], *, controls: Sequence[ipywidgets.Widget] = ()) -> None:
        self.stepper = Stepper()
        self.step = self.stepper.step
        self.step.observe(self._draw, names="value")
        layout = ipywidgets.Layout(flex_flow="row wrap", align_items="center", margin="4px 12px")
        super().__init__(dials, controls=[ipywidgets.HBox([*controls, self.stepper], layout=layout)])

    def _draw(self, change: object = None) -> None:
        try:
            self.stepper.fit(self.num_steps)
        except ValueError:
            pass  # a bad setting has no steps; the picture's place says why
        super()._draw(change)
