"""Provides STYLE, the CSS that gives saved pictures a dark background on a page whose theme is dark.

A saved picture is a PNG on white. Where the page says that its theme is dark, the CSS inverts the picture's lightness
and keeps its hues: white becomes the page's own near black, and blue stays blue. It leaves other images of the page
alone, because only our pictures carry the class that stands for "made for a light page". Whatever shows a picture
brings the CSS along: every explorer, the timeline viewer and every `show`. `make course` also serves the file as
JupyterLab's custom.css, so that the CSS is there before anything runs. The part of the file that only JupyterLab needs
is left out of STYLE, and therefore of saved outputs.
"""

from __future__ import annotations

from pathlib import Path

CUSTOM = Path(__file__).parent / "static" / "custom"  # JupyterLab expects a folder with a file named custom.css.
STYLE = (CUSTOM / "custom.css").read_text(encoding="utf-8").partition("/* For JupyterLab alone")[0]
