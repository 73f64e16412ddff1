"""Prints how many minutes the stations of a chapter take and promise, and writes the right ones into the notebooks.

    python tools/promised_minutes.py            the chapters that keep their promise by a test
    python tools/promised_minutes.py 06 07      these chapters
    python tools/promised_minutes.py --write 06

`--write` changes the minutes in the headings and in the sums of the first cell, in the notebook and in its Chinese. It
adds no sentence, so a sum that the first cell does not print is named and left to you. The exit status is 1 as long as
a number is wrong. tests/notebooks/minutes.py says how the minutes are computed.

The pictures of the course map show the minutes of all chapters, so run the notebooks again afterwards.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]
from translate import LANGUAGE, hash_of, read_table, stale, table_of  # noqa: E402

from tests.notebooks import minutes  # noqa: E402
from tests.notebooks.chapter import load, source  # noqa: E402

_ENTRY = re.compile(r"^([\w-]+):\n  hash: (\w+)\n  text: \|\n((?:    .*\n|\n)*)", re.MULTILINE)


def table(path: Path) -> str:
    """One line per station, and one line for the sums of the chapter."""
    cells = load(path)
    lines = [f"{path.stem:<22} printed  takes   words  guesses  exercises  lines of code"]
    for one in minutes.counted(cells):
        mark = "▶" if one.on_path else " "
        lines.append(
            f"  {mark} {one.letter:<18} {one.printed:>7} {one.exact:>6.1f}   {one.words:>5}  {one.guesses:>7}"
            f"  {one.exercises:>9}  {one.lines:>13}"
        )
    said = minutes.promised_sums(source(cells[0]))
    for what, number in minutes.expected_sums(cells, path.stem).items():
        lines.append(f"    {what:<18} {' '.join(map(str, said[what])) or '-':>7} {number:>6}")
    return "\n".join(lines)


def write(path: Path) -> None:
    """Write the right minutes into the notebook and into its Chinese; renew the hashes of what changed."""
    content, cells = path.read_bytes(), load(path)
    right = {one.letter: one.minutes for one in minutes.counted(cells)}
    sums = minutes.expected_sums(cells, path.stem)
    notebook, first = json.loads(content), cells[0]["id"]

    def corrected(name: str, text: str) -> str:
        return minutes.with_right_minutes(text, right, sums if name == first else {})

    english = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            english[cell["id"]] = corrected(cell["id"], source(cell))
            cell["source"] = english[cell["id"]].splitlines(keepends=True)
    new = json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
    if new.encode() != content:
        path.write_text(new, encoding="utf-8")
    chinese = table_of(path, LANGUAGE)
    if chinese.exists():
        outdated = stale(content, read_table(chinese))  # their hashes must keep saying so
        up_to_date = {name: text for name, text in english.items() if name not in outdated}
        chinese.write_text(with_entries(chinese.read_text(encoding="utf-8"), up_to_date, corrected), encoding="utf-8")


def with_entries(text: str, english: dict[str, str], corrected: Callable[[str, str], str]) -> str:
    """The text of a table in which the entries of these cells are corrected and have the hash of today's English."""

    def entry(found: re.Match) -> str:
        name, _, body = found.groups()
        if name not in english:
            return found[0]
        lines = "".join(line.removeprefix("    ") for line in body.splitlines(keepends=True))
        body = "".join(f"    {line}" if line.strip() else line for line in corrected(name, lines).splitlines(True))
        return f"{name}:\n  hash: {hash_of(english[name])}\n  text: |\n{body}"

    return _ENTRY.sub(entry, text)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write the right minutes into the notebooks")
    parser.add_argument("chapters", nargs="*", metavar="NN", help="numbers of chapters, such as 06")
    given = parser.parse_args(arguments)
    paths = sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))
    wanted = {path.stem[:2] for path in minutes.NUMBERED} if not given.chapters else given.chapters
    if unknown := set(wanted) - {path.stem[:2] for path in paths}:
        parser.error(f"no chapter has the number {', '.join(sorted(unknown))}")
    wrong = []
    for path in (path for path in paths if path.stem[:2] in wanted):
        if given.write:
            write(path)
        print(table(path), end="\n\n")
        wrong += [f"{path.stem}: {sentence}" for sentence in minutes.wrong_promises(load(path), path.stem)]
    print("\n".join(wrong) or "every number is right")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
