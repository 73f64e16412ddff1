"""What of the course a submission can reach: the modules that are listed, and no other, however new it is.

Files are hidden, memory is emptied, and names are flagged by the same lists of what is allowed. The tests go over every
module that exists, and over a package that nobody has listed yet.
"""

from __future__ import annotations

import ast
import json
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import helpers
from helpers.classroom import isolation
from helpers.classroom.allowed import ALLOWED_IN_ANSWERS, is_in_sandbox, is_within, why_forbidden
from helpers.classroom.isolation import Limits
from helpers.classroom.labs import LabNotebook
from helpers.classroom.program import constant_text, dotted_name, import_aliases, program_of
from helpers.classroom.sandbox import Sandbox, SandboxEnded
from helpers.classroom.scan import scan
from helpers.classroom.strip_answers import hidden_paths
from helpers.grading import lab_of
from helpers.grading import labs as numbers
from tests.classroom import notebooks
from tests.classroom.conftest import key_of

PACKAGE = Path(helpers.__file__).parent
NEW = "helpers.brand_new"  # a package that no list names
needs_namespaces = pytest.mark.skipif(not isolation.is_available("namespaces"), reason="namespaces are refused here")


def every_module() -> list[str]:
    found = pkgutil.walk_packages([str(PACKAGE)], "helpers.", onerror=lambda name: None)
    return [one.name for one in found if one.name != "helpers.__main__"]


def module_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


# -- files -------------------------------------------------------------------------------------------------------------
def is_hidden(path: Path, package: Path = PACKAGE) -> bool:
    hidden, inner = hidden_paths(package), path.relative_to(package.parent)
    return any(str(one) in hidden for one in (inner, *inner.parents))


def test_of_the_courses_files_those_of_the_allowed_modules_are_seen():
    files = {path: is_hidden(path) for path in sorted(PACKAGE.rglob("*.py"))}
    seen = {module_of(path) for path, hidden in files.items() if not hidden}
    assert seen == set(filter(is_in_sandbox, map(module_of, files)))
    touched = {path.split("/")[1] for path in hidden_paths()}
    assert {path.name for path in PACKAGE.iterdir()} - touched == {"__init__.py", "classroom", "devices", "ranks"}


def test_a_new_file_or_package_is_hidden(tmp_path):
    package = tmp_path / "helpers"
    for name in ("brand_new/answers.yaml", "brand_new.py", "learner/brand_new.py", "learner/words/book.py"):
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).touch()
    for folder in (package, package / "learner"):
        (folder / "__init__.py").touch()
        (folder / "__pycache__").mkdir()  # compiled copies of what is hidden
    hidden = ["brand_new", "brand_new.py", "__pycache__", "learner/brand_new.py", "learner/__pycache__"]
    assert set(hidden_paths(package)) == {f"helpers/{name}" for name in hidden}


# -- memory ------------------------------------------------------------------------------------------------------------
START = """
import gc, json, os, sys, types
from helpers.classroom import fork_server
from helpers.classroom.strip_answers import strip_answers
fork_server.preload()
new = sys.modules["helpers.brand_new"] = sys.modules["helpers"].brand_new = types.ModuleType("helpers.brand_new")
exec("def answer(): return 42", vars(new))
sys.modules["helpers.ranks"].borrowed = new.answer  # as if a module that stays had imported it
gc.unfreeze()
for lab in sys.argv[1:]:
    if os.fork() == 0:
        strip_answers(lab)
        gc.collect()
        left = [one for one in gc.get_objects() if type(one) is types.FunctionType]
        left = [one for one in left if "__name__" in one.__globals__]  # of the others no module is left
        names = sorted({(one.__globals__["__name__"], one.__qualname__) for one in left})
        print(json.dumps([lab, names, sorted(sys.modules), hasattr(sys.modules["helpers.ranks"], "borrowed")]))
        sys.stdout.flush()
        os._exit(0)
    os.wait()
"""


@pytest.fixture(scope="module")
def left():
    """A lab to (functions that can still run, modules, whether a borrowed one is there), stripped for that lab."""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", START, *numbers()], capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return {lab: more for lab, *more in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize("lab", numbers())
def test_nothing_is_left_in_memory_but_the_allowed_modules_and_what_the_ranks_run(lab, left):
    functions, modules, is_borrowed = left[lab]
    assert NEW not in modules and not is_borrowed
    own = (f"helpers.grading.{lab_of(lab).topic}", "helpers.grading.kit", "helpers.schedules.actions")
    strange = [(home, name) for home, name in functions if home.startswith("helpers.") and not is_in_sandbox(home)]
    assert not [(home, name) for home, name in strange if not is_within(home, own)]
    assert not [name for home, name in strange if home == "helpers.grading.kit.comparisons" or name.startswith("judge")]
    strange = [name for name in modules if name.startswith("helpers.") and not is_in_sandbox(name)]
    parents = {"helpers.grading", "helpers.schedules"}
    assert not [name for name in strange if not is_within(name, own) and name not in parents]
    assert any(home == "helpers.grading.run_on_ranks" for home, _ in functions)


# -- flags -------------------------------------------------------------------------------------------------------------
def flags_of(text: str, lab: LabNotebook) -> list[str]:
    program = program_of(notebooks.handed_in({"03.average": text})["cells"], lab)
    return [flag.text for flag in scan(program, lab)]


@pytest.mark.parametrize("name", [NEW, *sorted({f"helpers.{path.stem}" for path in PACKAGE.iterdir()})])
def test_a_package_of_the_course_is_flagged_listed_or_not(name, lab_03):
    """However it is named: imported, asked of the package, in a text, or as a file."""
    last = name.rpartition(".")[2]
    ways = (f"import {name}", f"from helpers import {last}", f"from {name}.inner import answer")
    ways += (f"import importlib; importlib.import_module('{name}')", f"open('helpers/{last}/answers.yaml')")
    for way in ways:
        assert flags_of(f"{way}\n{notebooks.AVERAGE}", lab_03), way


def test_every_module_of_the_course_is_forbidden_but_those_that_labs_import():
    allowed = [name for name in [*every_module(), NEW] if not why_forbidden(name, "03")]
    assert allowed == [name for name in every_module() if name in ALLOWED_IN_ANSWERS]


IMPORTED = {NEW: True, "helpers.chapters.ddp": True, "helpers.draw": False}


@pytest.mark.parametrize(("given", "is_flagged"), IMPORTED.items())
def test_what_the_labs_own_cell_imports_is_flagged_unless_it_is_for_pictures(given, is_flagged, lab_03):
    more = (*lab_03.setup_cells, ("more", f"from {given} import picture as show"))
    lab = LabNotebook(**{name: getattr(lab_03, name) for name in lab_03.__dataclass_fields__} | {"setup_cells": more})
    assert bool(flags_of(notebooks.AVERAGE + "    show(model)\n", lab)) is is_flagged


# -- cheats: each reaches what it is after without the sandbox, and none within it -------------------------------------
def internal_names(path: Path) -> set[str]:
    """The names and files of the course that a cheat reaches for, the longest of those that begin alike."""
    tree, lab = ast.parse(path.read_text()), notebooks.lab_of(key_of(path))
    given = [node for _, source in lab.setup_cells for node in ast.parse(source).body]
    aliases = import_aliases([*given, tree])
    found = {dotted_name(node, aliases) for node in ast.walk(tree) if isinstance(node, ast.Attribute | ast.Name)}
    found |= set(import_aliases([tree]).values())
    body = [node for node in tree.body if not isinstance(node, ast.Assign)]  # without TASK and SAYS
    found |= {constant_text(node) or "" for statement in body for node in ast.walk(statement)}
    found = {name for name in found if name.startswith(("helpers.", "helpers/")) and not name.startswith("helpers.__")}
    return {name for name in found if not any(other.startswith(f"{name}.") for other in found)}


REACHES = {path: names for path in notebooks.CHEATS if (names := internal_names(path))}


def test_cheats_that_reach_for_internal_names_are_there():
    assert len(REACHES) >= 9


@pytest.mark.parametrize("path", REACHES, ids=lambda path: path.stem)
def test_without_the_sandbox_a_cheat_reaches_what_it_names(path):
    """So that the next test means something: a name that has moved would be out of reach by itself."""
    for name in REACHES[path]:
        if "/" in name:
            assert (PACKAGE.parent / name).is_file(), name
        else:
            pkgutil.resolve_name(name)


MAX_TRIES = """
import pkgutil, types
def reach(name):
    try:
        found = open(f"{ROOT}/{name}").read() if "/" in name else pkgutil.resolve_name(name)
    except (ImportError, AttributeError, OSError):
        return False
    is_empty = isinstance(found, types.ModuleType) and not [key for key in vars(found) if not key.startswith("__")]
    return not is_empty  # a hidden folder is an empty one, which can be imported
raise ValueError([number for number, name in enumerate(NAMES) if reach(name)])
"""


@pytest.fixture(scope="module")
def reached_in_sandbox():
    """reached_in_sandbox(lab, names): which of these names and files a cell reaches in a sandbox of this lab."""

    def reached(lab: str, names: list[str]) -> set[str]:
        hide = [str(PACKAGE.parent / path) for path in hidden_paths()]
        opening = {"lab": lab, "checks": ""}
        sandbox = Sandbox(opening, isolation_level="namespaces", limits=Limits(), hide=hide)
        found: set[str] = set()
        try:
            for first in range(0, len(names), 50):  # the sentence about a cell's error is cut after 300 characters
                some = names[first : first + 50]
                source = f"ROOT = {str(PACKAGE.parent)!r}\nNAMES = {some!r}\n{MAX_TRIES}"
                lines = list(range(1, source.count("\n") + 2))
                question = {"do": "cell", "name": "cell a", "source": source, "lines": lines, "seconds": 20.0}
                error = sandbox.ask(question, 60)["error"]
                found |= {some[number] for number in json.loads(error.partition("raises ValueError: ")[2])}
        except SandboxEnded as error:
            pytest.fail(str(error))
        finally:
            sandbox.end()
        return found

    return reached


STAYS = {
    "helpers.ranks.wire.wire",
    "helpers.grading.run_on_ranks",
}  # the ranks run these, so a cheat that names them is flagged


@needs_namespaces
@pytest.mark.parametrize("lab", sorted({key_of(path)[:2] for path in REACHES}))
def test_in_the_sandbox_no_cheat_reaches_what_it_names(lab, reached_in_sandbox):
    names = sorted(set().union(*(names for path, names in REACHES.items() if key_of(path)[:2] == lab)))
    names = [name for name in names if not name.startswith(tuple(STAYS))]
    assert reached_in_sandbox(lab, names) == set()


@needs_namespaces
@pytest.mark.timeout(300)
def test_in_the_sandbox_of_every_module_that_exists_only_the_allowed_are_there(reached_in_sandbox):
    names = [name for name in every_module() if not is_in_sandbox(name)]
    own = ("helpers.grading", "helpers.grading.ddp", "helpers.grading.kit")  # emptied of all that the ranks do not run
    assert [name for name in reached_in_sandbox("03", [*names, NEW]) if not name.startswith(own)] == []


# -- what the ranks need is there --------------------------------------------------------------------------------------
def late_imports(path: Path) -> set[str]:
    """The modules of the course that are imported within functions of a file, so only once something happens."""
    functions = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)]
    nodes = [part for function in functions for part in ast.walk(function) if isinstance(part, ast.ImportFrom)]
    names = {f"{node.module}.{one.name}" for node in nodes for one in node.names}
    names = {name for name in names if name.startswith("helpers.")}
    return {name if name in every_module() else name.rpartition(".")[0] for name in names}


def test_what_an_allowed_module_imports_late_is_allowed_as_well():
    """Otherwise a rare event, such as a print on a rank, would end the sandbox."""
    files = [path for path in PACKAGE.rglob("*.py") if is_in_sandbox(module_of(path))]
    files = [path for path in files if not module_of(path).startswith("helpers.classroom")]
    missing = {module_of(path): {one for one in late_imports(path) if not is_in_sandbox(one)} for path in files}
    assert {name: modules for name, modules in missing.items() if modules} == {}
