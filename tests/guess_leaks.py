"""Where a notebook gives an answer away: what a reader can see before a guess, and what an answer looks like."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from helpers import widgets
from helpers.interview.answers import FACTORS, KINDS, SPOKEN
from helpers.learner.guesses.questions import Declaration
from tests.notebooks.labels import LABELS

TEENS = "eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty"
NUMBERS = f"zero one two three four five six seven eight nine ten {TEENS}".split()
SPELLED = {word: value for value, word in enumerate(NUMBERS)}
SPELLED |= dict(zip("零一二三四五六七八九十", range(11), strict=True)) | {"两": 2, "half": 0.5}
DIGITS = r"(?<![\w.,])(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:e[+-]?\d+)?"
NUMBER = re.compile(rf"{DIGITS}|(?<![A-Za-z])(?:{'|'.join(SPELLED)})(?![A-Za-z])", re.IGNORECASE)
LONG_UNITS = {"kilobytes": "kB", "megabytes": "MB", "gigabytes": "GB", "milliseconds": "ms", "microseconds": "µs"}
LONG_UNITS |= {"time": "x", "fold": "x", "per cent": "%"}
NEAR = 0.005  # relative: 64.2 MB gives 64.19 MB away
DETAILS = re.compile(r"<details>.*?</details>", re.DOTALL)


@dataclass(frozen=True)
class Asked:
    """A call of `guess` or `reveal` in a notebook. cell: its place. is_last: it is shown. Nothing stands
    behind it in its cell, or `display` gets it, so that a question and its result can stand in one cell."""

    name: str
    key: str
    cell: int
    unit: str
    text: str
    is_last: bool


def calls(notebook) -> list[Asked]:
    """Those with a key, in order."""
    code = ((place, cell) for place, cell in enumerate(notebook.cells) if cell.cell_type == "code")
    return [one for place, cell in code for one in _calls(place, cell.source)]


def _calls(place: int, source: str) -> Iterator[Asked]:
    tree = _parsed(source)
    for node in ast.walk(tree) if tree else ():
        name = getattr(getattr(node, "func", None), "id", "")
        if name not in ("guess", "reveal"):
            continue
        named = {one.arg: one.value.value for one in node.keywords if isinstance(one.value, ast.Constant)}
        first = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else ""
        key = named.get("key", "") if name == "guess" else first
        choices = " / ".join(text for one in node.keywords if one.arg == "choices" for text in _texts(one.value))
        if key:
            text = first if name == "guess" and not choices else ""
            is_last = any(node is shown for shown in _shown(tree))
            yield Asked(name, key, place, str(named.get("unit", "")), text, is_last)


def _shown(tree: ast.Module) -> Iterator[ast.expr]:
    """What a cell shows: its last expression, and what a line of it hands to `display`."""
    yield getattr(tree.body[-1], "value", None)
    for line in tree.body:
        called = getattr(line, "value", None)
        if isinstance(called, ast.Call) and getattr(called.func, "id", "") == "display":
            yield from called.args


def _texts(node: ast.AST) -> list[str]:
    return [one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str)]


def _parsed(source: str) -> ast.Module | None:
    """None for a cell in another language than Python's, such as one of %%ranks."""
    try:
        return ast.parse("\n".join("" if line.startswith(("%", "!")) else line for line in source.splitlines()))
    except SyntaxError:
        return None


def leaks(notebook, asked: Asked, known: Declaration, shown_at: int | None) -> list[str]:
    """Each place that gives the answer away: before the guess, in it, in the code up to its result, and unfolded in
    what explains it."""
    found = [f"cell {n}: {told}" for n in range(asked.cell) for told in _found(notebook.cells[n], asked, known)]
    found += [f"the question itself: {told}" for told in given_away(asked.text, asked.unit, known)]
    if shown_at is not None:
        found += [f"cell {place}, not folded: {told}" for place, told in _explained(notebook, asked, known, shown_at)]
        between = range(asked.cell + 1, shown_at + 1)
        found += [f"code {place}: {told}" for place in between for told in _coded(notebook.cells[place], asked, known)]
    return found


def _found(cell, asked: Asked, known: Declaration) -> Iterator[str]:
    for text in seen(cell):
        yield from given_away(text, asked.unit, known)


def _coded(cell, asked: Asked, known: Declaration) -> Iterator[str]:
    """Where code that is read between a guess and its result holds the answer: in words, or as a constant."""
    folded = cell.metadata.get("jupyter", {}).get("source_hidden")
    tree = None if cell.cell_type != "code" or folded else _parsed(cell.source)
    if tree is None:
        return
    yield from given_away(cell.source, asked.unit, known)
    told = {id(part) for node in _telling(tree) for part in ast.walk(node)}
    for node in ast.walk(tree):
        value = _folded(node)
        if value is not None and _is_answer(value, asked.unit, known.answer, is_told=id(node) in told):
            yield ast.unparse(node)


def _telling(tree: ast.Module) -> Iterator[ast.AST]:
    """Asserts, and the values that `reveal` prints: a number there is a result."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            yield node
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "reveal":
            yield from (one.value for one in node.keywords if one.arg in LABELS)


def _folded(node: ast.AST) -> object | None:
    """The value of an expression of constants alone, such as 1 + 2; None for others."""
    if not isinstance(node, ast.Constant | ast.BinOp | ast.UnaryOp | ast.List | ast.Tuple):
        return None
    if any(isinstance(part, ast.Name | ast.Call | ast.Attribute | ast.Subscript) for part in ast.walk(node)):
        return None
    try:
        return eval(ast.unparse(node), {"__builtins__": {}})
    except (ArithmeticError, NameError, SyntaxError, TypeError, ValueError):  # a part of a subscript is no expression
        return None


def _is_answer(value: object, unit: str, answer: object, *, is_told: bool) -> bool:
    """is_told: as a result; elsewhere a number counts only in another unit, as 6e6 for 6 MB."""
    if isinstance(value, str | list | tuple):
        return value == answer or (isinstance(value, list) and tuple(value) == answer)
    if isinstance(value, bool | complex | bytes) or not isinstance(value, int | float) or not isinstance(answer, float):
        return False
    factor = 0.01 if unit == "%" else FACTORS.get(unit, 1.0)
    values = [answer * factor] * (factor != 1.0) + [answer] * is_told
    return any(abs(value - one) <= NEAR * abs(one) for one in values)


def _explained(notebook, asked: Asked, known: Declaration, shown_at: int) -> Iterator[tuple[int, str]]:
    """From the guess to its result, and the prose directly behind the result up to a heading."""
    after = shown_at + 1
    while after < len(notebook.cells) and notebook.cells[after].cell_type == "markdown":
        after += 1
    for place in range(asked.cell + 1, after):
        cell = notebook.cells[place]
        if cell.cell_type == "markdown":
            text, *later = re.split(r"^#+ ", DETAILS.sub("", cell.source), maxsplit=1, flags=re.MULTILINE)
            yield from ((place, told) for told in given_away(text, asked.unit, known))
            if later and place > shown_at:
                return
        elif place < shown_at:
            yield from ((place, told) for told in _found(cell, asked, known))


def seen(cell) -> Iterator[str]:
    """All texts of a cell that a reader, or a widget in it, shows."""
    yield cell.source
    for output in cell.get("outputs", ()):
        texts = [output.get("text", "")]
        texts += [text for name, text in output.get("data", {}).items() if "image" not in name]
        yield from (re.sub(r"<[^>]+>", " ", text) for text in texts if isinstance(text, str))
    if cell.cell_type == "code" and (tree := _parsed(cell.source)) is not None:
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "").endswith("Explorer"):
                yield from _explorer(ast.unparse(node))


@cache
def _explorer(call: str) -> tuple[str, ...]:
    """What an explorer says when it is first shown; one that needs variables of the notebook has its saved output."""
    try:
        made = eval(call, {name: getattr(widgets, name) for name in widgets.__all__})
    except NameError:
        return ()
    saved = getattr(made, "saved", None)
    labels = [label.text for label in saved.labels()] if saved else []
    return (made.TEXT, getattr(made, "text", ""), getattr(saved, "summary", ""), *labels)


def given_away(text: str, unit: str, known: Declaration) -> list[str]:
    """The pieces of a text that hold the answer: a number with its unit in any common form, a choice or order in its
    own words where these are three or more, a phrase of `spoils`."""
    flat = re.sub(r"[*_`$]", "", text)
    phrases = _phrases(known)
    said = [one for one in phrases if re.search(rf"(?<!\w){re.escape(one)}(?!\w)", flat, re.IGNORECASE)]
    return said + (list(_numbers(flat, unit, known.answer)) if isinstance(known.answer, float) else [])


def _phrases(known: Declaration) -> list[str]:
    answer = known.answer
    own = [answer] if isinstance(answer, str) and len(answer.split()) > 2 else []
    own += [between.join(answer) for between in (", ", " → ", "; ")] if isinstance(answer, tuple) else []
    return [*own, *known.spoils]


def _numbers(text: str, unit: str, answer: float) -> Iterator[str]:
    """Numbers with a unit of the same kind that are the answer."""
    if not unit:
        return  # a bare number stands in every second line; `spoils` says what would give it away
    base = unit.split(" ")[0] if unit.split(" ")[0] in FACTORS else unit
    for match in NUMBER.finditer(text):
        behind = text[match.end() : match.end() + 24]
        value = float(SPELLED.get(match[0].lower(), 0) if match[0].lower() in SPELLED else match[0].replace(",", ""))
        factor = _factor(behind, base)
        expected = answer * FACTORS.get(base, 1.0)
        if factor and abs(value * factor - expected) <= NEAR * abs(expected):
            yield (match[0] + behind[:14]).strip()


def _factor(behind: str, base: str) -> float | None:
    """What the number is multiplied by, of the unit that follows it; None where that is of another kind."""
    words = re.match(r"[\s\u00a0-]*([A-Za-zµμ]+(?:/s)?|%|×|[\u4e00-\u9fff]{1,3})", behind)
    if words is None:
        return None
    word = words[1]
    if base not in FACTORS:
        return 1.0 if re.sub(r"s$", "", word.lower()) == re.sub(r"s$", "", base.split(" ")[0].lower()) else None
    chinese = next((SPOKEN[word[:end]] for end in (3, 2, 1) if word[:end] in SPOKEN), None)
    found = SPOKEN.get(word.lower()) or LONG_UNITS.get(word.lower()) or chinese or word
    same = next((units for units in KINDS.values() if base in units), ())
    return FACTORS[found] if found in same and bool(found) else None
