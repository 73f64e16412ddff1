"""What the quiz and the mock interview show alike: an answer with its folds, a drill, links, rows of buttons."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape

import ipywidgets

from helpers.interview.cards import Card
from helpers.interview.drills import Drill
from helpers.interview.render import anchor, inline, paragraphs
from helpers.interview.words import say
from helpers.learner.words import LANGUAGES, Words, book, language
from helpers.widgets.dials import choice

SAYS = book("sitting")
STYLE = """<style>
.rr-sitting {max-width: 860px; color: var(--jp-content-font-color0, currentColor)}
.rr-sitting .widget-html-content {line-height: 1.5; font-size: 15px; white-space: normal}
.rr-sitting .rr-clock {margin: 6px 14px}
.rr-sitting ul {margin: 4px 0}
.rr-sitting .rr-question {font-size: 17px; margin: 4px 14px 8px; line-height: 1.45}
.rr-sitting .rr-meta {font-size: 13px; margin: 6px 14px 2px; color: var(--jp-content-font-color1, currentColor)}
.rr-sitting .rr-answer {margin: 6px 14px; padding: 2px 0 2px 14px;
 border-left: 4px solid var(--jp-border-color1, rgb(128 128 128 / 60%))}
.rr-sitting .rr-answer p {margin: .35em 0}
.rr-sitting .rr-answer b.rr-label {font-size: 13px; color: var(--jp-content-font-color1, currentColor)}
.rr-sitting summary {cursor: pointer; font-size: 14px; margin: .4em 0}
.rr-sitting summary:focus-visible, .rr-sitting button:focus-visible {
 outline: 2px solid var(--jp-brand-color1, #0072b2); outline-offset: 1px}
.rr-sitting .rr-said {margin: 6px 14px; padding: 8px 14px; white-space: pre-wrap;
 border-left: 4px solid var(--jp-brand-color1, #0072b2)}
.rr-sitting .rr-said[data-right=false], .rr-sitting [role=alert] {border-left-color: var(--jp-warn-color1, #c60)}
.rr-sitting [role=alert] {margin: 6px 14px; padding: 8px 14px; border-left: 4px solid var(--jp-warn-color1, #c60)}
.rr-sitting pre {margin: 6px 0; padding: 8px 12px; overflow-x: auto; color: inherit;
 font: 13px/1.4 var(--jp-code-font-family, monospace);
 background: var(--jp-layout-color2, rgb(128 128 128 / 15%)); border-radius: 4px}
.rr-sitting code {font-family: var(--jp-code-font-family, monospace); font-size: 92%; color: inherit;
 background: var(--jp-layout-color2, rgb(128 128 128 / 15%)); padding: 0 .25em; border-radius: 3px}
.rr-sitting .rr-option {height: auto; min-height: 32px; white-space: normal; text-align: left; line-height: 1.4;
 padding: 6px 12px; font-size: 14px}
.rr-sitting .rr-links {margin: 0 0 0 14px}
.rr-sitting li {margin: .2em 0}
</style>"""


def style() -> ipywidgets.HTML:
    """The rules above; shown first in a VBox with the class `rr-sitting`."""
    widget = ipywidgets.HTML(STYLE)
    widget.layout.display = "none"
    return widget


def question_html(meta: str, text: str) -> str:
    """A question with what stands above it: number, level, topic."""
    return f'<p class="rr-meta">{escape(meta)}</p><p class="rr-question" aria-live="polite">{inline(text)}</p>'


def answer_html(card: Card, language: str, *, asked: str = "") -> str:
    """The 30-second answer; folded below it the 3-minute one, the usual mistake, the follow-ups.

    asked: what was asked, where that is not the card's own question: then this stands above its answer.
    """
    question = card.question.in_(language)
    own = f'<p class="rr-meta" style="margin:0">{inline(question)}</p>' if asked and asked != question else ""
    folds = [(SAYS("long", language), [card.longer] if card.longer else [])]
    folds += [(say("usual_mistake", language), [card.usual_mistake] if card.usual_mistake else [])]
    folds += [(say("follow_ups", language), list(card.follow_ups))]
    body = f'{own}<b class="rr-label">{SAYS("short", language)}</b>{paragraphs(card.answer.in_(language))}'
    body += "".join(_fold(label, texts, language) for label, texts in folds if texts)
    return f'<div class="rr-answer" lang="{language}">{body}</div>'


def _fold(label: str, texts: Sequence[Words], language: str) -> str:
    told = "".join(paragraphs(text.in_(language)) for text in texts)
    return f"<details><summary>{escape(label)}</summary>{told}</details>"


def drill_html(drill: Drill, language: str) -> str:
    """What to write, what counts, and the stub to copy."""
    counts = "".join(f"<li>{inline(text.in_(language))}</li>" for text in drill.counts)
    return (
        f'<div class="rr-answer" lang="{language}"><p><b>{escape(drill.title.in_(language))}</b></p>'
        f'{paragraphs(drill.prompt.in_(language))}<b class="rr-label">{SAYS("counts", language)}</b><ul>{counts}</ul>'
        f'<b class="rr-label">{SAYS("given", language)}</b><pre>{escape(drill.stub)}</pre></div>'
    )


def one_answer_html(drill: Drill, language: str) -> str:
    """The drill's own right answer, folded; "" where the lab has it."""
    folded = f"<details><summary>{say('drill.answer', language)}</summary><pre>{escape(drill.answer)}</pre></details>"
    return folded if drill.answer else ""


def said_html(text: str, *, is_right: bool) -> str:
    """What came of an answer; the words say it too, not the colour alone."""
    return f'<p class="rr-said" data-right="{str(is_right).lower()}" aria-live="polite">{escape(text)}</p>'


def alert_html(text: str) -> str:
    return f'<p role="alert">{escape(text)}</p>' if text else ""


class Page(ipywidgets.Output):
    """HTML whose links JupyterLab opens itself, at the cell: a link in `ipywidgets.HTML` would load all of it anew.

    Only `outputs` is set: nothing is captured, so it needs no front end.
    """

    def show(self, html: str) -> None:
        """This HTML; "" for nothing."""
        data = {"text/html": html, "text/plain": ""}
        output = {"output_type": "display_data", "data": data, "metadata": {}}
        self.outputs = (output,) if html else ()
        self.layout.display = "" if html else "none"


def links_html(label: str, links: Sequence[tuple[str, str]], language: str) -> str:
    """ "Shown by: …", each a link."""
    told = SAYS("comma", language).join(anchor(*one) for one in links)
    return f'<p style="margin:2px 14px;font-size:13px">{SAYS(label, language)}{say("colon", language)}{told}</p>'


def button(act: Callable[[], object], *, width: str = "auto", style: str = "", tooltip: str = "") -> ipywidgets.Button:
    """A button that calls `act` without arguments; its words are set by whoever shows it."""
    made = ipywidgets.Button(button_style=style, tooltip=tooltip, layout=ipywidgets.Layout(width=width))
    made.on_click(lambda _: act())
    return made


def languages(value: str | None) -> ipywidgets.Dropdown:
    """The dial of the language; it starts at `value`, else at the one chosen."""
    return choice([(name, lang) for lang, name in LANGUAGES.items()], language(value), "language · 语言")


def both(names: Iterable[str], word: Callable[[str, str], str] = say) -> list[tuple[str, str]]:
    """Options of a dial, all of them first: each name in both languages where Chinese has one of its own."""
    told = [(name, word(name, "zh")) for name in names]
    return [("all · 全部", ""), *((name if zh == name else f"{name} · {zh}", name) for name, zh in told)]


def row(*widgets: ipywidgets.Widget) -> ipywidgets.HBox:
    """Beside each other, wrapped where it is narrow."""
    layout = ipywidgets.Layout(flex_flow="row wrap", align_items="center", margin="2px 12px")
    return ipywidgets.HBox(widgets, layout=layout)


def display(widget: ipywidgets.Widget, is_shown: bool) -> None:
    """Show or hide; a hidden one keeps its place in the tree, so that the keyboard's focus can go there at once."""
    widget.layout.display = "" if is_shown else "none"


def how_html(call: str, language: str) -> str:
    """The line that hands in an answer, to copy."""
    then = f'<p class="rr-meta" style="margin:0">{SAYS("then", language)}</p>'
    return f'<div style="margin:2px 14px">{then}<pre>{escape(call)}</pre></div>'


def name_of(widget: object, otherwise: str = "") -> str:
    """What the learner's notebook calls this widget: a name of its own, `otherwise`, or IPython's `_2` for Out[2]."""
    from IPython import get_ipython

    shell = get_ipython()
    names = [name for name, value in dict(shell.user_ns if shell else {}).items() if value is widget]
    own = [name for name in names if not name.startswith("_")]
    outs = [name for name in names if name[1:].isdecimal()]
    return next(iter([*own, *filter(None, [otherwise]), *outs]), "mock")
