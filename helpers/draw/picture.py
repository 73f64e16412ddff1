"""Provides what a notebook cell shows: `picture` wraps a Scene, and `chart` wraps a plot drawn with matplotlib.

A Scene is a picture as plain data, which `to_png` draws. Both are saved as a PNG with its width and a description, and
as a short text for tests. They bring no SVG along: JupyterLab would show that as an image too, but without the theme,
without hover, and cut off in a narrow window. It shrinks a PNG instead, and the style of `page.py` gives the PNG the
dark theme. A chart is as wide as a Scene and has letters of the same size.
"""

from __future__ import annotations

import base64
import io
from typing import TYPE_CHECKING, Any

from helpers.draw.png import DPI, to_png
from helpers.draw.scene import SHOWN, WIDTH, Scene

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Bundle = tuple[dict[str, Any], dict[str, Any]]  # data and metadata by MIME type, as IPython's display wants them
_CHART_STYLE = {"font.size": 12, "axes.titlesize": 14, "axes.titleweight": "bold", "axes.titlelocation": "left"}
_CHART_STYLE |= {"axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False}
_CHART_COLOURS = 64  # with so few, a PNG takes a third of the bytes in a saved notebook and looks the same


def png_metadata(width: float, description: str) -> dict[str, Any]:
    """The metadata of a saved PNG that shows `width` pixels of a Scene.

    Without the width a page would show each pixel of the PNG, which are more than the Scene's; the height follows.
    nbconvert's classic page reads `alt`; its newer page and JupyterLab do not, so a text always stands beside the PNG.
    JupyterLab and nbconvert turn `needs_background` into the class that the style of `page.py` looks for.
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


def chart_axes(title: str, *, height: float = 340) -> Axes:
    """Matplotlib axes to draw on; `height` in pixels includes the title and the labels.

    End the cell with `chart(axes, description)`.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(_CHART_STYLE):
        axes = Figure(figsize=(WIDTH / DPI, height / DPI), dpi=DPI, layout="constrained").subplots()
        axes.set_title(title)
        axes.tick_params(labelsize=12)
    return axes


class Chart:
    """What `chart` returns. Its text is the title, which does not change with the numbers."""

    def __init__(self, axes: Axes, description: str) -> None:
        self.axes, self.description = axes, description

    @property
    def alternative(self) -> str:
        """The title and the description, for those who cannot see the plot."""
        return f"{self.axes.get_title(loc='left')}. {self.description}"

    def __repr__(self) -> str:
        return f"[chart] {self.axes.get_title(loc='left')}"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> Bundle:
        from matplotlib import rc_context

        with rc_context(_CHART_STYLE):
            png = encoded_figure(self.axes.figure, dpi=1.5 * SHOWN * DPI)  # 1.5 PNG pixels per pixel on the page
        metadata = png_metadata(WIDTH, self.alternative)
        return {"text/plain": repr(self), "image/png": png}, metadata


def encoded_figure(figure: Figure, **savefig_options: object) -> str:
    """A matplotlib figure as PNG in base64, reduced to few colours to keep saved notebooks small."""
    from PIL import Image

    full, reduced = io.BytesIO(), io.BytesIO()
    figure.savefig(full, **savefig_options)
    Image.open(full).convert("RGB").quantize(_CHART_COLOURS).save(reduced, "PNG")
    return base64.b64encode(reduced.getvalue()).decode()


def chart(axes: Axes, description: str) -> Chart:
    """Shows a plot, as the last expression of a cell. `description` says what it shows, for those who cannot see it."""
    if not description:
        raise ValueError("chart got no words: say in a sentence what the plot shows, for those who cannot see it")
    return Chart(axes, description)
