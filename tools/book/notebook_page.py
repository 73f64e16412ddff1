"""Turns an executed notebook into a page of the web edition, in MyST Markdown with HTML for what the cells printed.

A question (`guess(...)`) becomes a form that the page's script fills in. What answers it becomes a closed <details>:
the cell that reveals the answer, and the text "Why?" after it. So the answer is folded without any script, in
print, and in what the search shows.
"""

from __future__ import annotations

import ast
import base64
import hashlib
import json
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape
from typing import Any

from exercise_block import exercise_blocks, exercise_key
from explorer_block import explorer_html, explorer_sources, imports_of, words
from latex2mathml.converter import convert as mathml
from links import CELL as INSTALL_CELL
from nbconvert.filters import ansi2html, strip_ansi
from talk_block import is_talk, talks_html

from helpers.learner.guesses.questions import Question, make_question
from helpers.learner.words import book
from tools.book.address import repository, with_address
from tools.book.cells import calls, statements

Cell = dict[str, Any]
OTHER = {"en": ("zh/index.html", "中文"), "zh": ("../index.html", "English")}  # the other language: address and name
FIRST_PAGES = {"README.md": "en", "README.zh.md": "zh"}
GUESS_WORDS = book("guess")
LABELS = ("predicted", "measured", "emulated", "by_rules", "published", "answer", "not_measured")  # of a result
_REVEALED = re.compile(r"\[reveal\] ([\w.-]+)")
_RESULTS = re.compile(r"^\[reveal\] ([\w.-]+) · (.*)$", re.MULTILINE)
_MATH = re.compile(r"(```.*?```|`[^`\n]*`)|\$\$(.+?)\$\$|\$([^$\n]+?)\$", re.DOTALL)
# Where the text after an answer turns to something else: a heading, or before code to read a bold beginning.
_HEADING = re.compile(r"^#", re.MULTILINE)
_NEW_TOPIC = re.compile(r"^(?:#|\*\*(?!Say it aloud|说出来))", re.MULTILINE)
_CODE_TO_READ = re.compile(r"^(?:def|class) |\bshow\(|\bexercise\(|\w+Explorer\(|\bguess\(|^%%", re.MULTILINE)
_TAKEAWAYS = re.compile(r"^\|[^|\n]*\| *本章要点 *\|\n\|[-| :]+\|\n((?:\|.*\n?)+)", re.MULTILINE)
_ASKED = re.compile(r"\A\s*<details><summary>[^<]*[?？]</summary>")  # a question about what a cell has printed
_QUIZ_COMMAND = re.compile(r"python -m helpers quiz --topic \w+[^)<]*(?=\))")  # below the cards of a chapter
_NOTEBOOK_LINK = re.compile(r'href="(\w+)\.ipynb(#[^"]*)?"')
_LINK = re.compile(r"\[([^\]]*)\]\((?!https?:|#)([^)\s#]+)(#[^)\s]*)?\)")


@dataclass
class Page:
    """A page in the making. pictures: name of a file -> its bytes; questions: what the page's script asks, by key."""

    language: str
    pictures_at: str = "_static/pictures"  # their folder as the page sees it
    lines: list[str] = field(default_factory=list)
    pictures: dict[str, bytes] = field(default_factory=dict)
    questions: dict[str, dict[str, Any]] = field(default_factory=dict)
    open_questions: list[str] = field(default_factory=list)  # the keys of questions that are not answered yet
    imports: dict[str, str] = field(default_factory=dict)  # name -> the statement that imports it, of the cells so far

    def add(self, *blocks: str) -> None:
        """Append blocks, each followed by an empty line, which ends a block of HTML in Markdown."""
        self.lines += [line for block in blocks for line in (block, "")]

    @property
    def text(self) -> str:
        """The page as MyST Markdown."""
        data = json.dumps(self.questions, ensure_ascii=False).replace("</", "<\\/")
        questions = f'<script type="application/json" id="rr-questions">{data}</script>' if self.questions else ""
        return "\n".join([*self.lines, questions, ""])


def page_of(notebook: dict[str, Any], language: str, pictures_at: str) -> Page:
    """The page of a notebook, given as its JSON, whose Markdown is already in `language`.

    An answer is folded together with what follows and may speak of it: up to the next topic, question or code to read.
    """
    page = Page(language, pictures_at)
    is_folded = False  # whether what comes next belongs to an answer
    is_after_exercise = False  # whether the course's own version of an exercise may come next
    cells = [cell for cell in notebook["cells"] if cell["id"] != INSTALL_CELL]  # that one is for Colab
    for cell, following in zip(cells, [*cells[1:], {"source": ""}], strict=True):
        source = "".join(cell["source"])
        is_asked = _ASKED.match("".join(following["source"])) is not None  # what this cell prints
        is_text = cell["cell_type"] == "markdown"
        if is_folded and is_text:
            has_code_to_read = _CODE_TO_READ.search("".join(following["source"])) is not None
            topic = (_NEW_TOPIC if has_code_to_read else _HEADING).search(source)
            about_answer, source = (source[: topic.start()], source[topic.start() :]) if topic else (source, "")
            page.add(markdown(about_answer, language), *(["</details>"] if topic else []))
            is_folded = topic is None
        elif is_folded and (_CODE_TO_READ.search(source) or _keys_of(cell)):
            page.add("</details>")
            is_folded = False
        page.add(f'<div id="cell-{cell["id"]}"></div>')  # links from other pages lead here
        if is_text:
            page.add(markdown(source, language))
            is_after_exercise = is_after_exercise and not _HEADING.search(source)
            continue
        is_solution = is_after_exercise and _only_shows(source)
        page.add(*([f"<details><summary>{words('solution', language)}</summary>"] if is_solution else []))
        is_folded = _add_code(page, cell, source, is_asked) or is_folded
        page.add(*(["</details>"] if is_solution else []))
        is_after_exercise = bool(exercise_key(source)) or is_after_exercise and "guess(" not in source
    if is_folded:
        page.add("</details>")
    return page


def _keys_of(cell: Cell) -> list[str]:
    """The keys of the questions that a code cell answers."""
    outputs = cell.get("outputs", [])
    return _REVEALED.findall("\n".join("".join(output.get("data", {}).get("text/plain", "")) for output in outputs))


def _add_code(page: Page, cell: Cell, source: str, is_asked: bool) -> bool:
    """Add a code cell with its outputs. Returns whether it answers questions, so that its <details> is still open.

    is_asked: whether the text asks what the cell will print, so that its outputs are folded.
    """
    outputs = [output for output in cell.get("outputs", []) if not _is_course_map(output)]
    texts = "\n".join("".join(output.get("data", {}).get("text/plain", "")) for output in outputs)
    keys = _keys_of(cell)
    for question in _questions(source):
        page.questions[question.key] = _question_data(question, page.language)
        page.open_questions.append(question.key)
    page.imports |= imports_of(source)
    if exercise_key(source):  # its saved output says no more than that the stub is one
        page.add(*exercise_blocks(source, page.language))
        return False
    explorers = [explorer_html(*each, page.language) for each in explorer_sources(source, page.imports)]
    live = [*explorers, *talks_html(source, page.language)]
    # What is live takes the place of its saved picture.
    shown = [output for output in outputs if not (live and _is_live(output))]
    printed = [html for output in shown for html in _output_html(page, output)]
    if is_asked and not keys and not live:
        printed = [f"<details><summary>{words('printed', page.language)}</summary>", *printed, "</details>"]
    blocks = [*_code_block(source, page.language), *printed, *live]
    if keys:
        rows = [_result_row(key, values.split(" · "), page) for key, values in _RESULTS.findall(texts)]
        page.add(_fold_of(page, keys), *rows)
    page.add(*blocks)
    return bool(keys)


def _fold_of(page: Page, keys: list[str]) -> str:
    """The opening of what stays folded until these questions, and all that were asked before them, are answered."""
    waiting = [key for key in page.open_questions if key not in keys]
    page.open_questions = waiting
    summary = words("answer", page.language)
    if waiting:  # then this fold does not stand below its own question
        summary += f" · {escape(page.questions[keys[0]]['text'])}"
    return f'<details class="rr-answer" data-key="{" ".join([*keys, *waiting])}"><summary>{summary}</summary>'


def _is_course_map(output: dict[str, Any]) -> bool:
    """Whether an output is the map of the course, which shows a learner's own progress and is empty when saved."""
    return "".join(output.get("data", {}).get("text/plain", "")).startswith("[widget] CourseMap")


def _is_live(output: dict[str, Any]) -> bool:
    """Whether a cell's output is the saved picture of an explorer or of a talk."""
    plain = "".join(output.get("data", {}).get("text/plain", ""))
    name = plain.partition(":")[0]
    return name.startswith("[widget] ") and name.endswith("Explorer") or is_talk(plain)


def _code_block(source: str, language: str) -> list[str]:
    """The code of a cell as a block, without the questions, which stand below it.

    None where only imports are left, or where the cell shows the learner's own guesses. Code that only draws a picture
    of the course is folded.
    """
    body = statements(source)
    asks = [one for one in body if _calls(one, "guess")]
    asked = {line for one in asks for line in range(one.lineno, one.end_lineno + 1)}
    lines = [line for number, line in enumerate(source.splitlines(), start=1) if number not in asked]
    code = "```python\n" + "\n".join(lines).strip("\n") + "\n```"
    rest = [one for one in body if one not in asks and not isinstance(one, ast.ImportFrom)]
    if asks and not rest or "my_guesses(" in source or "course_map()" in source:
        return []
    if rest and all(_calls(one, "picture") for one in rest):
        return [f'<details class="rr-code"><summary>{words("code", language)}</summary>', code, "</details>"]
    return [code]


def _only_shows(source: str) -> bool:
    """Whether a cell shows code of the course and does nothing else."""
    body = [one for one in statements(source) if not isinstance(one, ast.ImportFrom)]
    return bool(body) and all(_calls(one, "show") or _calls(one, "display(show") for one in body)


def _calls(statement: ast.stmt, name: str) -> bool:
    """Whether a statement is a call of this function."""
    return isinstance(statement, ast.Expr) and ast.unparse(statement).startswith(f"{name}(")


def one_language(source: str, language: str) -> str:
    """The takeaways of a chapter, a table of both languages, as a list in the page's language."""
    return _TAKEAWAYS.sub(lambda found: _takeaways(found[1], language), source)


def _takeaways(rows: str, language: str) -> str:
    """The column of one language as a list. rows: those of a table with two columns."""
    column = 1 if language == "en" else 2
    cells = [re.split(r"(?<!\\)\|", row)[column].strip() for row in rows.strip().splitlines()]
    return "\n".join(f"- {cell}" for cell in cells) + "\n"


def markdown(source: str, language: str) -> str:
    """Markdown with formulas as MathML, and with links that lead to pages instead of notebooks."""
    source = one_language(with_address(source, language), language)
    return _MATH.sub(_formula, _LINK.sub(lambda found: _page_link(found, language), source))


def _page_link(found: re.Match[str], language: str) -> str:
    """A link to a page where a notebook or a guide is one; of another file of the course the name is enough."""
    text, target, anchor = found.groups()
    name = target.removeprefix("../")
    if name in FIRST_PAGES:
        return f"[{text}](/index.md)" if FIRST_PAGES[name] == language else f'<a href="{OTHER[language][0]}">{text}</a>'
    if name.endswith((".png", ".gif")):
        return found[0]
    if name.endswith(".ipynb") and not name.startswith("labs/"):
        return f"[{text}](/{name.removeprefix('notebooks/').removesuffix('.ipynb')}.md{anchor or ''})"
    if name == "docs/strategies.md":
        return f"[{text}](/strategies.md)"
    if name.startswith("docs/") and name.endswith(".md"):
        return f"[{text}](/{name.replace('.zh.md', '.md')}{anchor or ''})"
    if repository():
        return f"[{text}]({repository()}/blob/HEAD/{name})"
    return text if name in text else f"{text} (`{name}`)"


def _formula(found: re.Match[str]) -> str:
    """A formula as MathML, which browsers show without a script; code stays as it is."""
    code, block, inline = found.groups()
    if code:
        return code
    return mathml((block or inline).strip(), display="block" if block else "inline")


# -- questions -------------------------------------------------------------------------------------------------------
def _questions(source: str) -> Iterator[Question]:
    """The questions that the calls of `guess` in a cell ask."""
    for name, call in calls(statements(source)):
        if name == "guess":
            options = {one.arg: ast.literal_eval(one.value) for one in call.keywords}
            options.pop("default", None)
            yield make_question(ast.literal_eval(call.args[0]), **options)


def _question_data(question: Question, language: str) -> dict[str, Any]:
    """A question as JSON. The options are pairs of English, by which an answer is stored, and what is shown."""
    return {
        "text": question.text.in_(language),
        "form": question.form,
        "kind": question.kind,
        "unit": question.unit,
        "options": [[one.en, one.in_(language)] for one in question.options],
        "truth": question.truth,
    }


# -- outputs ---------------------------------------------------------------------------------------------------------
def _output_html(page: Page, output: dict[str, Any]) -> Iterator[str]:
    """The blocks of HTML of one output."""
    if output["output_type"] == "stream":
        yield _printed(strip_ansi("".join(output["text"])).rstrip())
    elif output["output_type"] == "error":
        yield f'<pre class="rr-output rr-error">{ansi2html(chr(10).join(output["traceback"]))}</pre>'
    else:
        yield from _data_html(page, output)


def _data_html(page: Page, output: dict[str, Any]) -> Iterator[str]:
    """A question, a picture, HTML, or else a text."""
    data = {kind: "".join(value) for kind, value in output["data"].items()}
    plain = data.get("text/plain", "")
    if plain.startswith("[guess] "):
        key = plain.removeprefix("[guess] ").partition(":")[0]
        yield f'<div class="rr-guess" data-key="{key}"><p>{escape(page.questions[key]["text"])}</p></div>'
        return
    if plain.startswith("[guesses] "):
        yield '<div class="rr-my-guesses"></div>'
        return
    if _REVEALED.match(plain):
        plain = plain.partition("\n")[2].strip("\n")  # the first line is the result, which stands above the code
        if plain:
            yield _printed(plain)
        plain = ""
    if "image/png" in data:
        yield _picture(page, data["image/png"], output.get("metadata", {}).get("image/png", {}))
    elif "text/html" in data:
        yield _one_block(data["text/html"])
    elif "text/markdown" in data:
        yield markdown(data["text/markdown"], page.language)
    elif plain and not plain.startswith(("[picture]", "[widget]")):
        yield _printed(strip_ansi(plain))


def _printed(text: str) -> str:
    """What a cell printed. Lines wrap, but for tables, whose columns would break."""
    columns = " rr-columns" if re.search(r"\S {2,}\S", text) else ""
    return f'<pre class="rr-output{columns}">{escape(text)}</pre>'


def _result_row(key: str, values: list[str], page: Page) -> str:
    """What was predicted and found, to which the page's script adds the guess. values: such as "predicted 3"."""
    cells = []
    for value in values:
        label = next((one for one in LABELS if value.startswith(GUESS_WORDS(one, "en"))), "")
        if label == "not_measured":
            continue  # that there is a prediction alone says this
        text = value.removeprefix(GUESS_WORDS(label, "en")).strip() if label else value
        options = dict(page.questions.get(key, {}).get("options", ()))
        name = GUESS_WORDS(label, page.language) if label else ""
        cells.append(f"<div><span>{escape(name)}</span> <b>{escape(options.get(text, text))}</b></div>")
    return f'<div class="rr-row" data-key="{key}">{"".join(cells)}</div>'


def _one_block(html: str) -> str:
    """Saved HTML without empty lines, where Markdown would end the block, and with links that lead to pages."""
    html = _QUIZ_COMMAND.sub('<a href="quiz.html">quiz</a>', html)
    html = _NOTEBOOK_LINK.sub(r'href="\1.html\2"', html).replace(".html#cell-id=", ".html#cell-")
    return '<div class="rr-printed">\n' + re.sub(r"\n\s*\n", "\n&#8203;\n", html) + "\n</div>"


def _picture(page: Page, encoded: str, metadata: dict[str, Any]) -> str:
    """An image in a file of its own, which is loaded when the reader comes near it."""
    content = base64.b64decode(encoded)
    name = hashlib.sha256(content).hexdigest()[:16] + ".png"
    is_foreign = page.language != "en" and not page.pictures  # saved pictures are in English, and the first one says so
    note = f'<p class="rr-note">{words("english", page.language)}</p>\n' if is_foreign else ""
    page.pictures[name] = content
    width, height = struct.unpack(">II", content[16:24])  # of the PNG's header
    shown = min(metadata.get("width", width), width)
    size = f'width="{shown}" height="{round(shown * height / width)}"'
    described = f'alt="{escape(metadata.get("alt", ""))}"'
    image = f'<img class="rr-light" loading="lazy" src="{page.pictures_at}/{name}" {size} {described}>'
    return f'{note}<div class="rr-scroll" style="--width:{shown}px">{image}</div>'
