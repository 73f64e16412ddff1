"""What a chapter in stations must be. Each rule gives sentences, one for each thing that is wrong; none is good."""

from __future__ import annotations

import re
from collections.abc import Iterator

from helpers.interview import corner
from helpers.learner.course import STATION, headings, read_cells
from tests.notebooks.chapter import FENCE, asks, is_code, is_folded, lines, lines_of, on_path, source, tags, words

# Words count also in paragraphs with a Chinese term. Before, these were left out, and 1,300 and 3,000 were the limits.
PATH = {"minutes": 40, "words": 1800, "lines of code": 150}
WHOLE = {"minutes": 90, "words": 4400, "lines of code": 350, "cells": 60}
# Chapter 02 is history: three stations with 1,000 words and one exercise; what is behind them is an appendix.
HISTORY = "02_data_parallel"
CELL_LINES, WHY_WORDS, TAKEAWAYS, EXERCISES = 25, 160, 10, (2, 4)
_IMAGE = re.compile(r"!\[([^\]]*)\]|<img\b([^>]*)>")
_LINK = re.compile(r"\[[^\]]*\]\([^)]*\)")
_CITED = re.compile(
    r"[A-Z][\w-]+ et al\.|[A-Z][a-z]+(?: (?:and|&) [A-Z][a-z]+)+,? \(?(?:19|20)\d\d|[A-Z][a-z]+ \((?:19|20)\d\d\)"
)
_DETAILS = re.compile(r"<details[^>]*>\s*<summary>\s*(?:<[^>]*>)?\s*Why\b.*?</summary>(.*?)</details>", re.DOTALL)
_TABLE = re.compile(r"^\|(.+)\|\s*$", re.MULTILINE)


def title(cells: list[dict], name: str) -> Iterator[str]:
    own = f"# {name[:2]} · " if name[:2].isdigit() else "# Interview"
    if not source(cells[0]).startswith(own):
        yield f"the first cell begins {source(cells[0])[:30]!r}, not {own!r} and the title"
    if "?" not in source(cells[0]):
        yield "the first cell asks no question"


def stations(cells: list[dict], name: str) -> Iterator[str]:
    found = read_cells(cells)
    letters = "".join(one.letter for one in found)
    least, most = (3, 3) if name == HISTORY else (4, 8)
    if letters != "ABCDEFGHIJ"[: len(letters)] or not least <= len(letters) <= most:
        yield f"the stations are {letters or 'none'}; {least} to {most}, from A on without a gap, are expected"
    marks = [one.on_path for one in found]
    if marks != sorted(marks, reverse=True) or not 3 <= sum(marks) <= 4:
        yield f"▶ stands at {sum(marks)} stations; the first three or four have it"
    last = found[-1].last if found else 0
    for place, text in headings(cells):
        if not STATION.fullmatch(text) and (place < last or "▶" in text or re.match(r"[A-Z] ·", text)):
            yield f"heading {text!r} is none of `▶ A · Title (6 min)`, and before the end each must be"


def limits(cells: list[dict], name: str) -> Iterator[str]:
    found, path = read_cells(cells), on_path(cells)
    on = [cell for place, cell in enumerate(cells) if place in path]
    has = {"minutes": sum(one.minutes for one in found if one.on_path), "words": words(on), "lines of code": lines(on)}
    most_on_path = PATH | ({"words": 1000} if name == HISTORY else {})
    yield from (
        f"the path has {has[one]} {one}, at most {most}" for one, most in most_on_path.items() if has[one] > most
    )
    counted = [cell for cell in cells if not asks(cell, "guess", "exercise")]
    minutes = sum(one.minutes for one in found) + corner_minutes(cells, name)
    has = {"minutes": minutes, "words": words(cells), "lines of code": lines(cells)}
    has["cells"] = len(counted)
    yield from (f"the chapter has {has[one]} {one}, at most {most}" for one, most in WHOLE.items() if has[one] > most)


def corner_minutes(cells: list[dict], name: str) -> int:
    """Minutes of the cards in view in the corner of a numbered chapter; 0 where there is no corner."""
    has_corner = name[:2].isdigit() and any(asks(cell, "corner") for cell in cells)
    return corner(name).minutes if has_corner else 0


def long_cells(cells: list[dict], name: str) -> Iterator[str]:
    for cell in cells:
        if is_code(cell) and not is_folded(cell) and lines_of(cell) > CELL_LINES:
            yield f"{cell['id']} has {lines_of(cell)} lines that are read, at most {CELL_LINES}; fold it or move it"


def long_whys(cells: list[dict], name: str) -> Iterator[str]:
    for cell in cells:
        for why in _DETAILS.findall(source(cell)) if cell["cell_type"] == "markdown" else ():
            if (count := words([{"cell_type": "markdown", "source": why}])) > WHY_WORDS:
                yield f"a why in {cell['id']} has {count} words, at most {WHY_WORDS}"


def folded(cells: list[dict], name: str) -> Iterator[str]:
    for before, cell in zip([None, *cells], cells, strict=False):
        if cell["cell_type"] == "code" and is_folded(cell) and not _says(before):
            yield f"{cell['id']} is folded, and no line of Markdown directly above says what it does"


def _says(cell: dict | None) -> bool:
    last = source(cell).strip().splitlines()[-1:] if cell and cell["cell_type"] == "markdown" else []
    return bool(last) and not last[0].startswith(("#", "</details", "|", "```"))


def path_tags(cells: list[dict], name: str) -> Iterator[str]:
    """A path that is the beginning needs nothing from off it: who runs the chapter from the top runs it alone first."""
    path = on_path(cells)
    if path != set(range(len(path))):
        yield f"the path is not the first cells of the notebook: cell {min(set(range(len(cells))) - path)} is off it"
    for place, cell in enumerate(cells):
        if (place in path) != ("path" in tags(cell)):
            yield f"{cell['id']} is {'on' if place in path else 'off'} the path by its heading, and not by its tag"


def asked(cells: list[dict], name: str) -> Iterator[str]:
    for one in read_cells(cells):
        if one.on_path and not one.guesses:
            yield f"station {one.letter} asks no guess with a key"
    exercises = sum(asks(cell, "exercise") for cell in cells)
    least, most = (1, 1) if name == HISTORY else EXERCISES
    if not least <= exercises <= most:
        yield f"there are {exercises} exercises, {least} to {most} are expected"
    wrong = [key for one in read_cells(cells) for key in (*one.guesses, *one.exercises) if not _own(key, name)]
    yield from (f"the key {key} does not begin with this chapter's number" for key in wrong)


def _own(key: str, name: str) -> bool:
    return not name[:2].isdigit() or key.startswith(f"{name[:2]}.")


def takeaways(cells: list[dict], name: str) -> Iterator[str]:
    last = max((one.last for one in read_cells(cells)), default=0)
    tables = [cell for cell in cells[last + 1 :] if cell["cell_type"] == "markdown" and "本章要点" in source(cell)]
    if not tables:
        yield "there is no table of takeaways, English | 本章要点, after the stations"
        return
    table = [[part.strip() for part in row.split("|")] for row in _TABLE.findall(source(tables[-1]))]
    head, rule, *rows = table or [[], []]
    if len(head) != 2 or "本章要点" not in head[-1] or not 1 <= len(rows) <= TAKEAWAYS:
        yield f"the takeaways have {len(head)} columns and {len(rows)} rows; two and at most {TAKEAWAYS} are expected"
    if any(len(row) != 2 or not all(row) for row in rows):
        yield "a row of the takeaways lacks one of its two languages"


def closing(cells: list[dict], name: str) -> Iterator[str]:
    last = max((one.last for one in read_cells(cells)), default=0)
    for function in ("my_guesses", "course_map"):
        if not any(asks(cell, function) for cell in cells[last + 1 :]):
            yield f"{function} is not called after the stations"


def opening(cells: list[dict], name: str) -> Iterator[str]:
    places = [place for place, cell in enumerate(cells) if "opening" in tags(cell)]
    # The cell that installs the course on Colab is the second one, and a text stands between it and the picture.
    last = 3 if "install" in tags(cells[1]) else 1
    if len(places) != 1 or places[0] > last:
        yield "one cell, the first or the second, must have the tag `opening`"
    elif not _has_picture(cells[places[0]]):
        yield f"{cells[places[0]]['id']} has the tag `opening` and no picture"


def _has_picture(cell: dict) -> bool:
    kept = any(kind.startswith("image/") for output in cell.get("outputs", []) for kind in output.get("data", {}))
    return kept or bool(cell["cell_type"] == "markdown" and _IMAGE.search(source(cell)))


def alt_texts(cells: list[dict], name: str) -> Iterator[str]:
    for cell in cells:
        for alt, attributes in _IMAGE.findall(_prose(cell)):
            if not alt.strip() and not re.search(r'\balt="[^"]+"', attributes):
                yield f"a picture in {cell['id']} has no alt text"


def citations(cells: list[dict], name: str) -> Iterator[str]:
    for cell in cells:
        yield from (
            f"{cell['id']} cites {said!r} without a link" for said in _CITED.findall(_LINK.sub("", _prose(cell)))
        )


def boxes(cells: list[dict], name: str) -> Iterator[str]:
    for cell in cells:
        if cell["cell_type"] == "markdown" and re.search(r"[\u2500-\u259f]", source(cell)):
            yield f"{cell['id']} draws with box characters; make it a picture"


def _prose(cell: dict) -> str:
    return re.sub(r"`[^`\n]*`", "", FENCE.sub("", source(cell))) if cell["cell_type"] == "markdown" else ""


RULES = (
    title, stations, limits, long_cells, long_whys, folded, path_tags, asked, takeaways, closing, opening, alt_texts,
    citations, boxes,
)  # fmt: skip
