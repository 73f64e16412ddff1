"""Provides what a browser needs to run the course's pure Python: Pyodide from npm, and one archive with our package.

Pyodide is CPython compiled to WebAssembly. Its version is pinned, and the file is checked against the sha512 that npm
publishes, so the same files are built everywhere. A downloaded file is kept in build/ for the next time.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import pickle
import re
import sys
import tarfile
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "page")]
import exercises  # noqa: E402
from explorer_block import stored  # noqa: E402

from helpers.grading.registry import lab_of  # noqa: E402
from helpers.learner.yaml_file import read_texts, read_yaml  # noqa: E402

VERSION = "314.0.7"
SHA512 = "0YvXxEhfEdpLfb/XkM2BFAeMROq0iMUX2bzzH9pOttyMcWkwq+HbE5uyuGD82LN7y2q+SNvi/6V5JEsOlD2R1A=="  # npm's `integrity`
ADDRESS = f"https://registry.npmjs.org/pyodide/-/pyodide-{VERSION}.tgz"
FILES = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json")
# What the explorers and the talks import, below helpers/, and the pure libraries that they need.
PACKAGES = (
    "commands/broken_jobs", "commands/traces", "draw", "interview", "learner", "predict", "quantities", "records",
    "schedules", "specs", "widgets",
)  # fmt: skip
# Single files below helpers/: the rule by which DDP fills buckets, and for exercises the texts about an exception.
FILES_OF_PACKAGES = {
    "parallel": ("__init__.py", "shared/__init__.py", "shared/bucket_rule.py"),
    "ranks": ("__init__.py", "board/__init__.py", "board/errors.py", "board/sites.py"),
}
_IMPORTS_TORCH = re.compile(r"^(import|from) torch\b", re.MULTILINE)
LIBRARIES = ("yaml", "fsrs", "typing_extensions")
KINDS = {".py", ".yaml", ".css", ".json", ".jsonl", ".csv"}


def install_pyodide(folder: Path, cache: Path) -> None:
    """Put Pyodide's files into the folder. Raises ValueError if what was downloaded is not what was pinned."""
    archive = cache / f"pyodide-{VERSION}.tgz"
    if not archive.exists() or _sha512(archive) != SHA512:
        cache.mkdir(parents=True, exist_ok=True)
        with urllib.request.urlopen(ADDRESS, timeout=60) as answer:
            archive.write_bytes(answer.read())
    if _sha512(archive) != SHA512:
        archive.unlink()
        raise ValueError(f"{ADDRESS} has another content than the pinned one; try again, or look at the address")
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive) as package:
        for name in FILES:
            (folder / name).write_bytes(package.extractfile(f"package/{name}").read())


def write_package(path: Path, root: Path) -> None:
    """Write the archive with our pure packages and the libraries that they need."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file, name in package_files(root):
            make = {".yaml": as_json, ".ipynb": outline}.get(file.suffix, Path.read_bytes)
            content = make(file)
            # One time for all files, so that the same commit gives the same archive.
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
        # A page has no msgspec, with which traces are read, so it gets what was read here.
        archive.writestr(zipfile.ZipInfo("page/stored.pickle"), pickle.dumps(stored()), zipfile.ZIP_DEFLATED)


def as_json(path: Path) -> str:
    """A YAML file of the course as JSON, which helpers.learner.yaml_file reads much faster in a browser."""
    has_texts = path.parent.name == "words" or path.name == "needs.yaml"  # files that are read with read_texts
    return json.dumps((read_texts if has_texts else read_yaml)(path), ensure_ascii=False)


def outline(notebook: Path) -> str:
    """A notebook of which only the ids and tags of its cells are left: with them, links lead to a cell of a page."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    short = [{"id": one["id"], "metadata": {"tags": one["metadata"].get("tags", [])}} for one in cells]
    return json.dumps({"cells": short})


def package_files(root: Path) -> Iterator[tuple[Path, str]]:
    """Each file, and its name in the archive."""
    for name in ("helpers/__init__.py", "helpers/commands/__init__.py"):
        yield root / name, name
    for package in PACKAGES:
        for file in sorted((root / "helpers" / package).rglob("*")):
            if file.suffix in KINDS and "__pycache__" not in file.parts:
                yield file, file.relative_to(root).as_posix()
    for file in [
        *_grader_files(root / "helpers" / "grading"),
        *(root / "helpers" / package / name for package, names in FILES_OF_PACKAGES.items() for name in names),
    ]:
        yield file, file.relative_to(root).as_posix()
    for file in sorted((root / "tools" / "book" / "page").glob("*.py")):
        yield file, f"page/{file.name}"
    for file in sorted((root / "notebooks").glob("*.ipynb")):
        yield file, f"notebooks/{file.name}"
    for library in LIBRARIES:
        origin = Path(importlib.util.find_spec(library).origin)
        if origin.name != "__init__.py":
            yield origin, origin.name
            continue
        for file in sorted(origin.parent.glob("*.py")):
            yield file, f"{library}/{file.name}"


def _grader_files(grading: Path) -> Iterator[Path]:
    """The grader without what imports torch, and of the labs those that have an exercise for a page."""
    labs = {lab_of(key.partition(".")[0]).topic for key in exercises.keys()}
    for folder in (grading, grading / "kit", *(grading / topic for topic in sorted(labs))):
        for file in sorted(folder.iterdir()):
            if file.suffix in KINDS and not _IMPORTS_TORCH.search(file.read_text(encoding="utf-8")):
                yield file


def _sha512(path: Path) -> str:
    """The sha512 of a file, in the form in which npm writes it."""
    return base64.b64encode(hashlib.sha512(path.read_bytes()).digest()).decode()
