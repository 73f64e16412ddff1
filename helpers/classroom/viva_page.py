"""Pages for a viva: one a learner, to be printed, with questions alone; and one for the teacher, with the answers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from helpers.classroom.changes import lines_of
from helpers.classroom.one import Settings
from helpers.classroom.page import STYLE
from helpers.classroom.results import Result
from helpers.classroom.submissions import Submission
from helpers.classroom.viva import SAYS, Question, ask_all

ANSWERS = "answers.html"
MORE_STYLE = """
section { break-inside: avoid; margin-bottom: 2rem; } .room { height: 7rem; border-bottom: 1px solid var(--line); }
pre.code { line-height: 1.4; } pre.code b { background: var(--flag, #fbe6b8); font-weight: inherit; }
article + article { break-before: page; border-top: 2px solid var(--line); }
"""


def write_all(pairs: Sequence[tuple[Submission, Result]], settings: Settings, folder: Path, *, jobs: int) -> int:
    """Ask each, and write every page. The exit code: 130 after Ctrl-C, with the pages of those who were asked."""
    folder.mkdir(parents=True, exist_ok=True)
    asked: dict[str, list[Question]] = {}
    numbers = {result.learner: number for number, (_, result) in enumerate(pairs, 1)}

    def tell(result: Result, questions: list[Question]) -> None:
        asked[result.learner] = questions
        path = write_page(folder, numbers[result.learner], result, questions, settings.lang)
        print(f"[{len(asked)}/{len(pairs)}] {len(questions)} questions: {path}", flush=True)

    try:
        ask_all(pairs, settings, jobs=jobs, tell=tell)
        code = 0
    except KeyboardInterrupt:
        code = 130
    answers = write_answers(
        folder, [(one, asked[one.learner]) for _, one in pairs if one.learner in asked], settings.lang
    )
    print(f"{'Interrupted. ' if code else ''}The pages to print are in {folder}; the answers are in {answers}.")
    return code


def write_page(folder: Path, number: int, result: Result, questions: Sequence[Question], lang: str) -> Path:
    """The learner's own page, without answers."""
    name = re.sub(r"[^\w.-]", "_", result.name or result.learner)[:80]
    path = folder / f"{number:02}-{name}.html"
    title = SAYS("title", lang, lab=result.lab)
    parts = [f"<h1>{escape(title)}</h1><p>{escape(result.name or result.learner)}</p>"]
    for position, question in enumerate(questions, 1):
        parts += ["<section>", *_asked(position, question, lang), "<div class='room'></div></section>"]
    path.write_text(_html(title, [*parts, *_none(questions, lang)], lang), encoding="utf-8")
    return path


def write_answers(folder: Path, asked: Sequence[tuple[Result, Sequence[Question]]], lang: str) -> Path:
    """The teacher's page: everybody's questions, each answer folded below."""
    title = SAYS("answers", lang, lab=", ".join(sorted({result.lab for result, _ in asked if result.lab})))
    parts = [f"<h1>{escape(title)}</h1><p>{escape(SAYS('teacher', lang))}</p>"]
    for result, questions in asked:
        parts.append(f"<article><h2>{escape(result.name or result.learner)}</h2>")
        for position, question in enumerate(questions, 1):
            says = SAYS("computed" if question.was_changed else "observed", lang)
            answer = f"<details><summary>{escape(says)}</summary><pre>{escape(question.answer)}</pre></details>"
            parts += ["<section>", *_asked(position, question, lang), answer, "</section>"]
        parts += [*_none(questions, lang), "</article>"]
    path = folder / ANSWERS
    path.write_text(_html(title, parts, lang), encoding="utf-8")
    return path


def _asked(position: int, question: Question, lang: str) -> Iterator[str]:
    yield f"<h3>{position}. {escape(SAYS('asks_about', lang, key=question.key))}</h3>"
    yield f"<pre class='code'>{_numbered(question.code, question.line)}</pre>"
    yield f"<p><strong>{escape(question.asks)}</strong></p>"


def _numbered(code: str, marked: int) -> str:
    lines = [f"{number:3}  {escape(line)}" for number, line in enumerate(lines_of(code), 1)]
    return "\n".join(f"<b>{line}</b>" if number == marked else line for number, line in enumerate(lines, 1))


def _none(questions: Sequence[Question], lang: str) -> list[str]:
    return [] if questions else [f"<p>{escape(SAYS('none', lang))}</p>"]


def _html(title: str, parts: Sequence[str], lang: str) -> str:
    head = f"<!doctype html><html lang='{lang}'><head><meta charset='utf-8'><title>{escape(title)}</title>"
    head += "<meta name='viewport' content='width=device-width, initial-scale=1'>"
    return "\n".join([f"{head}<style>{STYLE}{MORE_STYLE}</style></head><body><main>", *parts, "</main></body></html>"])
