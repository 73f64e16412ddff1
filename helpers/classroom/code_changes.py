"""Lists small changes to a learner's code that are worth an exam question: a deleted line, a replaced piece.

viva.py runs the changed cells and asks what happens. Every change leaves the numbers of the lines as they are. A simple
statement is one without a block of its own, such as an assignment or a call.
"""

from __future__ import annotations

import ast
import copy
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

# The simple statements that are deleted. A return is not among them: without it a function only gives None, and a
# question about that is not interesting.
SIMPLE = (ast.Expr, ast.Assign, ast.AugAssign, ast.Delete, ast.Continue, ast.Break)
SWAPPED = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Lt: ast.LtE, ast.LtE: ast.Lt}
SWAPPED |= {ast.Gt: ast.GtE, ast.GtE: ast.Gt}
OTHER_CALL = {"min": "max", "max": "min"}
DROPPED_CALLS = ("clone", "detach", "contiguous")  # x.clone() becomes x
OTHER_NAME = {"SUM": "MAX", "AVG": "SUM", "MAX": "SUM"}  # names in dist.ReduceOp
MAX_LINE = 200  # characters of a line that a question may be about
BLOCKS = ("body", "orelse", "finalbody")  # fields of a compound statement that hold statements


@dataclass(frozen=True, kw_only=True)
class CodeChange:
    """One change to a cell. line: from 1. old, new: what is replaced by what, new is "" for a deleted line.

    text: the whole line after the change.
    """

    line: int
    old: str
    new: str
    text: str

    def changed(self, source: str) -> str:
        """The source of the cell after the change."""
        lines = split_lines(source)
        return "\n".join([*lines[: self.line - 1], self.text, *lines[self.line :]])


@dataclass(frozen=True, kw_only=True)
class TaskCell:
    """The cell that a learner wrote for a task: its index in the notebook, its source, and changes to it.

    key: of the task.
    """

    key: str
    index: int
    source: str
    deletions: Sequence[CodeChange]
    replacements: Sequence[CodeChange]


def split_lines(source: str) -> list[str]:
    """The lines as Python counts them; str.splitlines would split at more characters."""
    return re.split(r"\r\n|\r|\n", source)


# -- deletions -----------------------------------------------------------------------------------------------------
def deletions(source: str, nodes: Sequence[ast.stmt]) -> list[CodeChange]:
    """The deletions of one line after which every name is still defined; assignments come last.

    source: of a cell. nodes: the functions and classes in it that may be changed. Every node of their syntax trees is
    looked at a few times, however many lines there are.
    """
    lines = split_lines(source)
    assignments, others = [], []
    for node in nodes:
        names = _NamesOf(node)
        starts = _starts_of_lines(node)
        for one, block in _simple_statements(node):
            # A block needs at least one other statement, since an empty block is a syntax error.
            is_alone = one.lineno == one.end_lineno and starts[one.lineno] == 1
            if len(block) > 1 and is_alone and not names.are_undefined_without(one):
                change = CodeChange(line=one.lineno, old=lines[one.lineno - 1].strip()[:MAX_LINE], new="", text="")
                (assignments if isinstance(one, ast.Assign) else others).append(change)
    return others + assignments


def _simple_statements(node: ast.AST) -> Iterator[tuple[ast.stmt, list[ast.stmt]]]:
    """Each simple statement with the block in which it stands; docstrings are left out of the block."""
    for part in ast.walk(node):
        for name in BLOCKS:
            block = getattr(part, name, None)
            block = [one for one in block if not _is_docstring(one)] if isinstance(block, list) else []
            yield from ((one, block) for one in block if isinstance(one, SIMPLE))


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _starts_of_lines(node: ast.stmt) -> Counter[int]:
    """How many statements of `node` begin on a line, or end their head on it: 1 where a statement stands alone."""
    statements = [part for part in ast.walk(node) if isinstance(part, ast.stmt)]
    return Counter(line for part in statements for line in {part.lineno, _head_end(part)})


def _head_end(node: ast.stmt) -> int:
    """The last line of a statement without its block."""
    body = getattr(node, "body", None)
    return node.end_lineno if not body else body[0].lineno - 1


class _NamesOf:
    """Which names a function or class uses and binds, and how often.

    used: names that are read. arguments: names of arguments. first_bound: a name to the first line that binds it.
    """

    def __init__(self, node: ast.stmt):
        parts = list(ast.walk(node))
        self.used, self.arguments = _used_names(parts), _argument_names(parts)
        self.first_bound: dict[str, int] = {}
        for part in parts:
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                self.first_bound[part.id] = min(part.lineno, self.first_bound.get(part.id, part.lineno))

    def are_undefined_without(self, one: ast.stmt) -> bool:
        """Whether a name that the rest uses is undefined without this line, which would only give a NameError."""
        if isinstance(one, ast.AugAssign):
            return False  # `+=` needs an earlier value, so the name is defined without it
        inside = list(ast.walk(one))
        used, arguments = _used_names(inside), _argument_names(inside)
        bound = {part.id for part in inside if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}
        needed = {name for name in bound if self.used[name] > used[name]}  # the rest uses them
        is_defined = {
            name for name in needed if self.first_bound[name] < one.lineno or self.arguments[name] > arguments[name]
        }
        return bool(needed - is_defined) or _sets_attribute_of_self(one)


def _used_names(parts: Iterable[ast.AST]) -> Counter[str]:
    return Counter(part.id for part in parts if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load))


def _argument_names(parts: Iterable[ast.AST]) -> Counter[str]:
    return Counter(part.arg for part in parts if isinstance(part, ast.arg))


def _sets_attribute_of_self(one: ast.stmt) -> bool:
    """Whether it is `self.x = …`, without which a later method would only raise an AttributeError."""
    targets = one.targets if isinstance(one, ast.Assign) else []
    return any(isinstance(part, ast.Attribute) and getattr(part.value, "id", "") == "self" for part in targets)


# -- replacements ----------------------------------------------------------------------------------------------------
def replacements(source: str, nodes: Sequence[ast.stmt]) -> list[CodeChange]:
    """The replacements of an operator, a call or a name by a related one, if the piece stands only once in its line.

    Lines of more than MAX_LINE characters have none, so that each piece takes a short time.
    """
    lines = split_lines(source)
    found = []
    for node in nodes:
        for part in ast.walk(node):
            old = _segment(lines, part)
            for new in _alternatives(part) if old else ():
                if new != old and lines[part.lineno - 1].count(old) == 1:
                    line = lines[part.lineno - 1].replace(old, new)
                    found.append(CodeChange(line=part.lineno, old=old, new=new, text=line))
    return found


def _segment(lines: Sequence[str], node: ast.AST) -> str:
    """The source of a node; "" if it has none, if it takes several lines, or if its line is too long for a question."""
    if not isinstance(node, ast.expr | ast.stmt) or node.lineno != node.end_lineno:
        return ""
    line = lines[node.lineno - 1]
    if len(line) > MAX_LINE:
        return ""
    return line.encode()[node.col_offset : node.end_col_offset].decode()  # ast counts in bytes


def _alternatives(node: ast.AST) -> Iterator[str]:
    """The sources that may stand in place of an expression or an augmented assignment."""
    match node:
        # `(a + b) % n` without `% n`. With a constant on the left, % usually formats a text, as in "%d" % n.
        case ast.BinOp(op=ast.Mod(), left=left) if not isinstance(left, ast.Constant):
            yield f"({ast.unparse(left)})" if isinstance(left, ast.BinOp) else ast.unparse(left)
        case ast.BinOp(op=op) | ast.AugAssign(op=op) if type(op) in SWAPPED:
            yield _source_with(node, op=SWAPPED[type(op)]())
        case ast.Compare(ops=[op]) if type(op) in SWAPPED:
            yield _source_with(node, ops=[SWAPPED[type(op)]()])
        case ast.Call(func=ast.Name(id=name)) if name in OTHER_CALL:
            yield _source_with(node, func=ast.Name(id=OTHER_CALL[name]))
        case ast.Call(func=ast.Attribute(attr=name, value=value), args=[]) if name in DROPPED_CALLS:
            yield ast.unparse(value)
        case ast.Attribute(attr=name) if name in OTHER_NAME:
            yield _source_with(node, attr=OTHER_NAME[name])


def _source_with(node: ast.AST, **fields: object) -> str:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return ast.unparse(changed)
