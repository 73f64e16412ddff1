"""A Scene as something that a notebook shows: SVG for live views, PNG for saved ones, a short text for tests."""

from __future__ import annotations

import base64

from helpers.draw.png import to_png
from helpers.draw.scene import Scene
from helpers.draw.svg import to_svg

_LARGEST_SVG = 100_000  # bytes; above this a saved notebook keeps the PNG only


class Picture:
    """What `picture` returns. Its text is the title and never changes with the numbers in the picture."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self._bundle: dict[str, str] | None = None

    def __repr__(self) -> str:
        return f"[picture] {self.scene.title}"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        if self._bundle is None:
            svg = to_svg(self.scene)
            self._bundle = {"text/plain": repr(self), "image/png": base64.b64encode(to_png(self.scene)).decode()}
            self._bundle |= {"image/svg+xml": svg} if len(svg) <= _LARGEST_SVG else {}
        return dict(self._bundle)


def picture(scene: Scene) -> Picture:
    """Show this as the last expression of a cell. ValueError when given something else than a Scene."""
    if not isinstance(scene, Scene):
        raise ValueError(f"picture got a {type(scene).__name__}; give a Scene, such as timeline_scene(timeline)")
    return Picture(scene)
