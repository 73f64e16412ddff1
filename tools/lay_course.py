"""Lay the learner's copies of the notebooks and labs in work/, and never overwrite what the learner changed.

A copy has no outputs, for they would tell what the chapter asks; `OUTPUTS=1` keeps them, for a projector.
`work/.laid.json` remembers, of each file as it was laid, the hash and the hash of its sources. On the next call, for
each original: not there -> lay it; as it was laid, or only run since, and the original moved on -> bring it up to date;
run, and the original stands -> leave it; changed by the learner -> leave it, and if the original moved on since, lay
the new version beside it as NAME.new.ipynb and say so, once.
Another language than English is `translate.py`'s; a copy that the learner changed stays in its own.
Solutions are not copied.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from clear_outputs import cleared, sources  # noqa: E402
from laid_links import as_laid  # noqa: E402
from own_folder import cannot_write, keep_progress, own_folder  # noqa: E402
from translate import read_table, table_of, translated  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
# Folder in the repository -> folder in work/: the chapters lie on top, since they are opened first.
SOURCES = {"notebooks": ".", "labs": "labs"}
MANIFEST = ".laid.json"
SKIPPED = {"__pycache__", ".ipynb_checkpoints", "zh"}  # zh/: translations


@dataclass(frozen=True)
class Laid:
    """What happened to one file: its path in work/, one of laid, updated, current, kept or beside, and a sentence."""

    path: str
    outcome: str
    sentence: str = ""


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def originals(root: Path) -> dict[str, Path]:
    """Path in work/ -> original file, for everything that learners get."""
    found = {}
    for folder, target in SOURCES.items():
        for path in sorted((root / folder).rglob("*")):
            relative = path.relative_to(root / folder)
            if path.is_file() and not SKIPPED & set(relative.parts):
                found[(Path(target) / relative).as_posix()] = path
    return found


def lay(root: Path, work: Path, *, outputs: bool = False, language: str = "en") -> list[Laid]:
    """Bring `work` up to date with the originals under `root`; returns what happened, one entry a file.

    outputs: whether copies keep what the originals' cells gave. Raises ValueError if the manifest in `work` cannot be
    read.
    """
    manifest = read_manifest(work)
    outcomes = []
    for name, path in originals(root).items():
        english = path.read_bytes()
        new = as_laid(translated(english, read_table(table_of(path, language))))
        entry = manifest.setdefault(name, {})
        outcomes.append(
            _lay_one(name, new if outputs else cleared(new), work, entry, digest(as_laid(cleared(english))))
        )
    write(work / MANIFEST, json.dumps(manifest, indent=1, sort_keys=True).encode() + b"\n")
    return outcomes


def _lay_one(name: str, new: bytes, work: Path, entry: dict[str, str], english: str) -> Laid:
    """english: the hash of what an English copy would be, by which the original is known in every language."""
    target = work / name
    mine = target.read_bytes() if target.exists() else None
    outcome = _outcome(mine, new, entry, english)
    if outcome != "kept":
        entry["english"] = english
    if outcome == "beside":
        return _lay_beside(name, new, work, entry)
    if outcome in ("laid", "updated"):
        write(target, new)
    if outcome != "kept":
        entry |= {"laid": digest(new), "sources": sources(new)}
    return Laid(name, outcome)


def _outcome(mine: bytes | None, new: bytes, entry: dict[str, str], english: str) -> str:
    """What is to be done with a copy. mine: its content, None where there is none."""
    if mine is None:
        return "laid"
    if mine == new:
        return "current"
    if digest(mine) == entry.get("laid"):
        return "updated"
    written = sources(mine)
    if written and written == sources(new):  # run, no more: what it gave stays until the chapter itself changes
        entry["sources"] = written
        return "kept"
    if written and written == entry.get("sources"):
        return "updated"
    return "kept" if {digest(new), english} & set(entry.values()) else "beside"


def _lay_beside(name: str, new: bytes, work: Path, entry: dict[str, str]) -> Laid:
    """The learner changed this file and the original moved on: both versions stay."""
    path = Path(name)
    number = 1
    while True:
        beside = path.with_name(f"{path.stem}.new{number if number > 1 else ''}{path.suffix}")
        target = work / beside
        if not target.exists() or digest(target.read_bytes()) == entry.get("beside"):
            break
        number += 1
    write(target, new)
    entry["beside"] = digest(new)
    sentence = f"{name} has your changes and a newer version exists: yours is untouched, the new one is {beside}."
    return Laid(name, "beside", sentence)


def read_manifest(work: Path) -> dict[str, dict[str, str]]:
    path = work / MANIFEST
    if not path.exists():
        return {}
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(
            f"{path} is not readable ({error}): delete that one file and repeat; files you changed will be kept"
        ) from error


def write(path: Path, content: bytes) -> None:
    """Write all of it or none of it, so that a full disk never leaves half a notebook."""
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_name(path.name + ".part")
    half.write_bytes(content)
    os.replace(half, path)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=ROOT)
    parser.add_argument("--work", default="", help="default: work/ in the repository")
    parser.add_argument("--language", default="", help="in which errors, explorers, hints and quiz speak from now on")
    parser.add_argument("--outputs", action="store_true", help="keep what the cells gave, for a projector")
    options = parser.parse_args(arguments)
    try:
        work = own_folder(options.work, options.root)
        keep_progress(work, options.work)
        from helpers.learner import words

        if options.language:
            words.store_language(options.language)
        outcomes = lay(options.root, work, outputs=options.outputs, language=options.language or words.language())
    except ValueError as error:
        print(f"The copies were not laid. {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"The copies were not laid. {cannot_write(work, error)}", file=sys.stderr)
        return 1
    counts = Counter(laid.outcome for laid in outcomes)
    said = ", ".join(f"{number} {outcome}" for outcome, number in sorted(counts.items())) or "nothing yet"
    print(f"{work if options.work else 'work'}/: {said}")
    for laid in outcomes:
        if laid.sentence:
            print(laid.sentence)
    return 0


if __name__ == "__main__":
    sys.exit(main())
