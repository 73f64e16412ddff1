"""The explorers of a page: each is made when its first dial moves, and is then told every further move."""

from __future__ import annotations

import ast
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from helpers.learner.words import use_language
from helpers.widgets.explorer import Explorer

STORED = Path(__file__).with_name("stored.pickle")  # what explorers show and a page cannot record: name -> value
_made: dict[str, Explorer] = {}  # the name of an explorer on the page -> the explorer


def explorer_of(source: str, stored: Mapping[str, Any]) -> Explorer:
    """The explorer that Python code makes: the value of its last line. stored: name -> value, for the code."""
    *before, last = ast.parse(source).body
    names = dict(stored)
    exec(compile(ast.Module(before, []), "<page>", "exec"), names)
    return eval(compile(ast.Expression(last.value), "<page>", "eval"), names)


def turn(key: str, source: str, language: str, values: dict[str, Any], name: str, value: Any) -> dict[str, Any]:
    """Set a control of an explorer, and return what it then shows (`Explorer.as_json`).

    values: what all controls of the page showed before, by name, for an explorer that must be made first.
    Raises ValueError with a sentence for a control or a value that is not there.
    """
    with use_language(language):
        explorer = _explorer(key, source, values)
        explorer.set(name, _within(explorer, name, value))
        return explorer.as_json()


def press(key: str, source: str, language: str, values: dict[str, Any], part: str) -> dict[str, Any]:
    """Click on a part of the picture; otherwise like `turn`."""
    with use_language(language):
        explorer = _explorer(key, source, values)
        explorer.press(part)
        return explorer.as_json()


def _within(explorer: Explorer, name: str, value: Any) -> Any:
    """The value, or the last step that is still there: another dial may have moved since the page sent this one."""
    control = next((one for one in explorer.as_json()["controls"] if one["name"] == name), None)
    return min(value, control["max"]) if control and control["kind"] == "steps" else value


def _explorer(key: str, source: str, values: dict[str, Any]) -> Explorer:
    """The explorer with this name, made with these values if it was not there."""
    if key not in _made:
        explorer = explorer_of(source, pickle.loads(STORED.read_bytes()) if "stored_" in source else {})
        for control in explorer.as_json()["controls"]:
            if control["kind"] != "button" and values[control["name"]] != control["value"]:
                explorer.set(control["name"], values[control["name"]])
        _made[key] = explorer
    return _made[key]
