"""A matplotlib plot as large as our pictures, its type as large as theirs, and as dark as the page."""

from __future__ import annotations

import base64
import io
from typing import TYPE_CHECKING

from helpers.draw.figure import DPI
from helpers.draw.picture import Bundle, described
from helpers.draw.scene import SHOWN, WIDTH

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_TYPE = {"font.size": 12, "axes.titlesize": 14, "axes.titleweight": "bold", "axes.titlelocation": "left"}
_TYPE |= {"axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False}


def chart_axes(title: str, *, height: float = 340) -> Axes:
    """Axes to draw on, `height` pixels high with all around them; then `chart(axes, says)` as the last expression."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(_TYPE):
        axes = Figure(figsize=(WIDTH / DPI, height / DPI), dpi=DPI, layout="constrained").subplots()
        axes.set_title(title)
        axes.tick_params(labelsize=12)
    return axes


class Chart:
    """What `chart` returns. Its text is the title and never changes with the numbers."""

    def __init__(self, axes: Axes, says: str) -> None:
        self.axes, self.says = axes, says

    def __repr__(self) -> str:
        return f"[chart] {self.axes.get_title(loc='left')}"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> Bundle:
        from matplotlib import rc_context

        with rc_context(_TYPE):
            png = encoded(self.axes.figure, dpi=1.5 * SHOWN * DPI)
        about = described(WIDTH, f"{self.axes.get_title(loc='left')}. {self.says}")
        return {"text/plain": repr(self), "image/png": png}, about


def encoded(figure: Figure, **how: object) -> str:
    """A figure as PNG in base64, with 64 colours: a third of the bytes in a saved notebook, and it looks alike."""
    from PIL import Image

    whole, small = io.BytesIO(), io.BytesIO()
    figure.savefig(whole, **how)
    Image.open(whole).convert("RGB").quantize(64).save(small, "PNG")
    return base64.b64encode(small.getvalue()).decode()


def chart(axes: Axes, says: str) -> Chart:
    """Show this as the last expression of a cell. says: what the plot shows, for those who cannot see it."""
    if not says:
        raise ValueError("chart got no words: say in a sentence what the plot shows, for those who cannot see it")
    return Chart(axes, says)
