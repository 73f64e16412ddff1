"""Bring saved notebooks to one form, so that a diff shows what a person changed; --check only reports.

What is dropped: widget views (a reopened JupyterLab shows "model not found" instead of the picture), timing and
view metadata, the Python version. What is made equal: the kernel's name, execution counts 1, 2, 3, …, split
streams, machine-made cell ids. What is shortened: paths of this machine in outputs. What is refused: a path that
cannot be shortened, and a notebook of more than 520 kB.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("notebooks", "labs", "solutions")
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
LANGUAGE = {"name": "python", "file_extension": ".py", "mimetype": "text/x-python", "pygments_lexer": "ipython3"}
# nbgrader and its locks: a lab cell that must stay as it is says so to JupyterLab through the last two.
LIMIT = 520_000  # bytes of a saved notebook: GitHub shows it in full, and a diff stays readable
KEPT_CELL_METADATA = {"tags", "nbgrader", "jupyter", "slideshow", "deletable", "editable"}
MACHINE_ID = re.compile(r"[0-9a-f]{8}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
# Longest first: what a path of this machine becomes in a saved output.
SHORTER = (
    (re.compile(r"/[\w./-]*/ipykernel_\d+/\d+\.py"), "cell"),
    (re.compile(re.escape(f"{ROOT}/") + r"(?!\.venv/)"), ""),
    (re.compile(r"/[\w./-]+/site-packages/"), "site-packages/"),
    (re.compile(r"/[\w./-]+/lib/python3\.\d+/"), "python/"),
    (re.compile(re.escape(str(Path.home())) + r"(?=/)"), "~"),
)
MACHINE_PATH = re.compile(r"(?<![\w.:/~-])/(?:home|Users|root|work|tmp|private|var|opt|mnt|srv)/[\w.-]+[\w./-]*")


def tidied(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """A tidy copy of `notebook` (nbformat 4)."""
    tidy = nbformat.from_dict(notebook)
    tidy.metadata = nbformat.from_dict({"kernelspec": KERNEL, "language_info": LANGUAGE})
    tidy.nbformat, tidy.nbformat_minor = 4, 5
    taken: set[str] = set()
    count = 0
    for cell in tidy.cells:
        cell.metadata = nbformat.from_dict({k: v for k, v in cell.metadata.items() if k in KEPT_CELL_METADATA})
        cell.id = _stable_id(cell, taken)
        if cell.cell_type == "code":
            count += cell.execution_count is not None
            _tidy_code_cell(cell, count)
    return tidy


def _stable_id(cell: nbformat.NotebookNode, taken: set[str]) -> str:
    """The cell's own id if a person or this tool gave it, else one made from its source; unique in the notebook."""
    own = cell.get("id", "")
    stem = own if own and not MACHINE_ID.fullmatch(own) else "c-" + hashlib.sha256(cell.source.encode()).hexdigest()[:8]
    name, number = stem, 2
    while name in taken:
        name, number = f"{stem}-{number}", number + 1
    taken.add(name)
    return name


def _tidy_code_cell(cell: nbformat.NotebookNode, count: int) -> None:
    if cell.execution_count is not None:
        cell.execution_count = count
    outputs: list[nbformat.NotebookNode] = []
    for output in cell.outputs:
        previous = outputs[-1] if outputs else None
        if output.output_type == "stream" and previous is not None and previous.get("name") == output.name:
            previous.text += output.text
        elif not _is_empty(output):
            outputs.append(output)
    for output in outputs:
        if "execution_count" in output:
            output.execution_count = cell.execution_count
        _shorten(output)
    cell.outputs = outputs


def _is_empty(output: nbformat.NotebookNode) -> bool:
    """Drop the widget view from a rich output; true if nothing is left to show."""
    if "data" not in output:
        return False
    output.data.pop(WIDGET_VIEW, None)
    return not output.data


def _shorten(output: nbformat.NotebookNode) -> None:
    """Replace this machine's paths in every text of an output, in place."""
    for holder, key in _texts(output):
        for pattern, short in SHORTER:
            holder[key] = pattern.sub(short, holder[key])


def _texts(output: nbformat.NotebookNode) -> list[tuple]:
    """(holder, key) of each string that a reader of this output sees."""
    found = [(output, key) for key in ("text", "evalue") if key in output]
    found += [(output.traceback, index) for index in range(len(output.get("traceback", [])))]
    data = output.get("data", {})
    return found + [(data, mime) for mime, value in data.items() if isinstance(value, str) and "image/png" not in mime]


def machine_paths(notebook: nbformat.NotebookNode) -> list[str]:
    """Paths in outputs that only exist on the machine that ran the notebook, with the number of the cell."""
    found = []
    for number, cell in enumerate(notebook.cells):
        for output in cell.get("outputs", []):
            for holder, key in _texts(output):
                found += [f"cell {number}: {path}" for path in MACHINE_PATH.findall(holder[key])]
    return found


def too_large(notebook: nbformat.NotebookNode, size: int) -> list[str]:
    """A sentence if the saved notebook's `size`, in bytes, is above LIMIT; it names the cell that holds the most."""
    if size <= LIMIT:
        return []
    sizes = [(len(str(cell.get("outputs", ""))), number) for number, cell in enumerate(notebook.cells)]
    largest, number = max(sizes, default=(0, 0))
    return [
        f"{_kilobytes(size)} are more than {_kilobytes(LIMIT)}; cell {number} has {_kilobytes(largest)} of "
        "outputs: show less, or a smaller picture"
    ]


def _kilobytes(size: int) -> str:
    return f"{size / 1e3:,.0f} kB"


def tidy_file(path: Path, *, check: bool) -> list[str]:
    """Tidy one notebook in place, or with `check` leave it; returns what is wrong with it, one sentence each."""
    before = path.read_text(encoding="utf-8")
    try:
        notebook = tidied(nbformat.reads(before, as_version=4))
    except Exception as error:  # nbformat raises several kinds for a file that is no notebook
        return [f"{path}: not a notebook ({type(error).__name__}: {error})"]
    after = nbformat.writes(notebook) + "\n"
    wrong = [f"{path}: {finding} is a path of one machine; print a relative one" for finding in machine_paths(notebook)]
    wrong += [f"{path}: {finding}" for finding in too_large(notebook, len(after.encode()))]
    if check and after != before:
        wrong.append(f"{path}: not tidy; run `python tools/tidy_notebooks.py {path}`")
    if not check and after != before:
        path.write_text(after, encoding="utf-8")
    return wrong


def notebooks(paths: list[Path]) -> list[Path]:
    """The notebooks among `paths`, folders searched; without paths those of the course."""
    paths = paths or [ROOT / folder for folder in FOLDERS]
    found = [inner for path in paths for inner in (sorted(path.rglob("*.ipynb")) if path.is_dir() else [path])]
    return [path for path in found if ".ipynb_checkpoints" not in path.parts and path.suffix == ".ipynb"]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="*", type=Path, help="notebooks or folders; default: those of the course")
    parser.add_argument("--check", action="store_true", help="change nothing, exit 1 if something is not tidy")
    options = parser.parse_args(arguments)
    wrong = [finding for path in notebooks(options.paths) for finding in tidy_file(path, check=options.check)]
    print("\n".join(wrong) or f"tidy: {len(notebooks(options.paths))} notebooks")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
