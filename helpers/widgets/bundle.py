"""What a notebook keeps of a widget: the live view for a front end, and beside it what is left when there is none."""

from __future__ import annotations

from typing import Any

from helpers.draw import Scene
from helpers.draw.picture import Bundle, saved


def bundle(shown: Any, text: str, kept: dict[str, str]) -> dict[str, Any]:
    """The mimebundle: `shown` as ipywidgets makes it (None, data, or data with metadata), the stable text, `kept`."""
    data = shown[0] if isinstance(shown, tuple) else shown
    return dict(data or {}) | {"text/plain": text} | kept


def with_picture(shown: Any, text: str, scene: Scene) -> Bundle:
    """The same with a picture, for GitHub and a reopened JupyterLab: data, and metadata (width, words)."""
    data, metadata = saved(scene)
    return bundle(shown, text, data), metadata
