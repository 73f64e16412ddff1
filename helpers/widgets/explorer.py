"""What every explorer shares: dials above, a sentence and a picture below, and a PNG for the saved notebook."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from typing import Any

import ipywidgets

from helpers.draw import to_png, to_svg
from helpers.draw.scene import Scene


class Explorer(ipywidgets.VBox):
    """Dials on a Scene. A subclass makes its dials, then calls this constructor, and has `scene`, `sentence`, `TEXT`.

    Works without a front end: set `.value` of a dial, then read `.sentence`, `.scene` or `.html.value`.
    """

    TEXT = ""  # what a saved notebook and a test see: short, and the same whatever the dials say
    scene: Scene
    sentence: str

    def __init__(self, dials: Sequence[ipywidgets.Widget]) -> None:
        self.dials = tuple(dials)
        self.html = ipywidgets.HTML()
        for dial in self.dials:
            dial.style = {"description_width": "initial"}
            dial.observe(self._draw, names="value")
        row = ipywidgets.HBox(self.dials, layout=ipywidgets.Layout(flex_flow="row wrap"))
        super().__init__([row, self.html])
        self._draw()

    def _draw(self, change: object = None) -> None:
        style = "font-size:15px;margin:6px 14px"
        self.html.value = f'<p style="{style}" aria-live="polite">{escape(self.sentence)}</p>{to_svg(self.scene)}'

    def __repr__(self) -> str:
        return self.TEXT

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        shown = super()._repr_mimebundle_(**kwargs) or {}
        bundle = dict(shown[0] if isinstance(shown, tuple) else shown)
        return bundle | {"text/plain": self.TEXT, "image/png": base64.b64encode(to_png(self.scene)).decode()}
