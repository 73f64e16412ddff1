"""A tied matrix on two ranks: what the loss shows of a forgotten exchange, and what the two copies show."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from helpers.draw.lines import lines_scene
from helpers.draw.scene import Scene
from helpers.draw.stack import stacked_scene


class Run(Protocol):
    losses: list[float]
    apart: list[float]  # the largest difference of the two copies, before the first step and after each


def tied_scene(runs: Mapping[str, Run]) -> Scene:
    """The losses of each run above, how far its copies drift apart below; steps from left to right."""
    losses = {name: list(enumerate(run.losses)) for name, run in runs.items()}
    apart = {name: list(enumerate(run.apart)) for name, run in runs.items()}
    above = lines_scene(losses, title="Loss", x_name="step", y_name="of the batch")
    title = "Largest difference between the two copies"
    below = lines_scene(apart, title=title, x_name="step", y_name="of one weight")
    return stacked_scene(above, below, title="A tied matrix, with and without the exchange")
