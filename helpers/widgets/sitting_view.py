"""What sittings in a notebook share: words in their language, their sheet as a file, what a saved notebook keeps."""

from __future__ import annotations

import os
from html import escape
from typing import Any

import ipywidgets

from helpers.interview.sheet import Sheet
from helpers.widgets import sitting_parts as parts
from helpers.widgets.bundle import bundle


class SittingView(ipywidgets.VBox):
    """A quiz, a drill, a mock interview or a round. language: the dial of it, where there is one."""

    TEXT = ""
    language: ipywidgets.Dropdown

    @property
    def kept(self) -> str:
        """HTML that a saved notebook keeps: what this is, nothing of how it went."""
        raise NotImplementedError

    def _say(self, name: str, **values: object) -> str:
        return parts.SAYS(name, self.language.value, **values)

    def __repr__(self) -> str:
        return self.TEXT

    def _repr_mimebundle_(self, include: object = None, exclude: object = None, **kwargs: Any) -> dict[str, Any]:
        shown = super()._repr_mimebundle_(include=include, exclude=exclude, **kwargs)
        return bundle(shown, self.TEXT, {"text/html": self.kept})


class SheetView(SittingView):
    """A sitting that ends with a `sheet`. FILE: where `save()` writes it. note: the line below everything else."""

    FILE = ""
    note: ipywidgets.HTML
    sheet: Sheet

    def save(self, path: str | os.PathLike = "") -> None:
        """Write the sheet to a file, .md, .html or .txt; one that is there stays."""
        try:
            told = self._say("mock.saved", path=self.sheet.save(path or self.FILE).name)
        except OSError as error:
            told = self._say("mock.unsaved", error=error.strerror or error)
        self._tell(told)

    def _tell(self, told: str) -> None:
        self.note.value = f'<p class="rr-said" role="status">{escape(told)}</p>'
