"""Reads a submission without running it, and flags for a teacher each line that does what honest answers do not do.

An honest answer is one that solves the task without going around the grader. The scan knows what honest answers use
(the lists of allowed.py and allowed.yaml) and flags everything else, so it sees ways to cheat that nobody has listed. A
flag takes no points; a teacher reads it. `scan` reads every statement that the tasks of a lab need, and `Reader` reads
one such statement.

Words that are used below:

Words           a sentence in every language of the course. `words[key].format(…)` gives the one with this key, here the
                reason for a flag: `words["frames"]` says that the answer looks into other functions' frames.
certainty       CERTAIN, LIKELY or LOOK (results.py): how sure the scan is that no honest answer has this line, where
                LOOK is the weakest: a teacher should look at the line
metered task    a task that counts the bytes that the answer holds in memory. Tricks that hide bytes from the count
                are flagged only there (`unmetered`).
the wire        the course's process-group backend, which counts messages. What is below it (`below_the_wire`) could
                send messages that nobody counts.
dunder          a name with two underscores on each side, such as __class__
NAME_LISTS      the lists of names in allowed.yaml. Honest answers use the names in "private_names". They do not use the
                names in "runs_text" (builtins that inspect code), "below_the_wire" and "unmetered", so these are
                flagged. A flag for what `why_forbidden` or NEVER_ATTRIBUTES names is certain.
"""

from __future__ import annotations

import ast
import builtins
import re
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from helpers.classroom import allowed
from helpers.classroom.allowed import (
    NAME_LISTS,
    imported_object,
    is_metered,
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
from helpers.grading.registry import task_of
from helpers.learner.words import Words

MODULE_DUNDERS = {"__name__", "__doc__", "__version__"}  # that an answer may read of a module
ATTRIBUTE_CALLS = ("getattr", "setattr", "delattr", "hasattr")  # builtins that take the name of an attribute as text
MAX_REASON = 300  # characters of the reason for a flag, which may quote the learner
NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")  # a dotted name
DUNDER = re.compile(r"__[a-z]\w*?__")


@dataclass(frozen=True, kw_only=True)
class LineFlag:
    """What one line of a cell is flagged for."""

    line: int
    certainty: str
    reason: Words


class Reader:
    """Reads the statements of a notebook one after the other.

    The methods `_flags_of_…` give (certainty, reason) pairs for one node of the syntax tree; `read` adds the line.

    notebook: what the names of the notebook stand for, and what the lab allows. Of its fields, `own_attributes` has the
    attributes that the learner's own classes define.
    aliases: imported name -> what it stands for, such as "dist" -> "torch.distributed".
    shadowed: for each scope (function, lambda, comprehension) around the present node, the names that it binds itself,
    which therefore do not stand for what was imported.
    class_members: statements that stand directly in a class. texts: what `constant_text` has found so far.
    line: the line of the node that is read.
    """

    def __init__(self, notebook: NotebookNames):
        self.notebook, self.lab, self.aliases = notebook, notebook.lab, notebook.aliases
        self.shadowed: list[set[str]] = []
        self.class_members: set[ast.stmt] = set()
        self.texts: dict[ast.AST, str | None] = {}
        self.line = 0

    def read(self, node: ast.AST) -> Iterator[LineFlag]:
        """The flags of a node and of everything in it."""
        self.line = getattr(node, "lineno", self.line)  # some nodes, such as arguments, have no line of their own
        line = self.line  # reading the parts changes self.line
        for certainty, reason in self._flags_of(node):
            yield LineFlag(line=line, certainty=certainty, reason=reason)
        is_scope = isinstance(node, SCOPES)
        outer = outer_parts(node) if is_scope else []  # defaults and decorators, which do not see the scope's names
        for child in outer:
            yield from self.read(child)
        if is_scope:
            self.shadowed.append(local_names(node, self.aliases))
        are_read = set(outer)
        for child in self._parts_to_read(node):
            if child not in are_read:
                yield from self.read(child)
        if is_scope:
            self.shadowed.pop()

    def _parts_to_read(self, node: ast.AST) -> Iterator[ast.AST]:
        """The parts of a node that are not read yet: no docstring, and no piece of a name that was read as a whole."""
        if (isinstance(node, ast.Attribute | ast.Name) and self.name_of(node)) or constant_text(
            node, self.texts
        ) is not None:
            return  # `_flags_of` has read the complete name or text
        if isinstance(node, ast.arguments):  # its defaults are outer parts, which `read` has read
            yield from (part for part in ast.walk(node) if isinstance(part, ast.arg))
            return
        for child in ast.iter_child_nodes(node):
            is_text = isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)  # a docstring
            is_module_alias = isinstance(node, ast.Assign) and child is node.value and self._is_module_alias(node)
            is_called = isinstance(node, ast.Call) and child is node.func
            if is_called and getattr(child, "attr", "") == "inner" and not self.name_of(child):
                # The attribute `inner` of the wire is the gloo group below it, so it is flagged. But every tensor has a
                # method inner(), which honest answers call, so of a call x.inner(y) only x is read, and the arguments.
                yield child.value
            elif not (is_text or is_module_alias or (is_called and getattr(child, "id", "") in ATTRIBUTE_CALLS)):
                yield child  # a called getattr is left out, because `_flags_of_getattr` judges it

    def _is_module_alias(self, node: ast.Assign) -> bool:
        """Whether an assignment only gives a module another name. `aliases` knows that name, so its uses are read."""
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
        """Whether an expression stands for an imported module."""
        name = self.name_of(node)
        return bool(name) and isinstance(imported_object(name), types.ModuleType)

    def _flags_of(self, node: ast.AST) -> Iterator[tuple[str, Words]]:
        """The flags of the node itself, as (certainty, reason)."""
        match node:
            case ast.Import():
                for alias in node.names:
                    yield from self._flags_of_import(alias.name, alias.name)
            case ast.ImportFrom():
                for alias in node.names:
                    yield from self._flags_of_import(f"{node.module}.{alias.name}", node.module or ".")
            case _ if (text := constant_text(node, self.texts)) is not None:
                yield from self._flags_of_text(text)
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
                why := why_forbidden(f"builtins.{name}", self.lab)
            ):
                yield CERTAIN, why
            case ast.Name(id=name, ctx=ast.Load()) if self._is_builtin(name) and (
                name in ATTRIBUTE_CALLS or "__" in name
            ):
                if name not in ("__name__", "__doc__"):  # __builtins__, or a getattr that is passed on and not called
                    yield LIKELY, words["runs_text"].format(name)
            case ast.Name(id=name, ctx=ast.Load()) if name in NAME_LISTS["runs_text"] and self._is_builtin(name):
                yield LOOK, words["runs_text"].format(name)  # an honest answer may have a use for dir or chr
            case ast.Name(id="bytes" | "bytearray" as name) if self.notebook.is_metered and self._is_builtin(name):
                yield LOOK, words["unmetered"].format(name)
            case ast.ClassDef():
                self.class_members |= set(node.body)
                yield from self._flags_of_class(node)

    def _is_builtin(self, name: str) -> bool:
        """Whether the name is a builtin or a dunder that no enclosing scope binds itself."""
        is_shadowed = any(name in names for names in self.shadowed)
        return not is_shadowed and (hasattr(builtins, name) or "__" in name)

    # -- imports and dotted names ----------------------------------------------------------------------------------
    def _flags_of_import(self, name: str, module: str) -> Iterator[tuple[str, Words]]:
        """The flags of an import of `name` ("math" or "math.sqrt") from `module` ("math")."""
        # What the lab's own cells import is allowed. From a module among these an answer may import other names as
        # well, but not from torch without a look, because torch has the parts that a lab asks the learner to write.
        given = self.notebook.imported_by_lab
        if name in given or (module in given and not is_within(module, ("torch",))):
            return
        module = name if isinstance(imported_object(name), types.ModuleType) else module  # `from a import b`, a module
        root = module.partition(".")[0]
        if why := why_forbidden(name, self.lab):
            yield CERTAIN, why
        elif is_within(module, ("numpy",)) and self.notebook.is_metered:
            yield LIKELY, words["unmetered"].format(module)
        elif is_usual_module(module, given):
            yield from self._flags_of_parts(name)
        elif is_within(module, allowed.THREAD_MODULES):  # a thread could hold bytes that a metered task does not see
            if self.notebook.is_metered:
                yield LOOK, words["threads"].format(module)
            else:
                yield from self._flags_of_parts(name)
        elif root in allowed.SUSPECT_MODULES:
            yield LIKELY, words["innards"].format(module)
        else:
            yield LOOK, words["unusual"].format(module)

    def _flags_of_name(self, name: str, node: ast.Attribute | ast.Name) -> Iterator[tuple[str, Words]]:
        """The flags of a use of the imported object `name`, such as "torch.distributed.send", at this node."""
        if not isinstance(node.ctx, ast.Load):  # the answer sets or deletes it, for example dist.send = …
            if isinstance(node, ast.Attribute) and not is_within(name, allowed.SETTABLE_MODULES):
                yield CERTAIN, words["replaces"].format(name)
            return
        if self._is_allowed_from_lab(name):
            return
        if why := why_forbidden(name, self.lab):
            yield CERTAIN, why
        else:
            yield from self._flags_of_parts(name)
            if self._is_module(node):  # the module itself is passed on, so its attributes can be used unseen
                yield LIKELY, words["handed_on"].format(name)

    def _is_allowed_from_lab(self, name: str) -> bool:
        """Whether it is a name of the course that the lab's own cells import and that an answer may use."""
        is_imported = any(is_within(name, (one,)) for one in self.notebook.imported_by_lab)
        return is_imported and is_within(name, allowed.ALLOWED_WHERE_GIVEN)

    def _flags_of_parts(self, name: str) -> Iterator[tuple[str, Words]]:
        """The first flag of a dotted name, read part by part: "torch.nn.Linear" as torch.nn, then torch.nn.Linear."""
        owner, *parts = name.split(".")
        for part in parts:
            if problem := self._flag_of_part(owner, part):
                yield problem
                return
            owner = f"{owner}.{part}"

    def _flag_of_part(self, owner: str, part: str) -> tuple[str, Words] | None:
        """The flag of the name `part` in the module or class `owner`; None if honest answers use it."""
        name = f"{owner}.{part}"
        if part in allowed.NEVER_ATTRIBUTES:
            return next(self._flags_of_attribute(part), None)
        if DUNDER.fullmatch(part):
            is_of_module = isinstance(imported_object(owner), types.ModuleType) and part not in MODULE_DUNDERS
            if is_of_module or part == "__dict__":
                return CERTAIN, words["machinery"].format(name)
            return next(self._flags_of_attribute(part), None)
        if owner.startswith("torch.distributed") and part in NAME_LISTS["below_the_wire"]:
            return CERTAIN, words["below_the_wire"].format(name)
        # torch's functions on lists of tensors, such as torch._foreach_add, have no public name, so they are allowed.
        if part.startswith("_") and not (part in NAME_LISTS["private_names"] or part.startswith("_foreach_")):
            return LIKELY, words["hidden"].format(name)
        is_unusual = owner in allowed.USUAL_NAMES_OF and part not in allowed.USUAL_NAMES_OF[owner]
        if is_unusual or name in allowed.RARE_NAMES:
            return LIKELY if owner in allowed.SUSPECT_MODULES else LOOK, words["rare"].format(name)
        return self._flag_of_object(name, imported_object(name))

    def _flag_of_object(self, name: str, value: object) -> tuple[str, Words] | None:
        """The flag of the object behind a harmless name, which may be a module or a class that no answer may use.

        For example, many modules of Python import `os`, so random._os is os, and torch's own DDP has several names.
        """
        if isinstance(value, types.ModuleType):
            real = value.__name__
            is_usual = is_usual_module(real, self.notebook.imported_by_lab)
            # Of a module in USUAL_NAMES_OF only some names are allowed. They are looked up by the module's own name, so
            # a second name for it (`name` differs from `real`) would avoid the look-up, and is flagged.
            is_fine = is_usual and (real == name or real.partition(".")[0] not in allowed.USUAL_NAMES_OF)
            certainty = CERTAIN if real.partition(".")[0] in allowed.SUSPECT_MODULES else LIKELY
            return None if is_fine else (certainty, words["reaches"].format(real, name))
        if value is None and name.rpartition(".")[2] in allowed.SUSPECT_MODULES:
            return LIKELY, words["hidden"].format(name)  # not imported yet, but named like a suspect module
        if why := why_object_forbidden(value, self.lab):
            return CERTAIN, why
        home = str(getattr(value, "__module__", None))  # the module that defines the object
        root = home.partition(".")[0]
        if root in allowed.SUSPECT_MODULES and root != name.partition(".")[0]:
            return LIKELY, words["rare"].format(f"{home}.{getattr(value, '__qualname__', '')}")
        return None

    # -- the rest --------------------------------------------------------------------------------------------------
    def _flags_of_attribute(self, attr: str) -> Iterator[tuple[str, Words]]:
        """The flags of an attribute of an object that is not known, such as `x.f_back`."""
        if reason := allowed.NEVER_ATTRIBUTES.get(attr):
            yield CERTAIN, words[reason].format(attr)
        elif DUNDER.fullmatch(attr) and attr not in allowed.USUAL_DUNDERS:
            yield LIKELY, words["machinery"].format(attr)
        elif attr in NAME_LISTS["below_the_wire"] and attr not in self.notebook.own_attributes:
            yield LIKELY, words["below_the_wire"].format(attr)
        elif self.notebook.is_metered and attr in NAME_LISTS["unmetered"] and attr not in self.notebook.own_attributes:
            yield LOOK, words["unmetered"].format(attr)

    def _flags_of_class(self, node: ast.ClassDef) -> Iterator[tuple[str, Words]]:
        """The dunders that a class defines although honest answers do not, such as __reduce__."""
        names = [part.name for part in node.body if isinstance(part, ast.FunctionDef)]
        assigned = (target for part in node.body if isinstance(part, ast.Assign) for target in part.targets)
        for name in [*names, *(target.id for target in assigned if isinstance(target, ast.Name))]:
            if DUNDER.fullmatch(name) and name not in allowed.DEFINABLE_DUNDERS:
                certainty = CERTAIN if name in allowed.NEVER_ATTRIBUTES else LIKELY
                yield certainty, words["defines"].format(node.name, name)

    def _flags_of_call(self, node: ast.Call) -> Iterator[tuple[str, Words]]:
        """The flags of what is called, and of a verdict among the texts that it prints."""
        name = self.name_of(node.func) or (node.func.id if isinstance(node.func, ast.Name) else "")
        # A group on another backend, such as one of dist.new_group, would not send through the wire.
        if "new_" in name and any(keyword.arg == "backend" for keyword in node.keywords):
            yield LOOK, words["below_the_wire"].format(f"{name}(backend=…)")
        if name in ATTRIBUTE_CALLS and len(node.args) > 1:
            yield from self._flags_of_getattr(name, *node.args[:2])
        texts = [one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str)]
        if name == "print" and any(" passed" in text and "ranks" in text for text in texts):
            yield CERTAIN, words["verdict"]  # it prints what the check would print

    def _flags_of_getattr(self, called: str, owner: ast.AST, attribute: ast.AST) -> Iterator[tuple[str, Words]]:
        """The flags of called(owner, attribute), where `called` is one of ATTRIBUTE_CALLS."""
        owner_name, text = self.name_of(owner), constant_text(attribute, self.texts)
        if called in ("setattr", "delattr") and owner_name:
            yield CERTAIN, words["replaces"].format(f"{owner_name}.{text or '…'}")
        elif text is None and owner_name:
            yield LIKELY, words["by_built_name"].format(owner_name)
        elif text is not None and owner_name:
            # Like the name written out. `_flags_of_name` uses the node only for its `ctx` and to see whether it is a
            # module, so a node with an empty name will do, which is loaded and is no module.
            yield from self._flags_of_name(f"{owner_name}.{text}", ast.Name(id="", ctx=ast.Load()))
        elif text is not None:
            yield from self._flags_of_attribute(text)
        # The name of the attribute is computed. Honest answers do so with a variable, a field or an f-string, as in
        # getattr(self, name) in a loop, so only other expressions, such as a sum of texts, are flagged.
        elif not isinstance(attribute, ast.Name | ast.Attribute | ast.JoinedStr):
            yield LOOK, words["by_built_name"].format(called)

    def _flags_of_text(self, text: str) -> Iterator[tuple[str, Words]]:
        """The flags of a text that is a name, which an answer could pass to getattr or exec."""
        unusual = [one for one in DUNDER.findall(text) if one not in allowed.USUAL_DUNDERS]
        if never := next((one for one in re.findall(r"\w+", text) if one in allowed.NEVER_ATTRIBUTES), None):
            yield CERTAIN, words["names_in_text"].format(never)
        elif unusual:
            yield LIKELY, words["names_in_text"].format(unusual[0])
        elif NAME.fullmatch(text) and "." in text and why_forbidden(text, self.lab):
            yield CERTAIN, words["names_in_text"].format(text)
        elif text == "helpers":
            yield LIKELY, words["names_in_text"].format(text)


def scan(program: Program, lab: LabNotebook, lang: str = "en") -> list[Flag]:
    """The flags of every statement that a task needs, and of checks that the learner changed. lang: of the reasons."""
    statements = [statement for needed in program.needed_statements.values() for statement in needed]
    names = names_of_notebook(statements, lab)
    # A statement that several tasks need is read once for those that count bytes, and once for the others.
    readers = {metered: Reader(replace(names, is_metered=metered)) for metered in (False, True)}
    flags_of: dict[tuple[Statement, bool], list[LineFlag]] = {}
    found: dict[Flag, None] = {}  # its keys are the flags, in the order in which they were found
    for key, needed in program.needed_statements.items():
        metered = is_metered(task_of(key))
        for statement in needed:
            if statement.is_from_lab or _defines_check(statement):
                continue
            if (statement, metered) not in flags_of:
                flags_of[statement, metered] = list(dict.fromkeys(readers[metered].read(statement.node)))
            for flag in flags_of[statement, metered]:
                reason = flag.reason.in_(lang)[:MAX_REASON]
                location = f"{statement.cell}, line {flag.line}"
                found[Flag(key=key, location=location, reason=reason, certainty=flag.certainty)] = None
    for key, cell in program.changed_checks.items():  # key of a task -> the cell that checks it
        reason = words["check_changed"].format(cell).in_(lang)
        found[Flag(key=key, location="", reason=reason, certainty=LOOK)] = None
    return list(found)


def names_of_notebook(statements: Sequence[Statement], lab: LabNotebook) -> NotebookNames:
    """What the names in these statements stand for. A statement that several tasks need counts once."""
    nodes = [one.node for one in dict.fromkeys(statements)]
    return NotebookNames(
        aliases=import_aliases(nodes),
        lab=lab.number,
        own_attributes=defined_attributes(nodes),
        imported_by_lab=lab.imports,
    )


def _defines_check(statement: Statement) -> bool:
    """Whether a statement defines a `check` of the learner's own, which nothing calls while tasks are graded."""
    node = statement.node
    return isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == "check"
