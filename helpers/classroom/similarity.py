"""Finds answers to a task that differ only in names, comments, formatting and the order of statements.

An answer is compared as a bag of pieces: each simple statement, and the head of each loop, branch and function, with
the answer's own names numbered by their first use in the piece: `total = total + x` becomes "a0 = a0 + a1". Two answers
are similar if most of their pieces are equal and some of the equal pieces are rare: not in the lab, not in the
solution, and not written by more than a third of the class. A short answer that has one natural form is therefore never
listed.
"""

from __future__ import annotations

import ast
import copy
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from helpers.classroom.code_changes import split_lines
from helpers.classroom.isolation import ROOT
from helpers.classroom.labs import LabNotebook
from helpers.classroom.plain_text import one_line, plain_lines
from helpers.classroom.program import Program, Statement
from helpers.classroom.results import AnswerPieces, GradedSubmission
from helpers.grading.lab_notebooks import graded_cells, source_of

MIN_SHARE = 0.8  # the share of the pieces that must be equal
MIN_RARE_PIECES = 4  # among the equal pieces
COMMON_SHARE = 1 / 3  # a piece that more of the class wrote is not rare
MAX_ANSWER_NODES = 5_000  # nodes of the syntax tree of an answer that is compared; the labs' own have less than 500
BODIES = ("body", "orelse", "finalbody", "handlers", "cases")  # fields of a compound statement that hold statements


@dataclass(frozen=True, kw_only=True)
class SimilarPair:
    """Two learners with similar answers to a task.

    key: of the task. share: of equal pieces, from 0 to 1. texts: what each of them wrote.
    """

    key: str
    learners: tuple[str, str]
    share: float
    texts: tuple[str, str]


def similar_pairs(results: Iterable[GradedSubmission], candidates: Iterable[LabNotebook]) -> list[SimilarPair]:
    """All pairs of similar answers in a class, the most similar first. candidates: the labs that were graded."""
    labs_by_name = {lab.name: lab for lab in candidates}
    answers: dict[str, list[tuple[str, AnswerPieces]]] = defaultdict(list)  # key of a task -> everybody's answer
    for result in results:
        for answer in result.pieces if result.lab in labs_by_name else ():
            answers[answer.key].append((result.learner, answer))
    usual = {key: pieces for lab in labs_by_name.values() for key, pieces in lab_pieces(lab).items()}
    found = [pair for key, several in answers.items() for pair in pairs_of_task(several, usual.get(key, {}))]
    return sorted(found, key=lambda pair: (-pair.share, pair.key, pair.learners))


def pairs_of_task(answers: Sequence[tuple[str, AnswerPieces]], usual: Iterable[str]) -> Iterator[SimilarPair]:
    """The pairs of similar answers to one task. answers: (learner, answer). usual: pieces of the lab and its solution.

    Two answers are compared piece by piece only if they have enough rare pieces in common.
    """
    num_learners = Counter(piece for _, answer in answers for piece in answer.pieces)
    max_learners = max(2, COMMON_SHARE * len(answers))  # a pair has two, however small the class is
    rare = {piece for piece, number in num_learners.items() if 1 < number <= max_learners} - set(usual)
    rare_pieces = [rare & answer.pieces.keys() for _, answer in answers]
    for one, other in combinations(range(len(answers)), 2):
        (learner, first), (other_learner, second) = answers[one], answers[other]
        both = rare_pieces[one] & rare_pieces[other]
        if sum(min(first.pieces[piece], second.pieces[piece]) for piece in both) < MIN_RARE_PIECES:
            continue
        equal = Counter(first.pieces) & Counter(second.pieces)  # each piece as often as both have it
        share = 2 * equal.total() / (sum(first.pieces.values()) + sum(second.pieces.values()))
        if share >= MIN_SHARE:
            texts = first.text, second.text
            yield SimilarPair(key=first.key, learners=(learner, other_learner), share=share, texts=texts)


def answers_in(program: Program) -> Iterator[AnswerPieces]:
    """What the learner wrote for each task, unless it is far longer than an answer."""
    for key in program.needed_statements:
        written = learner_statements(program, key)
        nodes = [statement.node for statement in written]
        num_nodes = sum(1 for node in nodes for _ in ast.walk(node))
        if num_nodes <= MAX_ANSWER_NODES and (pieces := pieces_of(nodes)):
            text = plain_lines(text_of(program, written))
            yield AnswerPieces(key=key, text=text, pieces={one_line(piece): number for piece, number in pieces.items()})


def learner_statements(program: Program, key: str) -> list[Statement]:
    """What the learner wrote for a task, without the lab's own lines and the cells of other tasks."""
    by_learner = [one for one in program.needed_statements[key] if not one.is_from_lab]
    own = [one for one in by_learner if not isinstance(one.node, ast.Import | ast.ImportFrom)]
    return [one for one in own if program.task_of_cell.get(one.cell, key) == key]


def text_of(program: Program, written: Iterable[Statement]) -> str:
    """The source lines of these statements, as the learner wrote them."""
    lines = {cell.name: split_lines(cell.source) for cell in program.cells}
    parts = []
    for one in written:
        first = min([one.line, *(part.lineno for part in getattr(one.node, "decorator_list", []))])
        parts.append("\n".join(lines[one.cell][first - 1 : one.node.end_lineno]))
    return "\n\n".join(parts)


def lab_pieces(lab: LabNotebook) -> Mapping[str, set[str]]:
    """Key of a task -> the pieces that the lab gives, and the pieces of its solution."""
    found: dict[str, set[str]] = defaultdict(set)
    for folder in ("labs", "solutions"):
        path = ROOT / folder / f"{lab.name}.ipynb"
        for grade_id, _, cell in graded_cells(path) if path.exists() else []:
            if grade_id in lab.task_of_cell:
                found[lab.task_of_cell[grade_id]] |= set(pieces_of(ast.parse(source_of(cell)).body))
    return found


# -- pieces ----------------------------------------------------------------------------------------------------------
def pieces_of(nodes: Sequence[ast.stmt]) -> Counter[str]:
    """How often each piece stands in these statements; no piece if they are nested too deeply to be read."""
    try:
        own = _own_names(nodes)
        return Counter(piece for node in nodes for piece in _pieces(node, own))
    except (RecursionError, ValueError):  # ValueError: ast.unparse cannot write it
        return Counter()


def _own_names(nodes: Iterable[ast.stmt]) -> set[str]:
    """The names that the answer defines: variables, arguments, functions, attributes of `self`."""
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
    """The piece of a statement, then the pieces of the statements inside it. own: the names that the answer defines."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) or isinstance(node, ast.Pass):
        return  # a docstring is no part of what an answer does
    yield ast.unparse(_Numbered(own).visit(_head(node)))
    for name in BODIES:
        for part in getattr(node, name, []):
            yield from _pieces(part, own)


def _head(node: ast.stmt) -> ast.stmt:
    """A copy of the statement with an empty body and no annotation."""
    bare = copy.copy(node)
    for name in BODIES:
        if getattr(bare, name, None):
            setattr(bare, name, [ast.Pass()] if name == "body" else [])
    if isinstance(bare, ast.FunctionDef | ast.AsyncFunctionDef):
        bare.returns = None
    return copy.deepcopy(bare)


class _Numbered(ast.NodeTransformer):
    """Replaces own names by a0, a1, … in the order of their first use, and drops annotations."""

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

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.ClassDef) -> ast.AST:
        node.name = self._number(node.name)
        return self.generic_visit(node)

    visit_ClassDef = visit_FunctionDef

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        self.generic_visit(node)
        # lineno=0: ast.unparse reads the line of an assignment, though it does not write it.
        return ast.Assign(targets=[node.target], value=node.value, lineno=0) if node.value else ast.Pass()
