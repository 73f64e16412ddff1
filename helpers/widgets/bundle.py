"""What a notebook keeps of a widget: the live view for a front end, and beside it what is left when there is none."""

from __future__ import annotations

import base64
from typing import Any

from helpers.draw import Scene, to_png


def bundle(shown: Any, text: str, saved: dict[str, str]) -> dict[str, Any]:
    """The mimebundle: `shown` as ipywidgets makes it (None, data, or data with metadata), the stable text, `saved`."""
    data = shown[0] if isinstance(shown, tuple) else shown
    return dict(data or {}) | {"text/plain": text} | saved


def png_of(scene: Scene) -> dict[str, str]:
    """The entry of a mimebundle that shows the Scene on GitHub and in a reopened JupyterLab."""
    return {"image/png": base64.b64encode(to_png(scene)).decode()}
