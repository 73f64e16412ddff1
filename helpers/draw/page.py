"""The style of a page on which our pictures stand: saved ones turn dark with JupyterLab's theme.

A saved picture is a PNG on white. Where the page says that its theme is dark, lightness is turned over and hues stay:
white becomes the page's own near black, blue stays blue. Other images of the page are left alone: ours carry the class
that stands for "made for a light page". What shows the picture brings the style along: every explorer, the timeline
viewer and every `show`; `make course` serves it as JupyterLab's custom.css, so that it is there before anything runs.
What the file has for JupyterLab alone is in no saved output.
"""

from __future__ import annotations

from pathlib import Path

CUSTOM = Path(__file__).parent / "static" / "custom"  # a folder as JupyterLab wants it, with its custom.css
STYLE = (CUSTOM / "custom.css").read_text(encoding="utf-8").partition("/* For JupyterLab alone")[0]
