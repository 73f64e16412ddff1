"""A dotted name of the course in a text (YAML, a string in Python, package-data) leads to something that exists."""

from __future__ import annotations

import ast
import pkgutil
import re
import tomllib
from pathlib import Path

import pytest

import helpers
from helpers.learner.guesses.questions import KINDS

PACKAGE = Path(helpers.__file__).parent
ROOT = PACKAGE.parent
NAME = re.compile(r"(?<![\w./-])helpers(?:\.[A-Za-z_]\w*)+")
FILES = sorted(path for path in PACKAGE.rglob("*.yaml"))


def unresolved(names: set[str]) -> dict[str, str]:
    found = {}
    for name in sorted(names):
        try:
            pkgutil.resolve_name(name)
        except (ImportError, AttributeError) as error:
            found[name] = str(error)
    return found


def test_names_in_yaml_lead_somewhere():
    names = {path.relative_to(ROOT): set(NAME.findall(path.read_text(encoding="utf-8"))) for path in FILES}
    assert {str(path): missing for path, of_file in names.items() if (missing := unresolved(of_file))} == {}
    assert sum(map(len, names.values())) > 100


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, in modules that only some commands import
def test_names_in_strings_of_the_package_lead_somewhere():
    """Modules that are imported or started by name: commands, workers, the lists of what a sandbox may see."""
    names: set[str] = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and NAME.fullmatch(node.value):
                names.add(node.value)
    names = {name for name in names if not name.endswith("_")}  # the beginning of a name that is put together
    assert unresolved(names) == {} and len(names) > 20


def test_each_folder_of_data_is_packaged():
    """A pattern that matches nothing is stale; a data file that no pattern matches is not installed."""
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    matched: set[Path] = set()
    for package, globs in patterns.items():
        folders = [path.parent for path in PACKAGE.rglob("__init__.py")] if package == "*" else []
        folders = folders or [ROOT / package.replace(".", "/")]
        for pattern in globs:
            files = {path for folder in folders for path in folder.glob(pattern)}
            assert files, f"{package}: {pattern} matches nothing"
            matched |= files
    data = {path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    missing = [str(path.relative_to(ROOT)) for path in data - matched if path.suffix not in (".py", ".md")]
    assert sorted(missing) == []


def test_kinds_of_guesses_are_packages_of_calculators():
    """The deck finds cards for a kind of guess by its calculators, `helpers.predict.KIND.`."""
    packages = {kind for kind in KINDS if (PACKAGE / "predict" / kind / "__init__.py").is_file()}
    assert {"memory", "traffic", "time"} <= packages
