"""Lists small changes to a learner's code that are worth an exam question: a deleted line, a replaced piece.

viva.py runs the changed cells and asks what happens. Every change leaves the numbers of the lines as they are. A simple
statement is one without a block of its own, such as an assignment or a call.
"""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

# The simple statements that are deleted. A return is not among them: without it a function only gives None, and a
# question about that is not interesting.
SIMPLE = (ast.Expr, ast.Assign, ast.AugAssign, ast.Delete, ast.Continue, ast.Break)
SWAPPED = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Lt: ast.LtE, ast.LtE: ast.Lt}
SWAPPED |= {ast.Gt: ast.GtE, ast.GtE: ast.Gt}
OTHER_CALL = {"min": "max", "max": "min"}
DROPPED_CALLS = ("clone", "detach", "contiguous")  # x.clone() becomes x
OTHER_NAME = {"SUM": "MAX", "AVG": "SUM", "MAX": "SUM"}  # of dist.ReduceOp
BLOCKS = ("body", "orelse", "finalbody")  # fields of a compound statement that hold statements


@dataclass(frozen=True, kw_only=True)
class CodeChange:
    """One change to a cell. line: from 1. old, new: what is replaced by what, new is "" for a deleted line.

    source: the whole changed cell.
    """

    line: int
    old: str
    new: str
    source: str


def split_lines(source: str) -> list[str]:
    """The lines as Python counts them; str.splitlines would split at more characters."""
    return re.split(r"\r\n|\r|\n", source)


# -- deletions -----------------------------------------------------------------------------------------------------
def deletions(source: str, nodes: Sequence[ast.stmt]) -> list[CodeChange]:
    """The deletions of one line after which every name is still defined; assignments come last.

    source: of a cell. nodes: the functions and classes in it that may be changed.
    """
    lines = split_lines(source)
    assignments, others = [], []
    for node in nodes:
        for one, block in _simple_statements(node):
            # A block needs at least one other statement, since an empty block is a syntax error.
            if len(block) > 1 and _is_alone_on_its_line(one, node) and not _leaves_name_undefined(one, node):
                change = _with_line(lines, one.lineno, "", old=lines[one.lineno - 1].strip(), new="")
                (assignments if isinstance(one, ast.Assign) else others).append(change)
    return others + assignments


def _with_line(lines: Sequence[str], number: int, line: str, *, old: str, new: str) -> CodeChange:
    """The change that puts `line` in place of the line with this number. old, new: what a reader is told about it."""
    return CodeChange(line=number, old=old, new=new, source="\n".join([*lines[: number - 1], line, *lines[number:]]))


def _simple_statements(node: ast.AST) -> Iterator[tuple[ast.stmt, list[ast.stmt]]]:
    """Each simple statement with the block in which it stands; docstrings are left out of the block."""
    for part in ast.walk(node):
        for name in BLOCKS:
            block = getattr(part, name, None)
            block = [one for one in block if not _is_docstring(one)] if isinstance(block, list) else []
            yield from ((one, block) for one in block if isinstance(one, SIMPLE))


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_alone_on_its_line(one: ast.stmt, node: ast.stmt) -> bool:
    """Whether the statement takes one line, on which no other statement of `node` begins, and no head of one ends."""
    others = [part for part in ast.walk(node) if isinstance(part, ast.stmt) and part is not one]
    lines = {line for part in others for line in (part.lineno, _head_end(part))}
    return one.lineno == one.end_lineno and one.lineno not in lines


def _head_end(node: ast.stmt) -> int:
    """The last line of a statement without its block."""
    body = getattr(node, "body", None)
    return node.end_lineno if not body else body[0].lineno - 1


def _leaves_name_undefined(one: ast.stmt, node: ast.stmt) -> bool:
    """Whether a name that the rest of `node` uses is undefined without this line, which would only give a NameError."""
    if isinstance(one, ast.AugAssign):
        return False  # `+=` needs an earlier value, so the name is defined without it
    inside = list(ast.walk(one))
    outside = [part for part in ast.walk(node) if part not in inside]
    names = [part for part in outside if isinstance(part, ast.Name)]
    bound = {part.id for part in inside if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}
    bound_before = {part.id for part in names if isinstance(part.ctx, ast.Store) and part.lineno < one.lineno}
    bound_before |= {part.arg for part in outside if isinstance(part, ast.arg)}
    used = {part.id for part in names if isinstance(part.ctx, ast.Load)}
    return bool(bound & used - bound_before) or _sets_attribute_of_self(one)


def _sets_attribute_of_self(one: ast.stmt) -> bool:
    """Whether it is `self.x = …`, without which a later method would only raise an AttributeError."""
    targets = one.targets if isinstance(one, ast.Assign) else []
    return any(isinstance(part, ast.Attribute) and getattr(part.value, "id", "") == "self" for part in targets)


# -- replacements ----------------------------------------------------------------------------------------------------
def replacements(source: str, nodes: Sequence[ast.stmt]) -> list[CodeChange]:
    """The replacements of an operator, a call or a name by a related one, if the piece stands only once in its line."""
    lines = split_lines(source)
    found = []
    for node in nodes:
        for part in ast.walk(node):
            for new in _alternatives(part):
                old = _segment(lines, part)
                if old and new != old and lines[part.lineno - 1].count(old) == 1:
                    line = lines[part.lineno - 1].replace(old, new)
                    found.append(_with_line(lines, part.lineno, line, old=old, new=new))
    return found


def _segment(lines: Sequence[str], node: ast.AST) -> str:
    """The source of a node; "" if it takes several lines."""
    if node.lineno != node.end_lineno:
        return ""
    return lines[node.lineno - 1].encode()[node.col_offset : node.end_col_offset].decode()  # ast counts in bytes


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
