"""Builds docs/strategies.md, which GitHub shows, from notebooks/strategies.ipynb and the core files that it shows.

Texts, outputs and the picture are those of the saved notebook, and the code is read from the files that `show` names
there, so nothing is typed twice. `--check` writes nothing and says what is not up to date.
"""

from __future__ import annotations

import argparse
import base64
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOK, PAGE = "notebooks/strategies.ipynb", "docs/strategies.md"
SHOWN = re.compile(r"^\[source\] \S+ · (\S+)$", re.MULTILINE)  # the text of what `show` returns
STARTED = re.compile(r"\d+ ranks on ")
PICTURE = re.compile(r"^\[picture\] (.+)$", re.MULTILINE)
NOTE = (
    "<!-- Written by tools/build_strategies_page.py. Change the notebook or the core files, and run it again. -->\n\n"
    "*This page is [a notebook of the course](../notebooks/strategies.ipynb), with its code and its saved results.*"
)


def page_of(cells: list[dict], root: Path) -> tuple[str, dict[str, bytes]]:
    """The Markdown of the page, and the pictures that it refers to, by file name."""
    parts, pictures = [], {}
    for cell in cells:
        if cell["cell_type"] == "markdown":
            parts.append(as_page("".join(cell["source"])))
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            text = "".join(data.get("text/plain", ""))
            parts += [listing(path, root) for path in SHOWN.findall(text)]
            printed = lines_of_results(output)
            parts += [f"```text\n{printed}\n```"] if printed else []
            if "image/png" in data:
                name = f"strategies_{cell['id']}.png"
                pictures[name] = base64.b64decode("".join(data["image/png"]))
                parts.append(f"![{PICTURE.search(text)[1]}]({name})")
    return "\n\n".join([parts[0], NOTE, *parts[1:]]) + "\n", pictures


def lines_of_results(output: dict) -> str:
    """What a cell printed, without the line that says how long the ranks took to start."""
    lines = "".join(output.get("text", "")).splitlines()
    return "\n".join(line for line in lines if not STARTED.match(line))


def as_page(markdown: str) -> str:
    """The text of a cell with links that work from docs/ on GitHub, where the anchors of headings are in lower case."""
    markdown = re.sub(r"\]\(([\w-]+\.ipynb)", r"](../notebooks/\1", markdown)
    return re.sub(r"\]\((#[\w-]+)\)", lambda link: f"]({link[1].lower()})", markdown)


def listing(path: str, root: Path) -> str:
    """The file as a block of code below a link to it."""
    return f"[`{path}`](../{path})\n\n```python\n{(root / path).read_text(encoding='utf-8').strip()}\n```"


def build(root: Path, *, check: bool) -> list[str]:
    """Write the page and its pictures, or with `check` compare them. Returns a sentence for each file that differs."""
    cells = json.loads((root / NOTEBOOK).read_text(encoding="utf-8"))["cells"]
    text, pictures = page_of(cells, root)
    files = {PAGE: text.encode()} | {f"docs/{name}": content for name, content in pictures.items()}
    stale = [name for name, content in files.items() if not is_equal(root / name, content)]
    if not check:
        for name in stale:
            (root / name).write_bytes(files[name])
        return []
    return [f"{name}: it is not what {NOTEBOOK} gives; run `python tools/build_strategies_page.py`." for name in stale]


def is_equal(path: Path, content: bytes) -> bool:
    return path.exists() and path.read_bytes() == content


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=ROOT)
    parser.add_argument("--check", action="store_true", help="write nothing, exit 1 if the page is not up to date")
    options = parser.parse_args(arguments)
    wrong = build(options.root, check=options.check)
    print("\n".join(wrong) or f"{PAGE}: up to date with {NOTEBOOK}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
