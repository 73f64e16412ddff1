"""The dials of chapter 01: turn ranks, algorithm, size and link, and see who holds what after each step."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Any

import ipywidgets

from helpers import costs
from helpers.draw import collective_scene, to_png, to_svg
from helpers.draw.scene import Label, Scene
from helpers.predict.messages import schedule
from helpers.specs import LINKS
from helpers.units import format_bytes, format_seconds

ALGORITHMS = ("ring", "tree", "halving_doubling")
TEXT = "[widget] CollectiveExplorer: an all-reduce step by step, with dials for ranks, algorithm, size and link"


class CollectiveExplorer(ipywidgets.VBox):
    """An all-reduce as a table of chunks, with what it costs. Without a front end: `.ranks.value = 8`, then `.html`.

    ranks: 2 to 8. algorithm: ring, tree or halving_doubling. size: bytes of the tensor. link: a name of `specs.LINKS`.
    """

    def __init__(self) -> None:
        self.ranks = ipywidgets.IntSlider(value=4, min=2, max=8, description="ranks")
        self.algorithm = ipywidgets.Dropdown(options=ALGORITHMS, description="algorithm")
        self.size = ipywidgets.FloatLogSlider(
            value=4e7, base=10, min=3, max=10, step=0.1, description="bytes", readout_format=".1e"
        )
        self.link = ipywidgets.Dropdown(options=tuple(LINKS), value="10 Gb/s", description="link")
        self.html = ipywidgets.HTML()
        self.dials = (self.ranks, self.algorithm, self.size, self.link)
        for dial in self.dials:
            dial.observe(self._draw, names="value")
        super().__init__([ipywidgets.HBox(self.dials[:2]), ipywidgets.HBox(self.dials[2:]), self.html])
        self._draw()

    @property
    def scene(self) -> Scene:
        """The picture of the dials as they stand, with the sentence below it."""
        plan = schedule("all_reduce", self.ranks.value, self.algorithm.value)
        title = f"All-reduce on {plan.world_size} ranks: {plan.algorithm.replace('_', '-')}, {plan.num_steps} steps"
        table = collective_scene(list(plan.replay()), title)
        line = Label(x=14, y=table.height + 6, text=self.sentence, size=12)
        return replace(
            table, height=table.height + 22, items=(*table.items, line), summary=f"{table.summary} {line.text}"
        )

    @property
    def sentence(self) -> str:
        """Bytes, messages and seconds of the dials as they stand, and which algorithm would be the fastest."""
        size, n, by = self.size.value, self.ranks.value, self.algorithm.value
        link = LINKS[self.link.value]
        sent = format_bytes(costs.sent_bytes("all_reduce", size, n, by))
        took = format_seconds(costs.seconds("all_reduce", size, n, link, by))
        waits = format_seconds(costs.rounds("all_reduce", n, by) * link.latency)
        best = costs.fastest("all_reduce", size, n, link).replace("_", "-")
        return (
            f"{format_bytes(size)} a rank. The busiest rank sends {sent}. Predicted {took}, latency {waits} of it. "
            f"Fastest here: {best}."
        )

    def _draw(self, change: object = None) -> None:
        self.html.value = to_svg(self.scene)

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        shown = super()._repr_mimebundle_(**kwargs) or {}
        bundle = dict(shown[0] if isinstance(shown, tuple) else shown)
        return bundle | {"text/plain": TEXT, "image/png": base64.b64encode(to_png(self.scene)).decode()}
