"""Reads a submission without running it, and flags for a teacher each line that does what honest answers do not do.

The scan knows what honest answers use (allowed.py) and flags everything else, so it sees ways to cheat that nobody has
listed. A flag takes no points. `Reader` reads one statement name by name; `scan` reads all that the tasks need.
"""

from __future__ import annotations

import ast
import builtins
import re
import sys
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from helpers.classroom import allowed
from helpers.classroom.allowed import (
    USUAL,
    imported_object,
    is_usual_module,
    is_within,
    why_forbidden,
    why_object_forbidden,
    words,
)
from helpers.classroom.labs import LabNotebook
from helpers.classroom.program import (
    SCOPES,
    NotebookNames,
    Program,
    Statement,
    constant_text,
    defined_attributes,
    dotted_name,
    import_aliases,
    local_names,
    outer_parts,
)
from helpers.classroom.results import CERTAIN, LIKELY, LOOK, Flag
from helpers.grading.kit import model_tools
from helpers.grading.task import Task
from helpers.learner.words import Words

READING_METHODS = {"read_text", "read_bytes", "glob", "rglob", "iterdir"}
MODULE_DUNDERS = {"__name__", "__doc__", "__version__"}
OPENING_CALLS = {"open", "io.open", "os.open", "pathlib.Path"}
FOREIGN_FILES = ("solutions", ".ipynb", "/proc/", "submitted", "progress.jsonl", "helpers")
ATTRIBUTE_CALLS = ("getattr", "setattr", "delattr", "hasattr")
GETTER_FACTORIES = {"operator.attrgetter", "operator.methodcaller"}
NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
DUNDER = re.compile(r"__[a-z]\w*?__")


@dataclass(frozen=True, kw_only=True)
class LineFlag:
    """What one line of a cell is flagged for."""

    line: int
    certainty: str
    reason: Words


class Reader:
    """Reads the statements of a notebook one after the other.

    shadowed: for each scope that is open, the names that it binds itself. class_members: statements that stand directly
    in a class.
    """

    def __init__(self, notebook: NotebookNames):
        self.notebook, self.lab, self.aliases = notebook, notebook.lab, notebook.aliases
        self.shadowed: list[set[str]] = []
        self.class_members: set[ast.stmt] = set()
        self.line = 0

    def read(self, node: ast.AST) -> Iterator[LineFlag]:
        """The flags of a node and of everything in it."""
        self.line = getattr(node, "lineno", self.line)
        line = self.line
        for certainty, reason in self._flags_of(node):
            yield LineFlag(line=line, certainty=certainty, reason=reason)
        outer = outer_parts(node) if isinstance(node, SCOPES) else []
        for child in outer:
            yield from self.read(child)
        if isinstance(node, SCOPES):
            self.shadowed.append(local_names(node, self.aliases))
        for child in self._parts_to_read(node):
            if child not in outer:
                yield from self.read(child)
        if isinstance(node, SCOPES):
            self.shadowed.pop()

    def _parts_to_read(self, node: ast.AST) -> Iterator[ast.AST]:
        """The parts of a node that are not read yet: no docstring, and no piece of a name that was read as a whole."""
        if (isinstance(node, ast.Attribute | ast.Name) and self.name_of(node)) or constant_text(node) is not None:
            return
        if isinstance(node, ast.arguments):
            yield from (part for part in ast.walk(node) if isinstance(part, ast.arg))
            return
        for child in ast.iter_child_nodes(node):
            is_text = isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
            is_module_alias = isinstance(node, ast.Assign) and child is node.value and self._is_module_alias(node)
            is_called = isinstance(node, ast.Call) and child is node.func
            if is_called and getattr(child, "attr", "") == "inner" and not self.name_of(child):
                yield child.value  # the method `inner` of a tensor is no name of the wire
            elif not (is_text or is_module_alias or (is_called and getattr(child, "id", "") in ATTRIBUTE_CALLS)):
                yield child

    def _is_module_alias(self, node: ast.Assign) -> bool:
        """Whether an assignment gives a module another name, which `aliases` knows."""
        is_known = node not in self.class_members and all(isinstance(target, ast.Name) for target in node.targets)
        return is_known and self._is_module(node.value)

    def name_of(self, node: ast.AST) -> str:
        """The dotted name that an expression stands for, "torch.distributed.send"; "" if it was not imported."""
        root = node
        while isinstance(root, ast.Attribute):
            root = root.value
        is_shadowed = isinstance(root, ast.Name) and any(root.id in names for names in self.shadowed)
        return "" if is_shadowed else dotted_name(node, self.aliases)

    def _is_module(self, node: ast.AST) -> bool:
        return isinstance(imported_object(self.name_of(node) or "-"), types.ModuleType)

    def _flags_of(self, node: ast.AST) -> Iterator[tuple[str, Words]]:
        match node:
            case ast.Import():
                for alias in node.names:
                    yield from self._flags_of_import(alias.name, alias.name)
            case ast.ImportFrom():
                for alias in node.names:
                    yield from self._flags_of_import(f"{node.module}.{alias.name}", node.module or ".")
            case _ if (text := constant_text(node)) is not None:
                yield from self._flags_of_text(text, is_built=not isinstance(node, ast.Constant))
            case ast.Call():
                yield from self._flags_of_call(node)
            case ast.Attribute() | ast.Name() if name := self.name_of(node):
                yield from self._flags_of_name(name, node)
            case ast.Attribute():
                yield from self._flags_of_attribute(node.attr)
            case ast.MatchClass():
                for attr in node.kwd_attrs:
                    yield from self._flags_of_attribute(attr)
            case ast.Name(id=name, ctx=ast.Load()) if self._is_builtin(name) and (
                name in ATTRIBUTE_CALLS or "__" in name
            ):
                yield from [] if name in ("__name__", "__doc__") else [(LIKELY, words["runs_text"].format(name))]
            case ast.Name(id=name, ctx=ast.Load()) if name in USUAL["runs_text"] and self._is_builtin(name):
                yield LIKELY if name in ("eval", "exec", "compile", "open") else LOOK, words["runs_text"].format(name)
            case ast.Name(id="bytes" | "bytearray" as name) if self.notebook.is_metered and self._is_builtin(name):
                yield LOOK, words["unmetered"].format(name)
            case ast.ClassDef():
                self.class_members |= set(node.body)
                yield from self._flags_of_class(node)
            case ast.Subscript(value=ast.Constant(value=str() | bytes()), slice=ast.Slice(step=ast.UnaryOp())):
                yield LOOK, words["built_name"].format("[::-1]")

    def _is_builtin(self, name: str) -> bool:
        is_shadowed = any(name in names for names in self.shadowed)
        return not is_shadowed and (hasattr(builtins, name) or "__" in name)

    # -- imports and dotted names ----------------------------------------------------------------------------------
    def _flags_of_import(self, name: str, module: str) -> Iterator[tuple[str, Words]]:
        given = self.notebook.imported_by_lab
        if name in given or (module in given and not is_within(module, ("torch",))):
            return
        module = name if isinstance(imported_object(name), types.ModuleType) else module
        root = module.partition(".")[0]
        if why := why_forbidden(name, self.lab):
            yield CERTAIN, why
        elif is_within(module, ("numpy",)) and self.notebook.is_metered:
            yield LIKELY, words["unmetered"].format(module)
        elif is_usual_module(module, given) or (
            is_within(module, allowed.THREAD_MODULES) and not self.notebook.is_metered
        ):
            yield from self._flags_of_parts(name)
        elif is_within(module, allowed.THREAD_MODULES):
            yield LOOK, words["threads"].format(module)
        else:
            yield (
                (LIKELY, words["innards"].format(module))
                if root in allowed.SUSPECT_MODULES
                else (LOOK, words["unusual"].format(module))
            )

    def _flags_of_name(self, name: str, node: ast.Attribute | ast.Name) -> Iterator[tuple[str, Words]]:
        if not isinstance(node.ctx, ast.Load):
            if isinstance(node, ast.Attribute) and not is_within(name, allowed.SETTABLE_MODULES):
                yield CERTAIN, words["replaces"].format(name)
            return
        if self._is_allowed_from_lab(name):
            return
        if is_within(name, ("sys.modules",)):
            yield CERTAIN, words["modules"]
        elif why := why_forbidden(name, self.lab):
            yield CERTAIN, why
        else:
            yield from self._flags_of_parts(name)
            if self._is_module(node):
                yield LIKELY, words["handed_on"].format(name)

    def _is_allowed_from_lab(self, name: str) -> bool:
        """Whether it is a name of the course that the lab's own cells import and that an answer may use."""
        is_imported = any(is_within(name, (one,)) for one in self.notebook.imported_by_lab)
        return is_imported and is_within(name, allowed.ALLOWED_WHERE_GIVEN)

    def _flags_of_parts(self, name: str) -> Iterator[tuple[str, Words]]:
        """The first flag of a dotted name, part by part: is each part a name that answers need, and does it keep its
        word?
        """
        sofar, *parts = name.split(".")
        for part in parts:
            if problem := self._flag_of_part(sofar, part):
                yield problem
                return
            sofar = f"{sofar}.{part}"

    def _flag_of_part(self, owner: str, part: str) -> tuple[str, Words] | None:
        name = f"{owner}.{part}"
        if name in allowed.SUSPECT_CALLS["frames"]:
            return CERTAIN, words["frames"].format(name)
        if part in allowed.FRAME_ATTRIBUTES or DUNDER.fullmatch(part):
            is_of_module = isinstance(imported_object(owner), types.ModuleType) and part not in MODULE_DUNDERS
            if is_of_module or part == "__dict__":
                return LIKELY, words["machinery"].format(name)
            return next(self._flags_of_attribute(part), None)
        if owner.startswith("torch.distributed") and part in USUAL["below_the_wire"]:
            return LIKELY, words["below_the_wire"].format(name)
        if part.startswith("_") and not (part in USUAL["private_names"] or part.startswith("_foreach_")):
            return LIKELY, words["hidden"].format(name)
        is_unusual = owner in allowed.USUAL_NAMES_OF and part not in allowed.USUAL_NAMES_OF[owner]
        if is_unusual or name in allowed.RARE_NAMES:
            return LIKELY if owner in allowed.SUSPECT_MODULES else LOOK, words["rare"].format(name)
        return self._flag_of_object(name, imported_object(name))

    def _flag_of_object(self, name: str, value: object) -> tuple[str, Words] | None:
        """The flag of the object behind a name: other modules also hold references to modules and to torch's own
        answers.
        """
        if isinstance(value, types.ModuleType):
            real = value.__name__
            is_usual = is_usual_module(real, self.notebook.imported_by_lab)
            is_fine = is_usual and (real == name or real.partition(".")[0] not in allowed.USUAL_NAMES_OF)
            return None if is_fine else (LIKELY, words["reaches"].format(real, name))
        if value is None and name.rpartition(".")[2] in allowed.SUSPECT_MODULES:
            return LIKELY, words["hidden"].format(name)
        if why := why_object_forbidden(value, self.lab):
            return CERTAIN, why
        home = str(getattr(value, "__module__", None))
        root = home.partition(".")[0]
        if root in allowed.SUSPECT_MODULES and root != name.partition(".")[0]:
            return LIKELY, words["rare"].format(f"{home}.{getattr(value, '__qualname__', '')}")
        return None

    # -- the rest --------------------------------------------------------------------------------------------------
    def _flags_of_attribute(self, attr: str) -> Iterator[tuple[str, Words]]:
        if attr in allowed.FRAME_ATTRIBUTES:
            yield CERTAIN, words["frames"].format(attr)
        elif DUNDER.fullmatch(attr) and attr not in allowed.USUAL_DUNDERS:
            yield LIKELY, words["machinery"].format(attr)
        elif attr in USUAL["below_the_wire"] and attr not in self.notebook.own_attributes:
            yield LIKELY, words["below_the_wire"].format(attr)
        elif self.notebook.is_metered and attr in USUAL["unmetered"] and attr not in self.notebook.own_attributes:
            yield LOOK, words["unmetered"].format(attr)
        elif attr in ("fromhex", "decode", "swapcase", "maketrans"):
            yield LOOK, words["built_name"].format(attr)

    def _flags_of_class(self, node: ast.ClassDef) -> Iterator[tuple[str, Words]]:
        names = [part.name for part in node.body if isinstance(part, ast.FunctionDef)]
        assigned = (target for part in node.body if isinstance(part, ast.Assign) for target in part.targets)
        for name in [*names, *(target.id for target in assigned if isinstance(target, ast.Name))]:
            if DUNDER.fullmatch(name) and name not in allowed.DEFINABLE_DUNDERS:
                yield LIKELY, words["defines"].format(node.name, name)

    def _flags_of_call(self, node: ast.Call) -> Iterator[tuple[str, Words]]:
        name = self.name_of(node.func) or (node.func.id if isinstance(node.func, ast.Name) else "")
        texts = [one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str)]
        for reason, names in allowed.SUSPECT_CALLS.items():
            if name in names:
                yield CERTAIN, words[reason].format(name)
        if name in allowed.SUSPECT_CALLS["imports_text"]:
            yield from ((CERTAIN, why) for text in texts if (why := why_forbidden(text, self.lab)))
        if "new_" in name and any(keyword.arg == "backend" for keyword in node.keywords):
            yield LOOK, words["below_the_wire"].format(f"{name}(backend=…)")
        if name in ATTRIBUTE_CALLS and len(node.args) > 1:
            yield from self._flags_of_getattr(name, *node.args[:2])
        if name in GETTER_FACTORIES:
            yield from self._flags_of_getter(name, node.args)
        is_opening = name in OPENING_CALLS or getattr(node.func, "attr", "") in READING_METHODS
        for text in texts if is_opening else []:
            if part := next((part for part in FOREIGN_FILES if part in text), None):
                yield CERTAIN, words["elsewhere"].format(text if len(text) < 60 else part)
        for text in texts if name == "print" else []:
            if " passed" in text and "ranks" in text:
                yield CERTAIN, words["verdict"]

    def _flags_of_getattr(self, called: str, owner: ast.AST, attribute: ast.AST) -> Iterator[tuple[str, Words]]:
        owner_name, text = self.name_of(owner), constant_text(attribute)
        if called in ("setattr", "delattr") and owner_name:
            yield CERTAIN, words["replaces"].format(f"{owner_name}.{text or '…'}")
        elif text is None and owner_name:
            yield LIKELY, words["by_built_name"].format(owner_name)
        elif text is not None and owner_name:
            yield from self._flags_of_name(f"{owner_name}.{text}", ast.Name(id="", ctx=ast.Load()))
        elif text is not None:
            yield from self._flags_of_attribute(text)
        elif not isinstance(attribute, ast.Name | ast.Attribute | ast.JoinedStr):
            yield LOOK, words["by_built_name"].format(called)

    def _flags_of_getter(self, called: str, args: list[ast.expr]) -> Iterator[tuple[str, Words]]:
        for arg in args[: 1 if called.endswith("caller") else None]:  # methodcaller passes the other arguments on
            text = constant_text(arg)
            if text is None:
                yield LIKELY, words["by_built_name"].format(called)
            for part in (text or "").split("."):
                yield from self._flags_of_attribute(part)

    def _flags_of_text(self, text: str, *, is_built: bool) -> Iterator[tuple[str, Words]]:
        unusual = [one for one in DUNDER.findall(text) if one not in allowed.USUAL_DUNDERS]
        if unusual:
            yield LIKELY, words["names_in_text"].format(unusual[0])
        elif NAME.fullmatch(text) and ("." in text or text == "helpers") and why_forbidden(text, self.lab):
            yield LIKELY, words["names_in_text"].format(text)
        elif text in self.notebook.forbidden_leaves:
            yield LIKELY, words["names_in_text"].format(text)
        elif is_built and NAME.fullmatch(text) and len(text) > 4:
            yield LOOK, words["built_name"].format(text)


def scan(program: Program, lab: LabNotebook, lang: str = "en") -> list[Flag]:
    """The flags of every statement that a task needs."""
    statements = [statement for needed in program.needed_statements.values() for statement in needed]
    names = names_of_notebook(statements, lab)
    tasks = {one.key: one.task for one in lab.tasks}
    found = []
    for key, needed in program.needed_statements.items():
        reader = Reader(replace(names, is_metered=is_metered(tasks[key])))
        for statement in needed:
            if not statement.is_from_lab and not _defines_check(statement):
                for flag in reader.read(statement.node):
                    location = f"{statement.cell}, line {flag.line}"
                    found.append(
                        Flag(key=key, location=location, reason=flag.reason.in_(lang), certainty=flag.certainty)
                    )
    for key, cell in program.changed_checks.items():
        found.append(Flag(key=key, location="", reason=words["check_changed"].format(cell).in_(lang), certainty=LOOK))
    return list(dict.fromkeys(found))


def names_of_notebook(statements: Sequence[Statement], lab: LabNotebook) -> NotebookNames:
    """What the names in these statements stand for."""
    nodes = [one.node for one in dict.fromkeys(statements)]
    return NotebookNames(
        aliases=import_aliases(nodes),
        lab=lab.number,
        own_attributes=defined_attributes(nodes),
        imported_by_lab=lab.imports,
    )


def is_metered(task: Task) -> bool:
    """Whether the task counts bytes, which it does if its module uses MemoryMeter."""
    module = sys.modules.get(task.run_submission.__module__)
    values = vars(module).values() if module else ()
    return any(value is model_tools.MemoryMeter or value is model_tools for value in values)


def _defines_check(statement: Statement) -> bool:
    """Whether a statement defines a `check` of the learner's own, which is never called."""
    node = statement.node
    return isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == "check"
