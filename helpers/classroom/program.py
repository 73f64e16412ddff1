"""What a notebook defines, statement by statement, and which of it each task needs. Parsed, never run here."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from helpers.classroom.labs import Lab, is_locked, is_plain_check, marks_of, source_of
from helpers.classroom.parsing import parse

DEFINES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
BINDS = (*DEFINES, ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign)


@dataclass(frozen=True, kw_only=True, eq=False)
class Statement:
    """One statement at the top of a cell. given: the lab's own. answer: it stands in a cell to write in."""

    cell: str
    node: ast.stmt
    names: frozenset[str]
    uses: frozenset[str]
    given: bool
    answer: bool

    @property
    def line(self) -> int:
        return self.node.lineno


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A cell as it is run: of its source, the statements that start at these lines."""

    name: str
    source: str
    lines: tuple[int, ...]
    given: bool


@dataclass(kw_only=True)
class Program:
    """A notebook, sorted out.

    cells: in order. needs: the key of a task to its statements. missing: keys of tasks that nothing defines. problems:
    sentences. changed: keys of tasks whose check was changed to something else, with the cell. answers: grade_id to
    text. homes: the name of a cell to the key of its task. defined: names of the learner's functions and classes.
    """

    cells: list[Cell] = field(default_factory=list)
    needs: dict[str, list[Statement]] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    changed: dict[str, str] = field(default_factory=dict)
    answers: dict[str, str] = field(default_factory=dict)
    homes: dict[str, str] = field(default_factory=dict)
    defined: list[str] = field(default_factory=list)

    def tasks_of(self, cell: str) -> list[str]:
        """The task that a cell is there for; of a cell of the learner's own, all that need something in it."""
        if cell in self.homes:
            return [self.homes[cell]]
        return [key for key, needed in self.needs.items() if any(s.cell == cell for s in needed)]


def program_of(cells: Sequence[dict], lab: Lab) -> Program:
    """Sort out the cells of a submission to `lab`."""
    program, sources = Program(), {}
    statements = list(_given(lab, sources))
    for number, cell in enumerate(cells, 1):
        marks = marks_of(cell)
        grade_id = marks.get("grade_id", "")
        if cell["cell_type"] != "code":
            if grade_id in {question.grade_id for question in lab.questions}:
                program.answers[grade_id] = source_of(cell)
        elif grade_id in lab.locked or is_locked(marks):
            _compare(program, lab, grade_id, source_of(cell))
        else:
            name = f"cell {grade_id}" if grade_id in lab.solutions else f"cell {number}"
            name += f" ({number})" if name in sources else ""
            source = sources[name] = without_magics(source_of(cell))
            statements += _parsed(program, name, source, grade_id in lab.solutions)
    _divide(program, lab, statements, sources)
    return program


def _given(lab: Lab, sources: dict[str, str]) -> Iterator[Statement]:
    for grade_id, source in lab.given:
        name = f"lab {grade_id}"
        sources[name] = source
        for node in parse(source).body:
            if isinstance(node, BINDS) and not _is_of_a_picture(node):
                yield _statement(name, node, given=True, answer=False)


def _is_of_a_picture(node: ast.stmt) -> bool:
    """Variables of the lab's own cells draw pictures, but for its CONSTANTS."""
    return isinstance(node, ast.Assign | ast.AnnAssign) and not all(name.isupper() for name in _bound(node))


def _compare(program: Program, lab: Lab, grade_id: str, source: str) -> None:
    original = lab.locked.get(grade_id)
    if original is None or source.split() == original.split() or is_plain_check(source):
        return
    for asked in lab.tasks:
        if asked.check == grade_id:
            program.changed[asked.key] = grade_id


def _parsed(program: Program, name: str, source: str, answer: bool) -> Iterator[Statement]:
    try:
        body = parse(source).body
    except SyntaxError as error:
        program.problems.append(f"{name}, line {error.lineno}: a syntax error ({error.msg}), so the cell was left out.")
        return
    except (ValueError, RecursionError, MemoryError) as error:
        program.problems.append(f"{name}: it cannot be parsed ({type(error).__name__}), so the cell was left out.")
        return
    for node in body:
        yield _statement(name, node, given=False, answer=answer)


def _statement(cell: str, node: ast.stmt, *, given: bool, answer: bool) -> Statement:
    bound = set(_bound(node))
    uses = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    return Statement(cell=cell, node=node, names=frozenset(bound), uses=frozenset(uses), given=given, answer=answer)


def _bound(node: ast.stmt) -> Iterator[str]:
    """The names that a statement gives a meaning at the top of the notebook."""
    if isinstance(node, DEFINES):
        yield node.name
        return
    for part in ast.walk(node):
        if isinstance(part, ast.alias):
            yield part.asname or part.name.partition(".")[0]
        elif isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
            yield part.id
        elif part is not node and isinstance(part, DEFINES):
            yield part.name


def _divide(program: Program, lab: Lab, statements: list[Statement], sources: dict[str, str]) -> None:
    wanted: set[Statement] = set()
    program.defined = [s.node.name for s in statements if not s.given and isinstance(s.node, DEFINES)]
    homes = program.homes = {f"cell {grade_id}": key for grade_id, key in lab.homes.items()}
    for asked in lab.tasks:
        defining = [s for s in statements if asked.task.name in s.names and not s.given]
        in_its_cell = [s for s in statements if s.answer and homes.get(s.cell) == asked.key]
        if not defining and not in_its_cell:
            program.missing.append(asked.key)
        needed = _closure(statements, {asked.task.name})
        program.needs[asked.key] = [s for s in statements if s in needed]
        homes |= {s.cell: asked.key for s in defining if s.cell not in homes}
        wanted |= needed
    for statement in statements:  # what else stands in a cell to write in is run as well, for its task
        if statement.answer and statement not in wanted:
            also = _closure(statements, set(statement.uses)) | {statement}
            wanted |= also
            if key := homes.get(statement.cell):
                program.needs[key] += [s for s in also if s not in program.needs[key]]
    _take_neighbours(program, statements, wanted)
    for name, source in sources.items():
        mine = [s for s in statements if s.cell == name and s in wanted]
        if mine:
            lines = tuple(s.line for s in mine)
            program.cells.append(Cell(name=name, source=source, lines=lines, given=mine[0].given))


def _take_neighbours(program: Program, statements: list[Statement], wanted: set[Statement]) -> None:
    """A cell is run by lines: what stands on the line of a wanted statement runs with it, and is read with it."""
    lines = {(one.cell, one.line): one for one in wanted}
    for statement in statements:
        first = lines.get((statement.cell, statement.line))
        if first is not None and statement not in wanted:
            wanted.add(statement)
            for needed in program.needs.values():
                if first in needed:
                    needed.append(statement)


def _closure(statements: list[Statement], names: set[str]) -> set[Statement]:
    """The statements that give a meaning to `names`, to the names that these use, and so on."""
    found: set[Statement] = set()
    waiting, known = set(names), set()
    while waiting:
        name = waiting.pop()
        known.add(name)
        for statement in statements:
            if (
                name in statement.names
                and statement not in found
                and isinstance(statement.node, (*BINDS, ast.If, ast.Try))
            ):
                found.add(statement)
                waiting |= statement.uses - known
    return found


def without_magics(source: str) -> str:
    """The source without what only a notebook understands: %magic, %%magic, !command, help?"""
    lines = source.split("\n")
    first = next((line for line in lines if line.strip()), "")
    if first.startswith("%%"):
        keeps = re.match(r"%%(time|timeit|capture)\b", first) is not None
        lines = ["" if line is first else line for line in lines] if keeps else [""] * len(lines)
    magic = re.compile(r"^(\s*)(%|!|\?).*$|^(\s*)[\w.]+\?{1,2}\s*$")
    try:
        parse("\n".join(lines))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        lines = [magic.sub(lambda match: (match[1] or match[3] or "") + "pass", line) for line in lines]
    return "\n".join(lines)
