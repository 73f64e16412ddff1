"""The bubbles of GPipe and 1F1B as messages get slower: predicted as lines, what live ranks showed as dots."""

from __future__ import annotations

from collections.abc import Mapping

from helpers.draw.lines import lines_scene
from helpers.draw.scene import WIDTH, Scene
from helpers.predict.time.pipeline import simulate
from helpers.schedules import gpipe, one_f_one_b

ORDERS = {"GPipe": gpipe, "1F1B": one_f_one_b}
_POINTS = 10  # of a line, beside the one at free messages


def slow_link_scene(
    num_ranks: int,
    num_microbatches: int,
    emulated: Mapping[str, float],
    *,
    forward: float,
    backward_input: float,
    backward_weight: float,
    send: float,
    width: float = WIDTH,
) -> Scene:
    """Messages of 0 to `send` seconds. emulated: name in ORDERS -> its bubble, a share of the step, at `send`."""
    times = dict(forward=forward, backward_input=backward_input, backward_weight=backward_weight)

    def points(order) -> list[tuple[float, float]]:
        schedule = order(num_ranks, num_microbatches)
        sends = [send * number / _POINTS for number in range(_POINTS + 1)]
        return [(1e3 * one, 100 * simulate(schedule, **times, send=one).bubble_fraction) for one in sends]

    return lines_scene(
        {name: points(order) for name, order in ORDERS.items()},
        {name: [(1e3 * send, 100 * share)] for name, share in emulated.items()},
        title="The bubble as messages get slower: predicted (lines), emulated (dots)",
        x_name="one message, ms",
        y_name="bubble, % of the step",
        width=width,
    )
