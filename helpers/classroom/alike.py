"""Answers to a task that are the same but for names, comments, formatting and the order of statements.

An answer is a bag of pieces: each simple statement, and the head of each loop, branch and function, with own names
numbered by their first use in it. Two answers are alike when most of their pieces are equal, and some of the equal ones
are rare: not the lab's own lines, not the solution's, not what more than a third of the class wrote. So the one natural
form of a short answer is never listed.
"""

from __future__ import annotations

import ast
import copy
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from helpers.classroom import labs
from helpers.classroom.changes import lines_of
from helpers.classroom.labs import Lab
from helpers.classroom.program import Program, Statement, program_of
from helpers.classroom.results import Result
from helpers.classroom.rungs import ROOT
from helpers.classroom.submissions import Submission, Unreadable, read

ENOUGH = 0.8  # share of equal pieces
RARE = 4  # of the equal pieces, so many must be rare
CROWD = 1 / 3  # what more of those who answered wrote is not rare
BODIES = ("body", "orelse", "finalbody", "handlers", "cases")


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two learners with the same answer to a task. share: of their pieces, 0 to 1. texts: what each wrote."""

    key: str
    learners: tuple[str, str]
    share: float
    texts: tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a learner wrote for a task."""

    learner: str
    text: str
    pieces: Counter[str]


def pairs(submissions: Iterable[Submission], results: Iterable[Result], candidates: Iterable[Lab]) -> list[Pair]:
    """Those that are alike, the most equal first."""
    of_learner, by_name = {one.learner: one for one in submissions}, {lab.name: lab for lab in candidates}
    answers: dict[str, list[Answer]] = defaultdict(list)
    for result in results:
        if result.lab in by_name and result.learner in of_learner and result.digest:
            for key, answer in _answers(of_learner[result.learner], by_name[result.lab]):
                answers[key].append(answer)
    given = {key: pieces for lab in by_name.values() for key, pieces in usual_pieces(lab).items()}
    found = [pair for key, several in answers.items() for pair in alike(key, several, given.get(key, {}))]
    return sorted(found, key=lambda pair: (-pair.share, pair.key, pair.learners))


def alike(key: str, answers: Sequence[Answer], usual: Iterable[str]) -> Iterator[Pair]:
    """The pairs among the answers to one task. usual: the pieces of the lab and of its solution."""
    holders = Counter(piece for answer in answers for piece in answer.pieces)
    most = max(2, CROWD * len(answers))
    rare = {piece for piece, number in holders.items() if number <= most} - set(usual)
    for one, other in combinations(answers, 2):
        common = one.pieces & other.pieces
        share = 2 * common.total() / max(1, one.pieces.total() + other.pieces.total())
        if share >= ENOUGH and sum(number for piece, number in common.items() if piece in rare) >= RARE:
            yield Pair(key=key, learners=(one.learner, other.learner), share=share, texts=(one.text, other.text))


def _answers(submission: Submission, lab: Lab) -> Iterator[tuple[str, Answer]]:
    try:
        program = program_of(read(submission.path)[0], lab)
    except (Unreadable, RecursionError):
        return
    for key in program.needs:
        written = own_statements(program, key)
        if pieces := pieces_of([statement.node for statement in written]):
            yield key, Answer(learner=submission.learner, text=text_of(program, written), pieces=pieces)


def own_statements(program: Program, key: str) -> list[Statement]:
    """What the learner wrote for a task: neither the lab's own lines nor what stands in the cell of another task."""
    homes = program.homes
    return [s for s in program.needs[key] if not s.given and homes.get(s.cell, key) == key and not _is_import(s.node)]


def _is_import(node: ast.stmt) -> bool:
    return isinstance(node, ast.Import | ast.ImportFrom)


def text_of(program: Program, written: Iterable[Statement]) -> str:
    """Their lines, as the learner wrote them."""
    lines = {cell.name: lines_of(cell.source) for cell in program.cells}
    parts = []
    for one in written:
        first = min([one.line, *(part.lineno for part in getattr(one.node, "decorator_list", []))])
        parts.append("\n".join(lines[one.cell][first - 1 : one.node.end_lineno]))
    return "\n\n".join(parts)


def usual_pieces(lab: Lab) -> Mapping[str, set[str]]:
    """Task to the pieces that the lab gives, and those of its solution."""
    found: dict[str, set[str]] = defaultdict(set)
    for folder in ("labs", "solutions"):
        path = ROOT / folder / f"{lab.name}.ipynb"
        for grade_id, _, cell in labs.marked(path) if path.exists() else []:
            if grade_id in lab.homes:
                found[lab.homes[grade_id]] |= set(pieces_of(ast.parse(labs.source_of(cell)).body))
    return found


# -- pieces ----------------------------------------------------------------------------------------------------------
def pieces_of(nodes: Sequence[ast.stmt]) -> Counter[str]:
    """How often each piece stands in these statements; none where they are nested too deep to be read."""
    try:
        own = _own_names(nodes)
        return Counter(piece for node in nodes for piece in _pieces(node, own))
    except (RecursionError, ValueError):  # ValueError: what ast cannot write again
        return Counter()


def _own_names(nodes: Iterable[ast.stmt]) -> set[str]:
    """The names that the answer itself gives: variables, arguments, functions, attributes of `self`."""
    found = set()
    for part in (part for node in nodes for part in ast.walk(node)):
        match part:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                found.add(name)
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) if not name.startswith("__"):
                found.add(name)
            case ast.Attribute(attr=name, value=ast.Name(id="self"), ctx=ast.Store()):
                found.add(name)
    return found


def _pieces(node: ast.stmt, own: set[str]) -> Iterator[str]:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) or isinstance(node, ast.Pass):
        return  # a docstring says nothing
    inner = [part for name in BODIES for part in getattr(node, name, [])]
    yield ast.unparse(_Numbered(own).visit(_head(node)))
    for part in inner:
        yield from _pieces(part, own)


def _head(node: ast.stmt) -> ast.stmt:
    """A copy with nothing in it, and without what only a reader needs."""
    bare = copy.copy(node)
    for name in BODIES:
        if getattr(bare, name, None):
            setattr(bare, name, [ast.Pass()] if name == "body" else [])
    if isinstance(bare, ast.FunctionDef | ast.AsyncFunctionDef):
        bare.returns = None
    return copy.deepcopy(bare)


class _Numbered(ast.NodeTransformer):
    """Own names as a0, a1, … in the order in which they come; no annotations."""

    def __init__(self, own: set[str]):
        self.own, self.names = own, {}

    def _number(self, name: str) -> str:
        return self.names.setdefault(name, f"a{len(self.names)}") if name in self.own else name

    def visit_Name(self, node: ast.Name) -> ast.AST:
        node.id = self._number(node.id)
        return node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.arg, node.annotation = self._number(node.arg), None
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        node.attr = self._number(node.attr)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.name = self._number(node.name)
        return self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        node.name = self._number(node.name)
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        self.generic_visit(node)
        return ast.Assign(targets=[node.target], value=node.value, lineno=0) if node.value else ast.Pass()
