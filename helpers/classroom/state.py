"""The file that lets an interrupted run go on: one line of JSON for the settings, then one a graded submission."""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path

from helpers.classroom.results import Result, from_json, to_json

NAME = "state.jsonl"
VERSION = 2


@dataclass(kw_only=True)
class State:
    """seed: of this class. done: the learner to the Result. Use `open_state`."""

    path: Path
    seed: int
    done: dict[str, Result] = field(default_factory=dict)

    def has(self, learner: str, digest: str) -> bool:
        """Whether this learner's very file was graded."""
        return learner in self.done and bool(digest) and self.done[learner].digest == digest

    def add(self, result: Result) -> None:
        """On disk before anything else happens."""
        self.done[result.learner] = result
        _append(self.path, to_json(result))


def open_state(out: Path, seed: int | None) -> State:
    """The state in `out`, or a new one. Raises ValueError if that was graded with another seed."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / NAME
    lines = _lines(path)
    if not lines:
        state = State(path=path, seed=secrets.randbelow(1_000_000) if seed is None else seed)
        path.unlink(missing_ok=True)
        _append(path, {"version": VERSION, "seed": state.seed})
        os.chmod(path, 0o600)
        return state
    header = lines[0]
    if header.get("version") != VERSION or not isinstance(header.get("seed"), int):
        raise ValueError(f"{path} was not written by this grader: choose another --out folder.")
    if seed is not None and seed != header["seed"]:
        raise ValueError(f"{out} was graded with another seed: leave --seed out to go on, or choose another --out.")
    state = State(path=path, seed=header["seed"])
    for line in lines[1:]:
        try:
            result = from_json(line)
        except (TypeError, KeyError, AttributeError):
            continue  # a torn line: that submission is graded again
        state.done[result.learner] = result
    return state


def _lines(path: Path) -> list[dict]:
    try:
        texts = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except FileNotFoundError:
        return []
    found = []
    for text in filter(str.strip, texts):
        try:
            found.append(json.loads(text))
        except ValueError:
            found.append({})
    return [line if isinstance(line, dict) else {} for line in found]


def _append(path: Path, fields: dict) -> None:
    with open(path, "a+b") as file:
        is_torn = file.seek(0, os.SEEK_END) and (file.seek(-1, os.SEEK_END), file.read(1) != b"\n")[1]
        file.write((b"\n" if is_torn else b"") + json.dumps(fields, ensure_ascii=False).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
