"""What is declared, what is pinned and what is used are one list, written down in three places."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
# Import name -> name on the package index, where the two differ.
INDEX_NAMES = {
    "PIL": "pillow",
    "yaml": "pyyaml",
    "sklearn": "scikit-learn",
    "IPython": "ipython",
    "jupyter_client": "jupyter-client",
    "importlinter": "import-linter",
    "axe_playwright_python": "axe-playwright-python",
}
# Comes with a declared package by definition: importing it declares nothing new.
BROUGHT = {"packaging": "pytest", "traitlets": "ipywidgets", "nbconvert": "jupyterlab"}
OWN = {"helpers", "benchmarks", "tests", "tools", *(path.stem for path in (ROOT / "tools").rglob("*.py"))}


@pytest.fixture(scope="module")
def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def declared(project: dict) -> dict[str, Requirement]:
    extras = project["optional-dependencies"]
    texts = project["dependencies"] + extras["dev"] + extras["class"] + extras["book"]
    return {requirement.name: requirement for requirement in map(Requirement, texts)}


def imported(folders: tuple[str, ...]) -> set[str]:
    """Top-level names that the Python files of these folders import, wherever in the file."""
    names = set()
    for path in (path for folder in folders for path in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names.add(node.module.split(".")[0])
    return names - set(sys.stdlib_module_names) - OWN


def test_environment_yml_installs_this_package_and_nothing_else(project):
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    *conda, pip = environment["dependencies"]
    assert environment["name"] == project["name"]
    assert conda == [f"python{project['requires-python']}", "make", "git", "pip"]
    assert pip == {"pip": ["--constraint constraints.txt", "--editable .[dev]"]}


def test_every_declared_package_is_pinned_at_an_allowed_version(project, pins):
    for name, requirement in declared(project).items():
        assert name in pins, f"{name} is declared and not pinned: run tools/pin_constraints.py"
        assert Version(pins[name]) in requirement.specifier, f"{name}=={pins[name]} is outside {requirement.specifier}"


def test_every_transitive_package_is_pinned(pins):
    from tools.pin_constraints import needed

    missing = set(needed(extras=frozenset({"dev"}))) - set(pins)
    assert not missing, f"needed and not pinned: {sorted(missing)}; run tools/pin_constraints.py"


def test_what_the_course_imports_is_declared(project):
    names = imported(("helpers",))
    runtime = {Requirement(text).name for text in project["dependencies"]}
    assert {INDEX_NAMES.get(name, name) for name in names if name not in BROUGHT} <= runtime


def test_what_tests_and_tools_import_is_declared(project):
    names = imported(("tests", "tools", "benchmarks"))
    engines = {Requirement(text).name for text in project["optional-dependencies"]["engines"]}
    assert {INDEX_NAMES.get(name, name) for name in names if name not in BROUGHT} <= set(declared(project)) | engines


def not_in_the_wheel(files: list[str], patterns: dict[str, list[str]]) -> list[str]:
    """Those of these files, such as helpers/draw/a.css, that a wheel would lack.

    patterns: package -> the patterns of its data files, as in pyproject.toml; "*" stands for every package.
    """
    packages = {Path(file).parent for file in files if file.endswith("/__init__.py")}
    missing = []
    for file in map(Path, files):
        package = next(folder for folder in file.parents if folder in packages)
        known = [*patterns["*"], *patterns.get(".".join(package.parts), ())]
        is_module = file.suffix == ".py" and file.parent == package
        if not is_module and not any(file.match(f"{package.as_posix()}/{pattern}") for pattern in known):
            missing.append(file.as_posix())
    return missing


def test_a_wheel_has_every_file_of_the_package():
    """On Colab the wheel is all there is of the course."""
    listed = subprocess.run(["git", "ls-files", "helpers"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("this is no git checkout, so nothing says which files belong to the package")
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    assert not_in_the_wheel(listed.stdout.splitlines(), patterns) == []


def test_a_file_that_a_wheel_would_lack_is_found():
    files = ["a/__init__.py", "a/b.py", "a/c.yaml", "a/d.css", "a/e/f.css", "a/e/g.py", "a/h/__init__.py", "a/h/i.css"]
    assert not_in_the_wheel(files, {"*": ["*.yaml"], "a": ["*.css"]}) == ["a/e/f.css", "a/e/g.py", "a/h/i.css"]
    assert not_in_the_wheel(files, {"*": ["*.yaml"], "a": ["*.css", "e/*"], "a.h": ["*.css"]}) == []


def test_nobody_needs_the_engines(project):
    """They are compared with, in tests that skip without them: the course itself runs on what is pinned."""
    engines = {Requirement(text).name for text in project["optional-dependencies"]["engines"]}
    assert not engines & imported(("helpers", "tools", "benchmarks")) and not engines & set(declared(project))


def test_torch_is_new_enough_and_the_cpu_build_has_no_cuda_packages():
    version = metadata.version("torch")
    assert Version(version) >= Version("2.11")
    if "+cpu" in version:
        names = [distribution.metadata["Name"] or "" for distribution in metadata.distributions()]
        assert not [name for name in names if name.startswith("nvidia-")]


def test_the_tested_torch_has_no_local_part(pins):
    """constraints.txt serves laptops and GPU boxes: "+cpu" is added by set-up, not by the pin."""
    assert re.fullmatch(r"\d+\.\d+\.\d+", pins["torch"])


def test_every_pin_installs_on_the_oldest_python_that_is_promised(project, pins):
    """Debian 12 ships 3.11.2: a pin that wants 3.11.5 would stop `make course` there."""
    oldest = project["requires-python"].removeprefix(">=") + ".0"
    here = {distribution.metadata["Name"].lower().replace("_", "-") for distribution in metadata.distributions()}
    absent = sorted(name for name in pins if name.lower().replace("_", "-") not in here)
    needs = {name: metadata.metadata(name)["Requires-Python"] or "" for name in pins if name not in absent}
    refused = {name: need for name, need in needs.items() if not SpecifierSet(need).contains(oldest)}
    assert not refused, f"install an older version of {refused} and run tools/pin_constraints.py"
    assert not absent or "nbgrader" in absent, f"pinned and not installed: {absent}"
    if absent:
        pytest.skip(f"nbgrader is not here, so these were not looked at: {', '.join(absent)}")
