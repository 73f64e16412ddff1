"""The house keeps its layers: import-linter's contracts, and that no module stands outside them."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NO_TORCH = (
    "records specs specs.mesh quantities.costs quantities.units schedules learner.progress learner.words learner.guesses "
    "learner.course predict draw widgets interview commands.zoo commands.traces"
).split()
MAX_FILE, MAX_FUNCTION = 450, 40


def lint_imports() -> subprocess.CompletedProcess:
    code = "from importlinter.cli import lint_imports_command as lint; lint()"
    command = [sys.executable, "-c", code, "--no-logo", "--no-cache"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_contracts_hold():
    result = lint_imports()
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_calculator_is_under_the_torch_contract():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    listed = next(contract["source_modules"] for contract in contracts if contract["type"] == "forbidden")
    assert {f"helpers.{name}" for name in NO_TORCH} == set(listed)


def test_a_calculator_starts_without_torch():
    """All of them in one process; the first that brings torch is named."""
    code = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]:\n"
        "    importlib.import_module(name)\n"
        "    assert 'torch' not in sys.modules, name"
    )
    names = [f"helpers.{name}" for name in NO_TORCH]
    result = subprocess.run([sys.executable, "-c", code, *names], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def python_files() -> list[Path]:
    found = (path for folder in ("helpers", "tools", "benchmarks") for path in (ROOT / folder).rglob("*.py"))
    return sorted(path for path in found if ROOT / "benchmarks/rehearsal" not in path.parents)  # others wrote these


def too_long(path: Path) -> list[str]:
    """What of this file is not read in one sitting: the file, or functions of it."""
    text = path.read_text(encoding="utf-8")
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    long = [node.name for node in functions if node.end_lineno - node.lineno + 1 > MAX_FUNCTION]
    return long + ["the file"] * (text.count("\n") > MAX_FILE)


def test_a_file_is_read_in_one_sitting():
    assert {path.name: parts for path in python_files() if (parts := too_long(path))} == {}
