"""Read a statement of an answer, name by name: what rules.py does not know of honest answers is seen, with its line.

Read a submission without running it, and flag for a teacher what honest answers do not do, with the line.

It takes no points. It knows what honest answers use (rules.py), so that a new way to cheat is seen without being known.
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
from helpers.classroom.allowed import NEEDED, SAYS, forbidden, forbidden_object, is_needed, named, within
from helpers.classroom.flags import CERTAIN, LIKELY, LOOK, Flag
from helpers.classroom.labs import Lab
from helpers.classroom.program import (
    SCOPES,
    Notebook,
    Program,
    Statement,
    aliases_of,
    dotted_name,
    folded,
    locals_of,
    outside,
    own_names,
)
from helpers.grading.kit import model_tools
from helpers.grading.task import Task
from helpers.learner.words import Words

READS = {"read_text", "read_bytes", "glob", "rglob", "iterdir"}
OF_MODULES = {"__name__", "__doc__", "__version__"}
OPENS = {"open", "io.open", "os.open", "pathlib.Path"}
ELSEWHERE = ("solutions", ".ipynb", "/proc/", "submitted", "progress.jsonl", "helpers")
BY_NAME = ("getattr", "setattr", "delattr", "hasattr")
ASKS = {"operator.attrgetter", "operator.methodcaller"}
NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
DUNDER = re.compile(r"__[a-z]\w*?__")


@dataclass(frozen=True, kw_only=True)
class Seen:
    """line: of the cell."""

    line: int
    sure: str
    says: Words


class Reader:
    """Reads one statement after the other of a notebook."""

    def __init__(self, notebook: Notebook):
        self.notebook, self.lab, self.aliases = notebook, notebook.lab, notebook.aliases
        self.shadowed: list[set[str]] = []
        self.members: set[ast.stmt] = set()  # of classes
        self.line = 0

    def read(self, node: ast.AST) -> Iterator[Seen]:
        self.line = getattr(node, "lineno", self.line)
        line = self.line
        yield from (Seen(line=line, sure=sure, says=says) for sure, says in self._about(node))
        around = outside(node) if isinstance(node, SCOPES) else []
        for child in around:
            yield from self.read(child)
        if isinstance(node, SCOPES):
            self.shadowed.append(locals_of(node, self.aliases))
        for child in self._below(node):
            if child not in around:
                yield from self.read(child)
        if isinstance(node, SCOPES):
            self.shadowed.pop()

    def _below(self, node: ast.AST) -> Iterator[ast.AST]:
        """What is still to be read: not a docstring, and not the pieces of what was read as a whole."""
        if (isinstance(node, ast.Attribute | ast.Name) and self.name_of(node)) or folded(node) is not None:
            return
        if isinstance(node, ast.arguments):
            yield from (part for part in ast.walk(node) if isinstance(part, ast.arg))
            return
        for child in ast.iter_child_nodes(node):
            is_text = isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
            is_given_on = isinstance(node, ast.Assign) and child is node.value and self._is_given_on(node)
            is_called = isinstance(node, ast.Call) and child is node.func
            if is_called and getattr(child, "attr", "") == "inner" and not self.name_of(child):
                yield child.value  # of two vectors
            elif not (is_text or is_given_on or (is_called and getattr(child, "id", "") in BY_NAME)):
                yield child

    def _is_given_on(self, node: ast.Assign) -> bool:
        """Whether a whole module gets another name, which aliases know."""
        is_known = node not in self.members and all(isinstance(target, ast.Name) for target in node.targets)
        return is_known and self._is_module(node.value)

    def name_of(self, node: ast.AST) -> str:
        root = node
        while isinstance(root, ast.Attribute):
            root = root.value
        is_own = isinstance(root, ast.Name) and any(root.id in names for names in self.shadowed)
        return "" if is_own else dotted_name(node, self.aliases)

    def _is_module(self, node: ast.AST) -> bool:
        return isinstance(named(self.name_of(node) or "-"), types.ModuleType)

    def _about(self, node: ast.AST) -> Iterator[tuple[str, Words]]:
        match node:
            case ast.Import():
                for alias in node.names:
                    yield from self._imported(alias.name, alias.name)
            case ast.ImportFrom():
                for alias in node.names:
                    yield from self._imported(f"{node.module}.{alias.name}", node.module or ".")
            case _ if (text := folded(node)) is not None:
                yield from self._text(text, is_built=not isinstance(node, ast.Constant))
            case ast.Call():
                yield from self._call(node)
            case ast.Attribute() | ast.Name() if name := self.name_of(node):
                yield from self._named(name, node)
            case ast.Attribute():
                yield from self._attribute(node.attr)
            case ast.MatchClass():
                for attr in node.kwd_attrs:
                    yield from self._attribute(attr)
            case ast.Name(id=name, ctx=ast.Load()) if self._is_builtin(name) and (name in BY_NAME or "__" in name):
                yield from [] if name in ("__name__", "__doc__") else [(LIKELY, SAYS["runs_text"].format(name))]
            case ast.Name(id=name, ctx=ast.Load()) if name in NEEDED["runs_text"] and self._is_builtin(name):
                yield LIKELY if name in ("eval", "exec", "compile", "open") else LOOK, SAYS["runs_text"].format(name)
            case ast.Name(id="bytes" | "bytearray" as name) if self.notebook.is_metered and self._is_builtin(name):
                yield LOOK, SAYS["unmetered"].format(name)
            case ast.ClassDef():
                self.members |= set(node.body)
                yield from self._class(node)
            case ast.Subscript(value=ast.Constant(value=str() | bytes()), slice=ast.Slice(step=ast.UnaryOp())):
                yield LOOK, SAYS["built_name"].format("[::-1]")

    def _is_builtin(self, name: str) -> bool:
        is_own = any(name in names for names in self.shadowed)
        return not is_own and (hasattr(builtins, name) or "__" in name)

    # -- imports and dotted names ----------------------------------------------------------------------------------
    def _imported(self, name: str, module: str) -> Iterator[tuple[str, Words]]:
        given = self.notebook.given
        if name in given or (module in given and not within(module, ("torch",))):
            return
        module = name if isinstance(named(name), types.ModuleType) else module
        root = module.partition(".")[0]
        if why := forbidden(name, self.lab):
            yield CERTAIN, why
        elif within(module, ("numpy",)) and self.notebook.is_metered:
            yield LIKELY, SAYS["unmetered"].format(module)
        elif is_needed(module, given) or (within(module, allowed.THREADS) and not self.notebook.is_metered):
            yield from self._part(name)
        elif within(module, allowed.THREADS):
            yield LOOK, SAYS["threads"].format(module)
        else:
            yield (
                (LIKELY, SAYS["innards"].format(module))
                if root in allowed.HOT
                else (LOOK, SAYS["unusual"].format(module))
            )

    def _named(self, name: str, node: ast.Attribute | ast.Name) -> Iterator[tuple[str, Words]]:
        if not isinstance(node.ctx, ast.Load):
            if isinstance(node, ast.Attribute) and not within(name, allowed.SETTINGS):
                yield CERTAIN, SAYS["replaces"].format(name)
            return
        if self._is_given(name):
            return
        if within(name, ("sys.modules",)):
            yield CERTAIN, SAYS["modules"]
        elif why := forbidden(name, self.lab):
            yield CERTAIN, why
        else:
            yield from self._part(name)
            if self._is_module(node):
                yield LIKELY, SAYS["handed_on"].format(name)

    def _is_given(self, name: str) -> bool:
        """Whether it is a name of the course that the lab's own cells import and that an answer may use."""
        is_imported = any(within(name, (one,)) for one in self.notebook.given)
        return is_imported and within(name, allowed.ALLOWED_WHERE_GIVEN)

    def _part(self, name: str) -> Iterator[tuple[str, Words]]:
        """Of a dotted name, step by step: is each a name that answers need, and is it what it is called?"""
        sofar, *parts = name.split(".")
        for part in parts:
            if problem := self._step(sofar, part):
                yield problem
                return
            sofar = f"{sofar}.{part}"

    def _step(self, owner: str, part: str) -> tuple[str, Words] | None:
        name = f"{owner}.{part}"
        if name in allowed.CALLS["frames"]:
            return CERTAIN, SAYS["frames"].format(name)
        if part in allowed.FRAMES or DUNDER.fullmatch(part):
            is_open = isinstance(named(owner), types.ModuleType) or part == "__dict__"  # all of its names lie there
            closed = (LIKELY, SAYS["machinery"].format(name)) if is_open and part not in OF_MODULES else None
            return closed or next(self._attribute(part), None)
        if owner.startswith("torch.distributed") and part in NEEDED["below_the_wire"]:
            return LIKELY, SAYS["below_the_wire"].format(name)
        if part.startswith("_") and not (part in NEEDED["private"] or part.startswith("_foreach_")):
            return LIKELY, SAYS["hidden"].format(name)
        if (owner in allowed.ONLY and part not in allowed.ONLY[owner]) or name in allowed.RARE:
            return LIKELY if owner in allowed.HOT else LOOK, SAYS["rare"].format(name)
        return self._stands_for(name, named(name))

    def _stands_for(self, name: str, value: object) -> tuple[str, Words] | None:
        """What the name is in truth: a module may be had by the names of others, and so may torch's own answer."""
        if isinstance(value, types.ModuleType):
            real = value.__name__
            fine = is_needed(real, self.notebook.given) and (real == name or real.partition(".")[0] not in allowed.ONLY)
            return None if fine else (LIKELY, SAYS["reaches"].format(real, name))
        if value is None and name.rpartition(".")[2] in allowed.HOT:
            return LIKELY, SAYS["hidden"].format(name)
        if why := forbidden_object(value, self.lab):
            return CERTAIN, why
        home = str(getattr(value, "__module__", None))
        root = home.partition(".")[0]
        if root in allowed.HOT and root != name.partition(".")[0]:
            return LIKELY, SAYS["rare"].format(f"{home}.{getattr(value, '__qualname__', '')}")
        return None

    # -- the rest --------------------------------------------------------------------------------------------------
    def _attribute(self, attr: str) -> Iterator[tuple[str, Words]]:
        if attr in allowed.FRAMES:
            yield CERTAIN, SAYS["frames"].format(attr)
        elif DUNDER.fullmatch(attr) and attr not in allowed.DUNDERS:
            yield LIKELY, SAYS["machinery"].format(attr)
        elif attr in NEEDED["below_the_wire"] and attr not in self.notebook.own:
            yield LIKELY, SAYS["below_the_wire"].format(attr)
        elif self.notebook.is_metered and attr in NEEDED["unmetered"] and attr not in self.notebook.own:
            yield LOOK, SAYS["unmetered"].format(attr)
        elif attr in ("fromhex", "decode", "swapcase", "maketrans"):
            yield LOOK, SAYS["built_name"].format(attr)

    def _class(self, node: ast.ClassDef) -> Iterator[tuple[str, Words]]:
        names = [part.name for part in node.body if isinstance(part, ast.FunctionDef)]
        assigned = (target for part in node.body if isinstance(part, ast.Assign) for target in part.targets)
        for name in [*names, *(target.id for target in assigned if isinstance(target, ast.Name))]:
            if DUNDER.fullmatch(name) and name not in allowed.DEFINED:
                yield LIKELY, SAYS["defines"].format(node.name, name)

    def _call(self, node: ast.Call) -> Iterator[tuple[str, Words]]:
        name = self.name_of(node.func) or (node.func.id if isinstance(node.func, ast.Name) else "")
        texts = [one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str)]
        for words, names in allowed.CALLS.items():
            if name in names:
                yield CERTAIN, SAYS[words].format(name)
        if name in allowed.CALLS["imports_text"]:
            yield from ((CERTAIN, why) for text in texts if (why := forbidden(text, self.lab)))
        if "new_" in name and any(keyword.arg == "backend" for keyword in node.keywords):
            yield LOOK, SAYS["below_the_wire"].format(f"{name}(backend=…)")
        if name in BY_NAME and len(node.args) > 1:
            yield from self._by_name(name, *node.args[:2])
        if name in ASKS:
            yield from self._asked(name, node.args)
        opens = name in OPENS or getattr(node.func, "attr", "") in READS
        for text in texts if opens else []:
            if part := next((part for part in ELSEWHERE if part in text), None):
                yield CERTAIN, SAYS["elsewhere"].format(text if len(text) < 60 else part)
        for text in texts if name == "print" else []:
            if " passed" in text and "ranks" in text:
                yield CERTAIN, SAYS["verdict"]

    def _by_name(self, called: str, owner: ast.AST, asked: ast.AST) -> Iterator[tuple[str, Words]]:
        of, text = self.name_of(owner), folded(asked)
        if called in ("setattr", "delattr") and of:
            yield CERTAIN, SAYS["replaces"].format(f"{of}.{text or '…'}")
        elif text is None and of:
            yield LIKELY, SAYS["by_built_name"].format(of)
        elif text is not None and of:
            yield from self._named(f"{of}.{text}", ast.Name(id="", ctx=ast.Load()))
        elif text is not None:
            yield from self._attribute(text)
        elif not isinstance(asked, ast.Name | ast.Attribute | ast.JoinedStr):
            yield LOOK, SAYS["by_built_name"].format(called)

    def _asked(self, called: str, asked: list[ast.expr]) -> Iterator[tuple[str, Words]]:
        for one in asked[: 1 if called.endswith("caller") else None]:
            text = folded(one)
            if text is None:
                yield LIKELY, SAYS["by_built_name"].format(called)
            for part in (text or "").split("."):
                yield from self._attribute(part)

    def _text(self, text: str, *, is_built: bool) -> Iterator[tuple[str, Words]]:
        unusual = [one for one in DUNDER.findall(text) if one not in allowed.DUNDERS]
        if unusual:
            yield LIKELY, SAYS["names_in_text"].format(unusual[0])
        elif NAME.fullmatch(text) and ("." in text or text == "helpers") and forbidden(text, self.lab):
            yield LIKELY, SAYS["names_in_text"].format(text)
        elif text in self.notebook.leaves:
            yield LIKELY, SAYS["names_in_text"].format(text)
        elif is_built and NAME.fullmatch(text) and len(text) > 4:
            yield LOOK, SAYS["built_name"].format(text)


def scan(program: Program, lab: Lab, lang: str = "en") -> list[Flag]:
    """Everything in the parts that the tasks need."""
    statements = [s for needed in program.needs.values() for s in needed]
    notebook = notebook_of(statements, lab)
    tasks = {asked.key: asked.task for asked in lab.tasks}
    found = []
    for key, needed in program.needs.items():
        reader = Reader(replace(notebook, is_metered=is_metered(tasks[key])))
        for statement in needed:
            if not statement.given and not _is_own_check(statement):
                place = f"{statement.cell}, line "
                for seen in reader.read(statement.node):
                    says = seen.says.in_(lang)
                    found.append(Flag(key=key, place=f"{place}{seen.line}", says=says, sure=seen.sure))
    for key, cell in program.changed.items():
        found.append(Flag(key=key, place="", says=SAYS["check_changed"].format(cell).in_(lang), sure=LOOK))
    return list(dict.fromkeys(found))


def notebook_of(statements: Sequence[Statement], lab: Lab) -> Notebook:
    nodes = [one.node for one in dict.fromkeys(statements)]
    return Notebook(
        aliases=aliases_of(nodes),
        lab=lab.number,
        own=own_names(nodes),
        given=lab.imports,
    )


def is_metered(task: Task) -> bool:
    """Whether its `act` counts bytes, with what kit/meter.py follows."""
    home = sys.modules.get(task.run_submission.__module__)
    return (
        any(value is model_tools.MemoryMeter or value is model_tools for value in vars(home).values())
        if home
        else False
    )


def _is_own_check(statement: Statement) -> bool:
    """It is never called: the grader has its own."""
    node = statement.node
    return isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == "check"
