"""Several pictures in one, one below the other: a saved notebook keeps a single picture of a result."""

from __future__ import annotations

from dataclasses import replace

from helpers.draw.scene import Label, Line, Rect, Scene

_GAP = 22.0


def stacked_scene(*scenes: Scene, title: str) -> Scene:
    """One Scene of all, each under its own title. title: what a reader is told who cannot see it.

    ValueError without a scene.
    """
    if not scenes:
        raise ValueError("stacked_scene got no scene: give at least one")
    items, top = [], 0.0
    for scene in scenes:
        items += [_lowered(item, top) for item in scene.items]
        top += scene.height + _GAP
    summary = " ".join(f"{scene.title}: {scene.summary}" for scene in scenes)
    width = max(scene.width for scene in scenes)
    return Scene(width=width, height=top - _GAP, title=title, summary=summary, items=items)


def _lowered(item: Rect | Label | Line, by: float) -> Rect | Label | Line:
    if isinstance(item, Line):
        return replace(item, y1=item.y1 + by, y2=item.y2 + by)
    return replace(item, y=item.y + by)
