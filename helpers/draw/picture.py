"""Provides what a notebook cell shows of a Scene: `picture`, and STYLE, the CSS that turns saved pictures dark.

A Scene is a picture as plain data, which `to_png` draws. It is saved as a PNG with its width and a description, and as
a short text for tests. It brings no SVG along: JupyterLab would show that as an image too, but without the theme,
without hover, and cut off in a narrow window. It shrinks a PNG instead.

A saved picture is a PNG on white. Where the page says that its theme is dark, STYLE inverts the picture's lightness and
keeps its hues: white becomes the page's own near black, and blue stays blue. It leaves other images of the page alone,
because only our pictures carry the class that stands for "made for a light page". Whatever shows a picture brings the
CSS along: every explorer, the timeline viewer and every `show`. `make course` also serves the file as JupyterLab's
custom.css, so that the CSS is there before anything runs.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from helpers.draw.png import to_png
from helpers.draw.scene import SHOWN, Scene

Bundle = tuple[dict[str, Any], dict[str, Any]]  # data and metadata by MIME type, as IPython's display wants them

CUSTOM = Path(__file__).parent / "static" / "custom"  # JupyterLab expects a folder with a file named custom.css.
# The part of the file that only JupyterLab needs is left out, and therefore is not in saved outputs.
STYLE = (CUSTOM / "custom.css").read_text(encoding="utf-8").partition("/* For JupyterLab alone")[0]


def png_metadata(width: float, description: str) -> dict[str, Any]:
    """The metadata of a saved PNG that shows `width` pixels of a Scene.

    Without the width a page would show each pixel of the PNG, which are more than the Scene's; the height follows.
    nbconvert's classic page reads `alt`; its newer page and JupyterLab do not, so a text always stands beside the PNG.
    JupyterLab and nbconvert turn `needs_background` into the class that STYLE looks for.
    """
    return {"image/png": {"width": round(width * SHOWN), "alt": description.strip()}, "needs_background": "light"}


def saved_bundle(scene: Scene, **png_options: int) -> Bundle:
    """What a saved notebook keeps of a Scene. `png_options` are those of `to_png`."""
    png = base64.b64encode(to_png(scene, **png_options)).decode()
    return {"image/png": png}, png_metadata(scene.width, f"{scene.title}. {scene.summary}")


class Picture:
    """What `picture` returns. Its text is the title, which does not change with the numbers in the picture."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self._saved: Bundle | None = None

    def __repr__(self) -> str:
        return f"[picture] {self.scene.title}"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> Bundle:
        self._saved = self._saved or saved_bundle(self.scene)
        data, metadata = self._saved
        return {"text/plain": repr(self)} | data, dict(metadata)


def picture(scene: Scene) -> Picture:
    """Shows a Scene, as the last expression of a cell. Raises ValueError when given something else."""
    if not isinstance(scene, Scene):
        raise ValueError(f"picture got a {type(scene).__name__}; give a Scene, such as timeline_scene(timeline)")
    return Picture(scene)
