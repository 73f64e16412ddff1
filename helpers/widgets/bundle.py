"""What a notebook keeps of a widget: the live view for a front end, and beside it what is left when there is none."""

from __future__ import annotations

from typing import Any

from helpers.draw.picture import Bundle
from helpers.draw.picture import saved_bundle as png_of  # what shows a Scene on GitHub and in a reopened JupyterLab

__all__ = ["Bundle", "bundle", "png_of"]


def bundle(shown: Any, text: str, kept: dict[str, str] | Bundle) -> dict[str, Any] | Bundle:
    """The mimebundle: `shown` as ipywidgets makes it (None, data, or data with metadata), the stable text, `kept`.

    With a picture, from `png_of`, come its metadata too.
    """
    data = shown[0] if isinstance(shown, tuple) else shown
    more, about = kept if isinstance(kept, tuple) else (kept, None)
    made = dict(data or {}) | {"text/plain": text} | more
    return made if about is None else (made, about)
