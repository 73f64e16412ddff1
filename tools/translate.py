"""Notebooks in another language: Markdown by cell id, from `zh/NN.yaml` beside the notebook. PyYAML, nothing else.

notebooks/zh/03.yaml     cell id -> hash (of the English that was translated) and text; labs/zh/03.yaml: of the lab
--stale NN               what is left to do: stale entries with the diff of their English, then entries to fill in
--hash NN                every hash is of today's English, once you have looked at what changed
A cell without an entry, or with a stale one, stays English.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS, LANGUAGE = ("notebooks", "labs"), "zh"
_ENTRY = re.compile(r"^([\w-]+):\n  hash:.*$", re.MULTILINE)

Table = dict[str, dict[str, str]]


def table_of(notebook: Path, language: str) -> Path:
    """Where the translation of a notebook lies: notebooks/03_ddp.ipynb -> notebooks/zh/03.yaml."""
    number = notebook.stem.partition("_")[0]
    return notebook.parent / language / f"{number if number.isdigit() else notebook.stem}.yaml"


def read_table(path: Path) -> Table:
    """Cell id -> hash and text. ValueError, with the file and the entry, for one of another form."""
    if not path.exists():
        return {}
    import yaml

    loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)  # texts only: the hash 12345678 is no number
    table = yaml.load(path.read_text(encoding="utf-8"), loader) or {}
    for name, entry in table.items():
        if not isinstance(entry, dict) or entry.keys() != {"hash", "text"}:
            raise ValueError(f"{path.name}: `{name}` is {str(entry)[:60]!r}; write a hash and a text")
    return table


def hash_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def translatable(content: bytes) -> dict[str, str]:
    """Cell id -> English Markdown, but for the cells in which learners answer."""
    return {
        cell["id"]: "".join(cell["source"])
        for cell in json.loads(content)["cells"]
        if cell["cell_type"] == "markdown" and not cell["metadata"].get("nbgrader", {}).get("solution")
    }


def translated(content: bytes, table: Table) -> bytes:
    """The notebook with every text whose English is still what was translated."""
    if not table:
        return content
    notebook, fresh = json.loads(content), translatable(content).keys() & table.keys() - set(stale(content, table))
    for cell in notebook["cells"]:
        if cell["id"] in fresh:
            cell["source"] = table[cell["id"]]["text"].rstrip("\n").splitlines(keepends=True)
    return json.dumps(notebook, indent=1, ensure_ascii=False).encode() + b"\n"


def stale(content: bytes, table: Table) -> list[str]:
    """Ids of entries whose English is another by now."""
    known = translatable(content)
    return [name for name in table if name in known and table[name]["hash"] != hash_of(known[name])]


# -- for translators -------------------------------------------------------------------------------------------------
def left_to_do(notebook: Path) -> Iterator[str]:
    """Stale entries with their diffs, then entries with the English text, to be filled in."""
    content, table = notebook.read_bytes(), read_table(table_of(notebook, LANGUAGE))
    known = translatable(content)
    for name in stale(content, table):
        before = next((text for text in _earlier(notebook, name) if hash_of(text) == table[name]["hash"]), "")
        lines = difflib.unified_diff(before.splitlines(), known[name].splitlines(), "translated", "now", lineterm="")
        yield f"# {name} is stale\n" + "\n".join(lines)
    for name in (name for name in known if name not in table):
        text = "\n".join(f"    {line}".rstrip() for line in known[name].splitlines())
        yield f"{name}:\n  hash: {hash_of(known[name])}\n  text: |\n{text}"


def _earlier(notebook: Path, name: str) -> Iterator[str]:
    """The English of a cell in the commits that changed its notebook, the latest first."""
    git = ("git", "-C", str(notebook.parent))
    for commit in subprocess.check_output((*git, "log", "--format=%H", "--", notebook.name), text=True).split():
        shown = subprocess.run((*git, "show", f"{commit}:./{notebook.name}"), capture_output=True)
        yield from [translatable(shown.stdout).get(name, "")] if shown.returncode == 0 else []


def refresh(notebook: Path) -> None:
    """Write today's hash into each entry; all else in the file stays as it is."""
    path, known = table_of(notebook, LANGUAGE), translatable(notebook.read_bytes())
    if path.exists():
        text = path.read_text(encoding="utf-8")
        text = _ENTRY.sub(lambda found: f"{found[1]}:\n  hash: {hash_of(known.get(found[1], ''))}", text)
        path.write_text(text, encoding="utf-8")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--stale", metavar="NN", help="print what is left to translate of a chapter and its lab")
    what.add_argument("--hash", metavar="NN", help="refresh the hashes of a chapter and its lab")
    options = parser.parse_args(arguments)
    number = options.stale or options.hash
    found = [path for folder in FOLDERS for path in sorted((ROOT / folder).glob(f"{number}*.ipynb"))]
    if not found:
        print(f"There is no notebook {number!r}: give a number such as 03, or interview.", file=sys.stderr)
        return 1
    for path in found:
        if options.hash:
            refresh(path)
        else:
            print(f"## {table_of(path, LANGUAGE).relative_to(ROOT)}", *left_to_do(path), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
