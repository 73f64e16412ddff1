"""Parses a submitted notebook into statements, finds those that each task needs, and what their names stand for.

Nothing is run here. `program_of` gives the cells that the sandbox will run, and of each cell the lines of the
statements that count. The functions below it resolve names for scan.py, as far as the text tells: which module or
object a name was imported from.

A lab is a notebook that nbgrader released. Each of its cells has a `grade_id` in its metadata. Locked cells (set-up and
checks) must not be changed, and learners write into answer cells. They may also add cells of their own.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from helpers.classroom.labs import LabNotebook, is_locked, is_plain_check, parse
from helpers.grading.lab_notebooks import marks_of, source_of
from helpers.grading.registry import lab_of

DEFINES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)  # statements that define one name, `node.name`
BINDS = (*DEFINES, ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign)  # simple statements that bind names


@dataclass(frozen=True, kw_only=True, eq=False)  # eq=False: two equal statements of a notebook are two statements
class Statement:
    """One statement at the top level of a cell.

    cell: the name of its cell, as in `Cell`. names: those that it binds. uses: those that it mentions.
    is_from_lab: it comes from the lab's own set-up cell, not from the submission.
    is_in_answer_cell: it stands in a cell in which learners write an answer.
    """

    cell: str
    node: ast.stmt
    names: frozenset[str]
    uses: frozenset[str]
    is_from_lab: bool
    is_in_answer_cell: bool

    @property
    def line(self) -> int:
        """The line of its cell, from 1."""
        return self.node.lineno


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A cell as the sandbox runs it: those statements of its source that start at `lines`.

    name: "lab GRADE_ID" for a cell of the lab, "cell GRADE_ID" for an answer cell, "cell 7" for another cell.
    """

    name: str
    source: str
    lines: tuple[int, ...]
    is_from_lab: bool


@dataclass(kw_only=True)
class Program:
    """A notebook, sorted by task.

    cells: to be run, in order.
    needed_statements: key of a task, such as "03.average", to the statements that it needs.
    missing_tasks: keys of tasks that the notebook does not define.
    problems: sentences about cells that could not be parsed.
    changed_checks: key of a task to the grade_id of the cell that checks it, if the learner changed that cell.
    answers: grade_id of a question to the answer in words.
    task_of_cell: name of a cell to the key of its task. defined_names: the learner's functions and classes.
    """

    cells: list[Cell] = field(default_factory=list)
    needed_statements: dict[str, list[Statement]] = field(default_factory=dict)
    missing_tasks: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    changed_checks: dict[str, str] = field(default_factory=dict)
    answers: dict[str, str] = field(default_factory=dict)
    task_of_cell: dict[str, str] = field(default_factory=dict)
    defined_names: list[str] = field(default_factory=list)

    def tasks_of(self, cell: str) -> list[str]:
        """The key of the task that a cell belongs to; for a cell of the learner's own, of every task that needs it."""
        if cell in self.task_of_cell:
            return [self.task_of_cell[cell]]
        return [key for key, needed in self.needed_statements.items() if any(one.cell == cell for one in needed)]


def program_of(cells: Sequence[dict], lab: LabNotebook) -> Program:
    """Parse the cells of a submission to `lab`.

    Of the locked cells, the lab's own version is used: what a submission has in their place is not run.
    """
    program, sources = Program(), {}  # sources: name of a cell to its source
    statements = list(_lab_statements(lab, sources))
    for number, cell in enumerate(cells, 1):
        marks = marks_of(cell)  # nbgrader's metadata of the cell: grade_id, grade, locked, solution, points
        grade_id = marks.get("grade_id", "")
        if cell["cell_type"] != "code":
            if grade_id in {question.grade_id for question in lab.questions}:
                program.answers[grade_id] = source_of(cell)
        elif grade_id in lab.locked or is_locked(marks):
            _note_changed_check(program, lab, grade_id, source_of(cell))
        else:
            name = f"cell {grade_id}" if grade_id in lab.answer_cells else f"cell {number}"
            name += f" ({number})" if name in sources else ""  # a copied cell has the grade_id of the first one
            source = sources[name] = without_magics(source_of(cell))
            statements += _parsed_statements(program, name, source, grade_id in lab.answer_cells)
    _assign_to_tasks(program, lab, statements, sources)
    return program


def _lab_statements(lab: LabNotebook, sources: dict[str, str]) -> Iterator[Statement]:
    """The statements of the lab's set-up cells that bind names, except variables, which its pictures use.

    Adds the text of each cell to `sources`.
    """
    for grade_id, source in lab.setup_cells:
        name = f"lab {grade_id}"
        sources[name] = source
        for node in parse(source).body:
            if isinstance(node, BINDS) and not _is_for_a_picture(node):
                yield _statement(name, node, is_from_lab=True, is_in_answer_cell=False)


def _is_for_a_picture(node: ast.stmt) -> bool:
    """Whether a statement of the lab sets variables. By convention they are for pictures unless they are CONSTANTS."""
    return isinstance(node, ast.Assign | ast.AnnAssign) and not all(name.isupper() for name in _bound_names(node))


def _note_changed_check(program: Program, lab: LabNotebook, grade_id: str, source: str) -> None:
    """Note the task of a locked check that the learner changed, unless only white space or a plain `check(…)` did."""
    original = lab.locked.get(grade_id)
    if original is None or source.split() == original.split() or is_plain_check(source):
        return
    for lab_task in lab.tasks:
        if lab_task.check == grade_id:
            program.changed_checks[lab_task.key] = grade_id


def _parsed_statements(program: Program, name: str, source: str, is_in_answer_cell: bool) -> Iterator[Statement]:
    try:
        body = parse(source).body
    except SyntaxError as error:
        program.problems.append(f"{name}, line {error.lineno}: a syntax error ({error.msg}), so the cell was left out.")
        return
    except (ValueError, RecursionError, MemoryError) as error:
        program.problems.append(f"{name}: it cannot be parsed ({type(error).__name__}), so the cell was left out.")
        return
    for node in body:
        yield _statement(name, node, is_from_lab=False, is_in_answer_cell=is_in_answer_cell)


def _statement(cell: str, node: ast.stmt, *, is_from_lab: bool, is_in_answer_cell: bool) -> Statement:
    return Statement(
        cell=cell,
        node=node,
        names=frozenset(_bound_names(node)),
        uses=frozenset(part.id for part in ast.walk(node) if isinstance(part, ast.Name)),
        is_from_lab=is_from_lab,
        is_in_answer_cell=is_in_answer_cell,
    )


def _bound_names(node: ast.stmt) -> Iterator[str]:
    """The names that a statement binds at the top level of the notebook."""
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


def _assign_to_tasks(program: Program, lab: LabNotebook, statements: list[Statement], sources: dict[str, str]) -> None:
    """Find the statements that each task needs, and from them the cells to run. Fills the fields of `program`.

    to_run: all statements that some task needs, and everything else in an answer cell.
    """
    to_run: set[Statement] = set()
    by_learner = [one for one in statements if not one.is_from_lab]
    program.defined_names = [one.node.name for one in by_learner if isinstance(one.node, DEFINES)]
    tasks = program.task_of_cell = {f"cell {grade_id}": key for grade_id, key in lab.task_of_cell.items()}
    for lab_task in lab.tasks:
        defining = [one for one in by_learner if lab_task.task.name in one.names]
        in_its_cell = [one for one in statements if one.is_in_answer_cell and tasks.get(one.cell) == lab_task.key]
        if not defining and not in_its_cell:
            program.missing_tasks.append(lab_task.key)
        needed = _with_dependencies(statements, {lab_task.task.name})
        program.needed_statements[lab_task.key] = [one for one in statements if one in needed]
        tasks |= {one.cell: lab_task.key for one in defining if one.cell not in tasks}
        to_run |= needed
    for statement in statements:
        if statement.is_in_answer_cell and statement not in to_run:
            more = _with_dependencies(statements, set(statement.uses)) | {statement}
            to_run |= more
            if key := tasks.get(statement.cell):
                needed = program.needed_statements[key]
                needed += [one for one in more if one not in needed]
    _add_statements_on_same_lines(program, statements, to_run)
    for name, source in sources.items():
        of_cell = [one for one in statements if one.cell == name and one in to_run]
        if of_cell:
            lines = tuple(one.line for one in of_cell)
            program.cells.append(Cell(name=name, source=source, lines=lines, is_from_lab=of_cell[0].is_from_lab))


def _add_statements_on_same_lines(program: Program, statements: list[Statement], to_run: set[Statement]) -> None:
    """Add statements that stand on the same line as one to run, as in `a = 1; b = 2`.

    The sandbox chooses statements by their lines, so it would run these too, and scan.py must read what is run.
    """
    by_line = {(one.cell, one.line): one for one in to_run}
    for statement in statements:
        neighbour = by_line.get((statement.cell, statement.line))
        if neighbour is not None and statement not in to_run:
            to_run.add(statement)
            for needed in program.needed_statements.values():
                if neighbour in needed:
                    needed.append(statement)


def _with_dependencies(statements: list[Statement], names: set[str]) -> set[Statement]:
    """The statements that bind `names`, those that bind the names that these use, and so on.

    Loops, `with` blocks and calls do not count as definitions, even where they bind a name.
    """
    found: set[Statement] = set()
    binding = [one for one in statements if isinstance(one.node, (*BINDS, ast.If, ast.Try))]
    waiting, known = set(names), set()
    while waiting:
        name = waiting.pop()
        known.add(name)
        for statement in binding:
            if name in statement.names and statement not in found:
                found.add(statement)
                waiting |= statement.uses - known
    return found


def without_magics(source: str) -> str:
    """The source without what only a notebook understands: %magic, %%magic, !command, help?.

    Such a line becomes empty or `pass`, so that all lines keep their numbers.
    """
    lines = source.split("\n")
    first = next((line for line in lines if line.strip()), "")
    if first.startswith("%%"):  # a magic for the whole cell: the cell is Python only below some of them
        runs_cell = re.match(r"%%(time|timeit|capture)\b", first) is not None
        lines = ["" if line is first else line for line in lines] if runs_cell else [""] * len(lines)
    magic = re.compile(r"^(\s*)(%|!|\?).*$|^(\s*)[\w.]+\?{1,2}\s*$")  # the groups 1 and 3 are the indentation
    # Only a cell that is no Python as it stands is changed, because a line that begins with % may also continue an
    # expression of the line above it.
    try:
        parse("\n".join(lines))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        lines = [magic.sub(lambda match: (match[1] or match[3] or "") + "pass", line) for line in lines]
    return "\n".join(lines)


@dataclass(frozen=True, kw_only=True)
class NotebookNames:
    """What the names of an answer stand for, as far as its text tells.

    aliases: what each imported name stands for, such as "dist" -> "torch.distributed". lab: its number, "03".
    own_attributes: attributes that the answer defines itself.
    imported_by_lab: the dotted names that the lab's own cells import.
    is_metered: whether the task counts the bytes that an answer holds. Then scan.py flags names that hide memory.
    """

    aliases: Mapping[str, str]
    lab: str
    own_attributes: Container[str] = ()
    imported_by_lab: Container[str] = ()
    is_metered: bool = False

    @functools.cached_property
    def forbidden_leaves(self) -> set[str]:
        """The last parts of the names that the lab forbids, such as "DistributedSampler".

        Plain words such as "parallel" are left out, because they stand in many harmless texts.
        """
        leaves = {name.rpartition(".")[2] for name in lab_of(self.lab).forbids}
        return {leaf for leaf in leaves if leaf != leaf.lower() or "_" in leaf.strip("_")}


def import_aliases(nodes: Iterable[ast.AST]) -> dict[str, str]:
    """What each imported name stands for, such as {"dist": "torch.distributed"}, and names that are assigned from one.

    After `send = dist.send`, "send" stands for "torch.distributed.send".
    """
    found: dict[str, str] = {}
    assigned: list[tuple[str, ast.AST]] = []  # a variable and the expression that it was set to
    for node in (part for one in nodes for part in ast.walk(one)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]  # without `as`, `import a.b` binds only `a`
                found[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Assign | ast.NamedExpr | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            assigned += [(t.id, node.value) for t in targets if isinstance(t, ast.Name)]
    for _ in range(2):  # an alias of an alias needs a second round
        for name, value in assigned:
            if isinstance(value, ast.Attribute | ast.Name) and (dotted := dotted_name(value, found)):
                found.setdefault(name, dotted)
    return found


def dotted_name(node: ast.AST, aliases: Mapping[str, str]) -> str:
    """The full name of an expression, "torch.distributed.send" for `dist.send`; "" if it was not imported."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id not in aliases:
        return ""
    return ".".join([aliases[node.id], *reversed(parts)])


def defined_attributes(nodes: Iterable[ast.AST]) -> frozenset[str]:
    """The attributes that the notebook sets or defines itself: `self.inner = …`, a method, a field."""
    found: set[str] = set()
    for node in (part for one in nodes for part in ast.walk(one)):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
        elif isinstance(node, ast.ClassDef):
            found |= {part.name for part in node.body if isinstance(part, ast.FunctionDef)}
            found |= {part.id for one in node.body for part in ast.walk(one) if isinstance(part, ast.Name)}  # fields
    return frozenset(found)


# -- names -------------------------------------------------------------------------------------------------------------
# Nodes that have local names. A class is none of them: its names are attributes.
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def local_names(scope: ast.AST, aliases: Mapping[str, str]) -> set[str]:
    """The names that a function, a lambda or a comprehension binds itself, without aliases of imported objects.

    `send = dist.send` in a function makes such an alias.
    """
    bound, aliased, outer = set(), set(), set()  # outer: declared global or nonlocal
    for node in _nodes_in_scope(scope):
        if isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            bound.add(node.id)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            bound.add(node.name)
        elif isinstance(node, ast.Global | ast.Nonlocal):
            outer |= set(node.names)
        if isinstance(node, ast.Assign) and dotted_name(node.value, aliases):
            aliased |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return bound - aliased - outer


def _nodes_in_scope(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a scope without those of the scopes inside it, which only add their names."""
    if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        yield from (part for part in ast.walk(scope.args) if isinstance(part, ast.arg))
        waiting = list(scope.body) if isinstance(scope.body, list) else [scope.body]  # a lambda's body is one node
    else:  # a comprehension binds the targets of its `for`
        waiting = [one.target for one in scope.generators]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, DEFINES):
            yield ast.Name(id=node.name, ctx=ast.Store())
        elif not isinstance(node, SCOPES):
            waiting += ast.iter_child_nodes(node)


def outer_parts(scope: ast.AST) -> list[ast.AST]:
    """The parts of a scope that are evaluated outside it: defaults, decorators, the iterable of a comprehension."""
    if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef):
        return [*scope.decorator_list, *_defaults(scope.args)]
    return _defaults(scope.args) if isinstance(scope, ast.Lambda) else [scope.generators[0].iter]


def _defaults(args: ast.arguments) -> list[ast.AST]:
    return [one for one in [*args.defaults, *args.kw_defaults] if one is not None]


def constant_text(node: ast.AST) -> str | None:
    """The text of an expression of constants, such as "a" + "b" or "".join(["a", "b"]); None for anything else.

    scan.py looks for forbidden names with it, which such an expression may hide.
    """
    match node:
        case ast.Constant(value=str() as text):
            return text
        case ast.BinOp(op=ast.Mult(), left=ast.Constant(value=str() as text), right=ast.Constant(value=int() as times)):
            return text * min(times, 20)  # enough for a name, while "a" * 10**9 would fill the memory
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            parts = constant_text(left), constant_text(right)
            return None if None in parts else "".join(parts)
        case ast.Call(func=ast.Attribute(attr="join", value=separator), args=[ast.List() | ast.Tuple() as items]):
            texts = [constant_text(separator), *map(constant_text, items.elts)]
            return None if None in texts else texts[0].join(texts[1:])
    return None
