"""Provides TimelineView, which shows a TimelineExplorer in a notebook: all that happens there is JavaScript."""

from __future__ import annotations

import anywidget
import traitlets

from helpers.draw import Scene
from helpers.draw.picture import STYLE
from helpers.widgets.timeline_explorer import SHARED, TimelineExplorer
from helpers.widgets.view import STATIC, SavedWidget


class TimelineView(SavedWidget, anywidget.AnyWidget):
    """A TimelineExplorer in a notebook. Both have the same play head, rank and zoom."""

    TEXT = TimelineExplorer.TEXT
    # anywidget takes one JavaScript module, so the two files are joined.
    _esm = "\n".join((STATIC / f"timeline_{name}.js").read_text(encoding="utf-8") for name in ("picture", "explorer"))
    _css = STYLE + (STATIC / "timeline_explorer.css").read_text(encoding="utf-8")

    # sync=True: the browser has each of these too, and both sides see a change.
    data = traitlets.Dict().tag(sync=True)
    error = traitlets.Unicode().tag(sync=True)
    playhead = traitlets.Float(0.0).tag(sync=True)
    selected_rank = traitlets.Int(0).tag(sync=True)
    zoom = traitlets.Tuple(traitlets.Float(), traitlets.Float(), default_value=(0.0, 0.0)).tag(sync=True)

    def __init__(self, explorer: TimelineExplorer) -> None:
        self.explorer = explorer
        shared = {name: getattr(explorer, name) for name in SHARED}
        super().__init__(data=explorer.data, error=explorer.error, **shared)
        self.observe(lambda change: setattr(explorer, change.name, change.new), names=SHARED)

    @property
    def saved(self) -> Scene:
        """What a saved notebook keeps."""
        return self.explorer.saved
