"""Provides `reveal`, which shows a guess beside what was predicted and found, and below them the evidence.

What was found has the label of where it comes from: measured, emulated, by documented rules, or published. A learner
guesses the answer to a question (`guess`) before they see it. The result stays folded until the question was answered,
or until the learner opens it without a guess. A learner may switch guesses off (GUESS=off). In an unattended run a
program runs the notebook without a learner. The evidence may be Scenes, pictures, explorers, matplotlib figures or
texts: `live_widget` makes each a widget, and `saved_picture` makes the picture that a saved notebook keeps.
"""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import ipywidgets

from helpers.draw import Picture, Scene, to_svg
from helpers.draw.picture import Bundle, png_metadata, saved_bundle
from helpers.draw.png import png_language
from helpers.draw.scene import WIDTH
from helpers.interview.card_html import paragraphs
from helpers.learner.guesses.calibration import format_answer, is_declared_answer
from helpers.learner.guesses.questions import Question, make_question
from helpers.learner.guesses.storage import StoredGuess, is_off, is_unattended, kernel_guesses
from helpers.learner.hooks import FOLDED, WIDGET_VIEW
from helpers.learner.words import Words, use_language
from helpers.widgets.explorer import Explorer, ShownByWidget, with_sentence
from helpers.widgets.guess_view import error_sentence, known_declaration, value_text, words  # words: guess.yaml
from helpers.widgets.view import SavedWidget, button, display, row, style_sheet

if TYPE_CHECKING:
    from matplotlib.figure import Figure


MEASUREMENT_TOLERANCE = 0.02  # relative, because clocks and allocators are never exact


def reveal(
    key: str,
    *shown: Any,
    predicted: Any = None,
    measured: Any = None,
    emulated: Any = None,
    by_rules: Any = None,
    published: Any = None,
    path: str | os.PathLike | None = None,
) -> RevealView:
    """Show what was guessed, predicted and found, and below it `shown`; folded until the guess `key` was answered.

    shown: the evidence, which may be Scenes, pictures, explorers, matplotlib figures or texts. path: the progress file.
    The other values are in the question's unit, and the cell computes them:

        predicted  by a formula or a model
        measured   by a clock that ran freely, or by counting the bytes, messages or results of a run
        emulated   by real ranks whose compute or messages a model paced, such as those of `Ranks(link=...)`
        by_rules   by NCCL's documented rules, which ranks on CPUs follow
        published  by others; the chapter links the source

    Without any of them the row shows the answer that helpers/learner/guesses declares. It says "not measured" where the
    last four are missing. In an unattended run (RANKS_UNATTENDED=1) it raises ValueError where `predicted` is not the
    declared answer (numbers must agree within 1e-6) or, without `predicted`, where another value is off by over 2 %,
    unless it is a choice that a free clock made.
    """
    found = {"emulated": emulated, "by_rules": by_rules, "published": published, "measured": measured}
    view = RevealView(key, *shown, predicted=predicted, found=found, path=path)
    if view.wrong and is_unattended():
        raise ValueError(view.wrong)
    return view


class RevealView(SavedWidget, ipywidgets.VBox):
    """What `reveal` returns. Without a front end: `.look()`, then `.text`.

    found: label, such as "measured" -> value, or None where there is none. The labels are names in guess.yaml.
    """

    def __init__(
        self,
        key: str,
        *shown: Any,
        predicted: Any = None,
        found: Mapping[str, Any] | None = None,
        path: str | os.PathLike | None = None,
    ) -> None:
        self.key, self._shown = key, shown
        self._guesses = kernel_guesses(path)  # the questions asked and the answers given in this kernel
        self.declared = known_declaration(key)  # the question with its true answer, or None
        self.predicted = predicted
        self.found = {label: value for label, value in (found or {}).items() if value is not None}
        self._has_looked = False
        self.notice, self.result = ipywidgets.HTML(), ipywidgets.HTML()
        self.body = ipywidgets.VBox([])
        self.open_button = button(self.look, words("show"))
        self._folded = row(self.open_button)
        head = ipywidgets.VBox([style_sheet("guess"), self.notice, self._folded, self.result])
        head.add_class("rr-guess")  # without the body, so that an explorer in it keeps its own style
        super().__init__([head, self.body])
        self._guesses.listen(key, self)  # an answer to the question calls `refresh`
        self.refresh()

    # -- state --------------------------------------------------------------------------------------------------------
    @property
    def question(self) -> Question:
        """The question as it was asked in this kernel, or, if it was not, what the progress file has of it."""
        asked, unit = self._guesses.asked.get(self.key), self._stored.unit if self._stored else ""
        return asked or make_question(self.key, unit=unit, key=self.key)

    @property
    def is_open(self) -> bool:
        """Whether the result is shown: it was guessed or opened, or guesses are off, or the run is unattended."""
        return self._has_looked or is_off() or is_unattended() or self._stored is not None

    @property
    def truth(self) -> Any:
        """What a guess is compared with: the prediction, else the declared answer, else what was found, or None."""
        declared = self.declared and self.declared.answer
        return next((one for one in (self.predicted, declared, *self.found.values()) if one is not None), None)

    @property
    def changed(self) -> str:
        """A sentence where the prediction is not the declared answer; "" otherwise."""
        if self.declared is None or self.predicted is None or is_declared_answer(self.predicted, self.declared.answer):
            return ""
        values = {"predicted": self._format(self.predicted), "declared": self._format(self.declared.answer)}
        return words("changed", **values)

    @property
    def wrong(self) -> str:
        """A message for authors where what was predicted or found is not as declared; "" otherwise.

        Which choice a free clock finds may depend on the machine, so that is not compared.
        """
        if self.changed:
            return f"{self.key}: predicted is {self.predicted!r}, and declared is {self.declared.answer!r}"
        if self.declared is None or self.predicted is not None:
            return ""
        for label, value in self.found.items():
            is_free_clock = label == "measured" and self.question.form == "choice" and self.question.kind == "time"
            if not is_free_clock and not is_declared_answer(value, self.declared.answer, within=MEASUREMENT_TOLERANCE):
                return f"{self.key}: {label} is {value!r}, and declared is {self.declared.answer!r}"
        return ""

    # -- actions ------------------------------------------------------------------------------------------------------
    def look(self) -> None:
        """Show the result without a guess."""
        self._has_looked = True
        if self._stored is None:
            self._guesses.open(self.key)
        self.refresh()

    def refresh(self) -> None:
        """Show or fold the result. A folded result has not been sent to the browser."""
        is_open = self.is_open
        self.notice.value = "" if is_open else f'<p class="rr-first"><b>{words("first")}</b> {words("folded")}</p>'
        for each, is_shown in ((self._folded, not is_open), (self.result, is_open), (self.body, is_open)):
            display(each, is_shown)
        if is_open:
            self.result.value = self._result_html()
            self.body.children = self.body.children or [live_widget(each) for each in self._shown]

    # -- display -------------------------------------------------------------------------------------------------------
    @property
    def text(self) -> str:
        """What is shown now, as plain text."""
        if not self.is_open:
            return f"{words('first')} {words('folded')}"
        cells = " · ".join(f"{name} {value}".rstrip() for name, value in self._cells())
        return "\n".join([cells, *self._sentences])

    def _cells(self) -> list[tuple[str, str]]:
        """Name and value of each part of the row."""
        stored = self._stored
        guessed = words("not_guessed") if stored is None else value_text(self.question, stored.value)
        cells = [] if is_off() and stored is None else [(words("yours"), guessed)]
        return cells + [(words(label), text) for label, text in self._result_cells()]

    def _result_cells(self, lang: str | None = None) -> list[tuple[str, str]]:
        """Label and text of each value that is no guess. The text of "not_measured" is "": the label says it all."""
        values = ({} if self.predicted is None else {"predicted": self.predicted}) | self.found
        if not values and self.declared is not None:
            values = {"answer": self.declared.answer}
        cells = [(label, self._format(value, lang)) for label, value in values.items()]
        return cells + ([] if self.found else [("not_measured", "")])

    @property
    def _stored(self) -> StoredGuess | None:
        """What the learner answered; None without an answer."""
        return self._guesses.answer(self.key)

    @property
    def _sentences(self) -> list[str]:
        """How far off the guess is, whether it came after the result, and whether the prediction was changed."""
        stored = self._stored
        error = error_sentence(stored.form, stored.value, self.truth) if stored else ""
        late = words("late") if stored and stored.is_late else ""
        return list(filter(None, (error, late, self.changed)))

    def _format(self, value: Any, lang: str | None = None) -> str:
        """A result as text: a choice or an order in words, anything else as a number with the question's unit."""
        is_text = isinstance(value, str | list | tuple) and self.question.form in ("choice", "order")
        return value_text(self.question, value, lang) if is_text else format_answer(value, self.question.unit)

    def _result_html(self) -> str:
        """The row with the guess and what was predicted and found, and the sentences below it, as HTML."""
        cells = "".join(
            f"<div><span>{escape(name)}</span>{f' <b>{escape(value)}</b>' if value else ''}</div>"
            for name, value in self._cells()
        )
        sentences = "".join(f"<p>{escape(sentence)}</p>" for sentence in self._sentences)
        return f'<div aria-live="polite"><div class="rr-row">{cells}</div>{sentences}</div>'

    def __repr__(self) -> str:
        parts = [f"{words(label, 'en')} {text}".rstrip() for label, text in self._result_cells("en")]
        return " · ".join([f"[reveal] {self.key}", *parts])

    def _saved_data(self) -> Bundle:
        """The result and the picture, and never what the learner guessed."""
        with use_language(png_language()):  # English where this machine has no font with Chinese letters
            return saved_picture(self._shown, repr(self).partition(" · ")[2])  # the sentence is repr without the key

    def _repr_mimebundle_(self, include: object = None, exclude: object = None, **kwargs: Any) -> Any:
        """Texts among the evidence are saved too, and JupyterLab saves a folded view as folded (see learner.hooks)."""
        made = super()._repr_mimebundle_(include=include, exclude=exclude, **kwargs)
        data = made[0] if isinstance(made, tuple) else made
        data["text/plain"] = "\n".join([repr(self), *(each for each in self._shown if isinstance(each, str))])
        if not self.is_open and WIDGET_VIEW in data:  # the MIME type under which Jupyter looks for a live widget
            data[WIDGET_VIEW] = {**data[WIDGET_VIEW], FOLDED: self.text}  # FOLDED: the key of the text to save
        return made


def live_widget(shown: Any) -> ipywidgets.Widget:
    """The evidence as a widget for a running notebook. What is of an unknown kind is shown as its text."""
    if isinstance(shown, ShownByWidget):
        return shown.widget
    if isinstance(shown, ipywidgets.Widget):
        return shown
    if isinstance(shown, Picture):
        shown = shown.scene
    made = ipywidgets.HTML(_html(shown))
    made.add_class("rr-guess")
    return made


def saved_picture(shown: Sequence[Any], sentence: str) -> Bundle:
    """Data and metadata of the first picture with the sentence below it; both empty where there is no picture."""
    for each in shown:
        if isinstance(each, Picture | Scene):
            return saved_bundle(with_sentence(each.scene if isinstance(each, Picture) else each, sentence))
        if isinstance(each, Explorer):
            return saved_bundle(each.saved)
        if plot := _plot(each):
            figure, description = plot
            return {"image/png": _png(figure)}, png_metadata(WIDTH, f"{description.removesuffix('.')}. {sentence}")
    return {}, {}


def _html(shown: Any) -> str:
    """The evidence as HTML: a Scene as SVG, a text as paragraphs, a figure as PNG."""
    if isinstance(shown, Scene):
        return to_svg(shown)
    if isinstance(shown, str | Words):
        return "".join(_text_html(block) for block in str(shown).split("\n\n"))
    if plot := _plot(shown):
        figure, description = plot
        # rr-light: the class of pictures made for a light page, which the course's style inverts on a dark one.
        look = f'class="rr-light" alt="{escape(description)}"'
        return f'<img {look} src="data:image/png;base64,{_png(figure)}">'
    return f"<pre>{escape(str(shown))}</pre>"


def _text_html(block: str) -> str:
    """A block of a text, aligned with pictures. Each line stays a line, and the columns of a table stay columns."""
    if any("  " in line.strip() for line in block.splitlines()):
        return f'<pre style="margin:.5em 14px; line-height:1.3; overflow-x:auto">{escape(block)}</pre>'
    return f'<div style="margin:0 14px; white-space:pre-line">{paragraphs(block)}</div>'


def _plot(shown: Any) -> tuple[Figure, str] | None:
    """The figure of a plot and its description; None for anything else."""
    # A figure of matplotlib, which is not imported just to find out.
    is_figure = type(shown).__module__ == "matplotlib.figure" and hasattr(shown, "savefig")
    return (shown, _title(shown)) if is_figure else None


def _title(figure: Figure) -> str:
    """The titles of a figure, for its description."""
    return "; ".join(filter(None, [figure.get_suptitle(), *(axes.get_title() for axes in figure.axes)])) or "figure"


def _png(figure: Figure) -> str:
    """The figure as PNG in base64, with few colours, so that a saved notebook stays small.

    The figure is closed, or else Jupyter would show it again, outside the fold.
    """
    from matplotlib import pyplot
    from PIL import Image

    full, reduced = io.BytesIO(), io.BytesIO()
    figure.savefig(full, bbox_inches="tight", dpi=110)
    pyplot.close(figure)
    Image.open(full).convert("RGB").quantize(64).save(reduced, "PNG")
    return base64.b64encode(reduced.getvalue()).decode()
