"""The package keeps its layers, its files stay readable, and a public class name means one thing."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

from tools import package_report

ROOT = Path(__file__).resolve().parent.parent
NO_TORCH = (
    "records specs quantities schedules learner predict draw widgets interview commands.broken_jobs commands.traces"
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
    """All of their modules in one process; the first that brings torch is named."""
    code = (
        "import importlib, pkgutil, sys\n"
        "for name in sys.argv[1:]:\n"
        "    package = importlib.import_module(name)\n"
        "    for found in pkgutil.walk_packages(package.__path__, name + '.'):\n"
        "        if '.scripts.' not in found.name:\n"
        "            importlib.import_module(found.name)\n"
        "            assert 'torch' not in sys.modules, found.name"
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


# A public class name that two packages use: why both are right. At most MAX_TWICE_ACROSS of tools/package_report.py.
NAMED_ALIKE = {
    "Block": "a layer of the GPT, and the layer of a broken job's script, which imports nothing of the course",
    "RankStatus": "what a rank reports: to the engine after a failure, and to an elastic job in each heartbeat",
    "SavedTensor": "a tensor that autograd saves for backward: held by ZeRO-3, predicted by the inventory of memory",
}


def test_a_class_name_stands_once_in_a_package():
    assert package_report.twice_within(package_report.class_names()) == {}


def test_a_class_name_of_two_packages_has_a_reason():
    assert package_report.twice_across(package_report.class_names()).keys() == NAMED_ALIKE.keys()
    assert len(NAMED_ALIKE) <= package_report.MAX_TWICE_ACROSS and all(NAMED_ALIKE.values())


def imported_twice(path: Path) -> list[str]:
    """Names that the top of a file imports from two different places."""
    imports = {
        (alias.asname or alias.name, f"{node.module}.{alias.name}")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    return [name for name, count in Counter(name for name, _ in imports).items() if count > 1]


def test_no_file_imports_two_things_under_one_name():
    assert {path.name: names for path in python_files() if (names := imported_twice(path))} == {}


def test_the_report_counts_code_and_nothing_else():
    text = '"""Doc."""\n\nimport os\n\n\n# why\ndef f(x):\n    """More."""\n    return (\n        x\n    )\n'
    assert package_report.lines_of_code(text) == 4
