"""The house keeps its layers: import-linter's contracts, and that no module stands outside them."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
NO_TORCH = "records comparison specs costs units schedules progress predict draw widgets interview".split()
MAX_FILE, MAX_FUNCTION = 300, 40


def lint_imports() -> subprocess.CompletedProcess:
    code = "from importlinter.cli import lint_imports_command as lint; lint()"
    command = [sys.executable, "-c", code, "--no-logo", "--no-cache"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def exists(name: str) -> bool:
    return (ROOT / "helpers" / f"{name}.py").exists() or (ROOT / "helpers" / name / "__init__.py").exists()


def test_contracts_hold():
    result = lint_imports()
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_calculator_is_under_the_torch_contract():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    listed = next(contract["source_modules"] for contract in contracts if contract["type"] == "forbidden")
    assert {f"helpers.{name}" for name in NO_TORCH if exists(name)} == set(listed)


@pytest.mark.parametrize("name", NO_TORCH)
def test_a_calculator_starts_without_torch(name):
    if not exists(name):
        pytest.skip(f"helpers/{name} is not written yet")
    code = f"import sys, helpers.{name}; sys.exit('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def python_files() -> list[Path]:
    return sorted(path for folder in ("helpers", "tools", "benchmarks") for path in (ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("path", python_files(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_file_is_read_in_one_sitting(path):
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") <= MAX_FILE, f"{text.count(chr(10))} lines; split it, {MAX_FILE} is the most"
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    long = [node.name for node in functions if node.end_lineno - node.lineno + 1 > MAX_FUNCTION]
    assert not long, f"longer than {MAX_FUNCTION} lines: {long}"
