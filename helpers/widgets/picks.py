"""A picture of an explorer whose parts can be chosen with the mouse or the keyboard."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anywidget


class Picks(anywidget.AnyWidget):
    """Shows nothing: it tells Python which `pick` of a Rect was chosen in the explorer in which it stands.

    Without a front end nobody chooses. chosen: is called with the Rect's `pick`.
    """

    _esm = Path(__file__).parent / "static" / "picks.js"
    _css = """.rr-explorer [data-pick] {pointer-events: all; cursor: pointer; outline: none}
.rr-explorer [data-pick]:focus-visible {outline: 3px solid var(--jp-brand-color1, #0072b2); outline-offset: 1px}"""

    def __init__(self, chosen: Callable[[str], None]) -> None:
        super().__init__()
        self._chosen = chosen
        self.on_msg(self._hear)

    def _hear(self, widget: object, content: Any, buffers: object) -> None:
        if isinstance(content, dict) and isinstance(content.get("pick"), str):
            self._chosen(content["pick"])
