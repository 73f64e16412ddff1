"""A Scene as something that a notebook shows: a PNG with its width and a description, and a short text for tests.

No SVG beside it: JupyterLab shows that as an image too, without the theme, without hover, and cut off where the window
is narrow. A PNG it shrinks, and the style of `page.py` gives it the dark theme.
"""

from __future__ import annotations

import base64
from typing import Any

from helpers.draw.png import to_png
from helpers.draw.scene import SHOWN, Scene

Bundle = tuple[dict[str, Any], dict[str, Any]]  # data and metadata by MIME type


def described(width: float, words: str) -> dict[str, Any]:
    """What is said of a saved PNG of so many of the Scene's pixels: its metadata.

    width: without it a page shows each of the PNG's pixels, which are more than the Scene's. The height follows.
    alt: nbconvert's classic page reads it, its newer one and JupyterLab do not, so a text always stands beside the PNG.
    needs_background: made for a light page. `page.py` looks for the class that JupyterLab and nbconvert make of this.
    """
    return {"image/png": {"width": round(width * SHOWN), "alt": words.strip()}, "needs_background": "light"}


def saved(scene: Scene, **look: int) -> Bundle:
    """What a saved notebook keeps of a Scene: data and metadata. look: as of `to_png`."""
    png = base64.b64encode(to_png(scene, **look)).decode()
    return {"image/png": png}, described(scene.width, f"{scene.title}. {scene.summary}")


class Picture:
    """What `picture` returns. Its text is the title and never changes with the numbers in the picture."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self._saved: Bundle | None = None

    def __repr__(self) -> str:
        return f"[picture] {self.scene.title}"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> Bundle:
        self._saved = self._saved or saved(self.scene)
        data, metadata = self._saved
        return {"text/plain": repr(self)} | data, dict(metadata)


def picture(scene: Scene) -> Picture:
    """Show this as the last expression of a cell. ValueError when given something else than a Scene."""
    if not isinstance(scene, Scene):
        raise ValueError(f"picture got a {type(scene).__name__}; give a Scene, such as timeline_scene(timeline)")
    return Picture(scene)
