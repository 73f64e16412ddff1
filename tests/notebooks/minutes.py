"""Computes how many minutes the stations of a chapter take, and reads the minutes that the chapter promises.

A station takes

    words / 130  +  1.2 per guess  +  8 per exercise  +  lines of code in view / 15

minutes, rounded to whole ones and at least 1. The parts are counted as follows.

- Stations: what stands before the first station belongs to that station. If a heading stands in the middle of a
  Markdown cell, the text above the heading belongs to the station before. What follows the last station (takeaways,
  appendix, map) belongs to none.
- Words: the English words of Markdown as `chapter.words` counts them, so a folded "Why?" counts and code does not. A
  folded "One answer" or "A hint" directly below an exercise does not count, because the 8 minutes include it.
- Guesses: each call of `guess`. The lines of the call are no lines of code, so a cell that only asks has none.
- Exercises: each cell that calls `exercise`. No line of this cell is a line of code. An exercise for which the Markdown
  above says "(optional" does not count.
- Lines of code: those of cells that are not folded, and those that `show(…)` shows in the saved output, unless it shows
  them folded. Blank lines and import statements are left out.

The first cell of a chapter prints three sums. "▶ … 35 minutes" is the sum of the printed minutes of the ▶ stations.
"All stations together take 75 minutes" is the sum of all stations, and a chapter whose stations are all on the path
leaves it out. "the interview corner takes 9 more" is what the corner itself prints for its cards in view; the other two
sums do not include it.
"""

from __future__ import annotations

import ast
import html
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from helpers.interview import corner
from helpers.learner.course import STATION, Station, calls, read_cells
from tests.notebooks.chapter import CHAPTERS, FENCE, is_code, is_folded, source, words

WORDS, GUESS, EXERCISE, LINES = 130, 1.2, 8, 15  # words a minute, minutes, minutes, lines of code a minute
NUMBERED = [path for path in CHAPTERS if path.stem[:2].isdigit()]  # the chapters that promise minutes
# Where the first cell says its three sums, in English or in Chinese. The second group is the number.
SUMS = {
    "path": re.compile(r"(▶[^.。\n]*?)(\d+)(?= minutes| 分钟)"),
    "stations": re.compile(r"(All stations together take |全部各节一共需要 )(\d+)(?= minutes| 分钟)"),
    "corner": re.compile(r"(the interview corner takes |末尾的面试题另需 )(\d+)(?= more| 分钟)"),
}

_HEADING = re.compile(r"^(?=## )", re.MULTILINE)
_ANSWER = re.compile(r"<details[^>]*>\s*<summary>(?:One answer|A hint).*?</details>", re.DOTALL)
_FOLDED_SOURCE = re.compile(r"<details>.*?</details>", re.DOTALL)
_SHOWN = re.compile(r"<pre[^>]*>(.*?)</pre>", re.DOTALL)
_NUMBER = re.compile(r'^<span style="[^"]*user-select:none">\s*\d+  </span>', re.MULTILINE)  # of a line, in `show`
_TAG = re.compile(r"<[^>]*>")


@dataclass(frozen=True, kw_only=True)
class Counted:
    """What a station consists of, and the minutes that it prints."""

    letter: str
    on_path: bool
    printed: int
    words: int
    guesses: int
    exercises: int
    lines: int

    @property
    def exact(self) -> float:
        """Minutes by the formula."""
        return self.words / WORDS + GUESS * self.guesses + EXERCISE * self.exercises + self.lines / LINES

    @property
    def minutes(self) -> int:
        """Whole minutes, as a heading promises them."""
        return max(round(self.exact), 1)


def counted(cells: Sequence[dict]) -> list[Counted]:
    """Every station of a chapter, in order."""
    pieces = split_at_headings(cells)
    found = read_cells(pieces)
    return [_counted(one, pieces, 0 if one is found[0] else one.first) for one in found]


def _counted(station: Station, pieces: Sequence[dict], first: int) -> Counted:
    own = range(first, station.last + 1)
    exercises = [place for place in own if is_exercise(pieces[place])]
    return Counted(
        letter=station.letter, on_path=station.on_path, printed=station.minutes,
        words=words(read_once(pieces, place) for place in own),
        guesses=sum(1 for place in own if is_code(pieces[place]) for _ in calls(source(pieces[place]), "guess")),
        exercises=sum("(optional" not in _text_above(pieces, place) for place in exercises),
        lines=sum(lines_in_view(pieces[place]) for place in own),
    )  # fmt: skip


def split_at_headings(cells: Sequence[dict]) -> list[dict]:
    """The cells, in which each heading `##` begins a cell of its own."""
    pieces = []
    for cell in cells:
        if cell["cell_type"] != "markdown":
            pieces.append(cell)
            continue
        text = source(cell)
        fences = [found.span() for found in FENCE.finditer(text)]
        starts = [found.start() for found in _HEADING.finditer(text)]
        starts = [0, *(at for at in starts if at and not any(a <= at < b for a, b in fences)), len(text)]
        pieces += [cell | {"source": text[a:b]} for a, b in zip(starts, starts[1:], strict=False)]
    return pieces


def is_exercise(cell: dict) -> bool:
    return is_code(cell) and any(calls(source(cell), "exercise"))


def read_once(pieces: Sequence[dict], place: int) -> dict:
    """The piece at this place, without the answer and the hint of an exercise directly above it."""
    cell = pieces[place]
    is_below = place > 0 and is_exercise(pieces[place - 1]) and cell["cell_type"] == "markdown"
    return cell | {"source": _ANSWER.sub("", source(cell))} if is_below else cell


def _text_above(pieces: Sequence[dict], place: int) -> str:
    """The last paragraph of the Markdown directly above a cell."""
    above = pieces[place - 1] if place else {"cell_type": "code"}
    return source(above).strip().rpartition("\n\n")[2] if above["cell_type"] == "markdown" else ""


# -- lines of code in view -------------------------------------------------------------------------------------------
def lines_in_view(cell: dict) -> int:
    """Lines that a reader reads in this cell, and in the source that it shows."""
    if not is_code(cell):
        return 0
    own = 0 if is_folded(cell) or is_exercise(cell) else read_lines(source(cell))
    return own + sum(read_lines(text) for text in shown_sources(cell))


def read_lines(code: str) -> int:
    """Lines of code without blank ones, import statements and calls of `guess`."""
    magic, rest = re.match(r"((?:%%.*\n)?)(.*)", textwrap.dedent(code), re.DOTALL).groups()
    skipped = {
        number
        for statement in _statements(rest)
        if isinstance(statement, ast.Import | ast.ImportFrom) or _asks(statement)
        for number in range(statement.lineno, statement.end_lineno + 1)
    }
    read = [line for number, line in enumerate(rest.splitlines(), 1) if line.strip() and number not in skipped]
    return len(read) + bool(magic)


def _statements(code: str) -> Iterator[ast.stmt]:
    """Every statement, also those inside of functions; none where the code is no Python."""
    try:
        tree = ast.parse(code)
    except SyntaxError:
        return
    yield from (node for node in ast.walk(tree) if isinstance(node, ast.stmt))


def _asks(statement: ast.stmt) -> bool:
    call = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "guess"


def shown_sources(cell: dict) -> Iterator[str]:
    """The text of each source that `show(…)` shows in the saved output and does not fold."""
    for output in cell.get("outputs", []):
        data = {kind: "".join(text) for kind, text in output.get("data", {}).items() if kind.startswith("text/")}
        if data.get("text/plain", "").startswith("[source] "):
            for block in _SHOWN.findall(_FOLDED_SOURCE.sub("", data.get("text/html", ""))):
                yield html.unescape(_TAG.sub("", _NUMBER.sub("", block)))


# -- what a chapter promises -----------------------------------------------------------------------------------------
def expected_sums(cells: Sequence[dict], name: str) -> dict[str, int]:
    """What the first cell must print if every heading is right: "path", "stations" and "corner"."""
    found = counted(cells)
    path, every = sum(one.minutes for one in found if one.on_path), sum(one.minutes for one in found)
    return {"path": path} | ({"stations": every} if every > path else {}) | {"corner": corner(name).minutes}


def promised_sums(text: str) -> dict[str, list[int]]:
    """The sums that a first cell prints, each as often as it stands there."""
    return {what: [int(number) for _, number in pattern.findall(text)] for what, pattern in SUMS.items()}


def wrong_promises(cells: Sequence[dict], name: str) -> Iterator[str]:
    """A sentence for each printed number that is not the computed one."""
    for one in counted(cells):
        if one.printed != one.minutes:
            yield f"station {one.letter} prints {one.printed} minutes and takes {one.exact:.1f}: {one.minutes}"
    expected = expected_sums(cells, name)
    for what, numbers in promised_sums(source(cells[0])).items():
        right = [expected[what]] if what in expected else []
        if numbers != right:
            yield f"{what}: the first cell prints {numbers or 'no minutes'}, and {right or 'none'} is right"


def with_right_minutes(text: str, minutes: dict[str, int], sums: dict[str, int]) -> str:
    """The text of a cell with the right minutes in its headings of stations, and in its sums if it has any."""

    def heading(found: re.Match) -> str:
        match = STATION.fullmatch(found[1])
        if not match or match["letter"] not in minutes:
            return found[0]
        start, end = match.span("minutes")
        return f"## {found[1][:start]}{minutes[match['letter']]}{found[1][end:]}"

    text = re.sub(r"^## (.+)$", heading, text, flags=re.MULTILINE)
    for what, number in sums.items():
        text = SUMS[what].sub(lambda found, number=number: f"{found[1]}{number}", text)
    return text
