"""Parses a submitted notebook into statements, finds those that each task needs, and what their names stand for.

Nothing is run here. `program_of` gives the cells that the sandbox will run, and of each cell the lines of the
statements that count. The functions below it resolve names for scan.py, as far as the text tells: which module or
object a name was imported from.

A lab is a notebook that nbgrader released. Each of its cells has a `grade_id` in its metadata. Locked cells (set-up and
checks) must not be changed, and learners write into answer cells. They may also add cells of their own.
"""

from __future__ import annotations

import ast
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from helpers.classroom.cell_source import CellParser, SourceRefused
from helpers.classroom.labs import LabNotebook, is_locked, is_plain_check, parse
from helpers.grading.lab_notebooks import marks_of, source_of

MAX_DOTTED = 300  # characters of a dotted name; in a long chain of aliases each one would be longer than the one before
MAX_BUILT = 20_000  # characters of a text that is joined from constants
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
    task_of_cell: name of a cell to the key of its task. number_of_cell: name of a learner's cell to its place, from 1.
    defined_names: the learner's functions and classes.
    """

    cells: list[Cell] = field(default_factory=list)
    needed_statements: dict[str, list[Statement]] = field(default_factory=dict)
    missing_tasks: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    changed_checks: dict[str, str] = field(default_factory=dict)
    answers: dict[str, str] = field(default_factory=dict)
    task_of_cell: dict[str, str] = field(default_factory=dict)
    number_of_cell: dict[str, int] = field(default_factory=dict)
    defined_names: list[str] = field(default_factory=list)


def program_of(cells: Sequence[dict], lab: LabNotebook) -> Program:
    """Parse the cells of a submission to `lab`, as `cells_of` (submissions.py) gives them.

    Of the locked cells, the lab's own version is used: what a submission has in their place is not run.
    """
    program, parser = Program(), CellParser()
    sources: dict[str, str] = {}  # name of a cell to its source
    statements = list(_lab_statements(lab, sources))
    questions = {question.grade_id for question in lab.questions}
    for number, cell in enumerate(cells, 1):
        marks = marks_of(cell)  # nbgrader's metadata of the cell: grade_id, grade, locked, solution, points
        grade_id = marks.get("grade_id", "")
        if cell["cell_type"] != "code":
            if grade_id in questions:
                program.answers[grade_id] = source_of(cell)
            elif grade_id in lab.answer_cells:
                kind = f"its type is {cell['cell_type']}, not code"
                program.problems.append(f"cell {grade_id} (number {number}): {kind}, so its answer was not read.")
        elif grade_id in lab.locked:
            _note_changed_check(program, lab, grade_id, source_of(cell))
        elif is_locked(marks):
            program.problems.append(f"cell {number}: it is locked, but no cell of the lab, so it was left out.")
        else:
            name = f"cell {grade_id}" if grade_id in lab.answer_cells else f"cell {number}"
            name += f" ({number})" if name in sources else ""  # a copied cell has the grade_id of the first one
            program.number_of_cell[name] = number
            tree = _parsed_cell(program, parser, sources, name, source_of(cell))
            statements += [
                _statement(name, node, is_from_lab=False, is_in_answer_cell=grade_id in lab.answer_cells)
                for node in tree.body
            ]
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


def _parsed_cell(program: Program, parser: CellParser, sources: dict[str, str], name: str, source: str) -> ast.Module:
    """The syntax tree of a cell, empty for a cell that is left out, with a problem that says why.

    Adds the source without magics to `sources`.
    """
    sources[name] = ""
    try:
        sources[name], tree = parser.parse(source)
        return tree
    except SyntaxError as error:
        place = name if error.lineno is None else f"{name}, line {error.lineno}"
        program.problems.append(f"{place}: a syntax error ({error.msg}), so the cell was left out.")
    except SourceRefused as error:
        program.problems.append(f"{name}: {error}, so the cell was left out.")
    return ast.Module(body=[], type_ignores=[])


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

    Needed are the statements that define the task, everything else in its answer cell, and what these use. Everything
    in other answer cells is run, too, with what it uses. Each step looks at every statement once per task.
    """
    by_learner = [one for one in statements if not one.is_from_lab]
    program.defined_names = [one.node.name for one in by_learner if isinstance(one.node, DEFINES)]
    tasks = program.task_of_cell = {f"cell {grade_id}": key for grade_id, key in lab.task_of_cell.items()}
    binding = _statements_by_name(statements)
    needed: dict[str, set[Statement]] = {}  # key of a task to the statements that it needs
    for lab_task in lab.tasks:
        defining = [one for one in by_learner if lab_task.task.name in one.names]
        in_its_cell = [one for one in statements if one.is_in_answer_cell and tasks.get(one.cell) == lab_task.key]
        if not defining and not in_its_cell:
            program.missing_tasks.append(lab_task.key)
        needed[lab_task.key] = _with_dependencies(binding, {lab_task.task.name})
        tasks |= {one.cell: lab_task.key for one in defining if one.cell not in tasks}
    to_run = set().union(*needed.values())
    rest: dict[str, set[Statement]] = {}  # key of a task, or "", to what else stands in its answer cells
    for one in statements:
        if one.is_in_answer_cell and one not in to_run:
            rest.setdefault(tasks.get(one.cell, ""), set()).add(one)
    for key, others in rest.items():
        more = others | _with_dependencies(binding, set().union(*(one.uses for one in others)))
        to_run |= more
        needed.get(key, set()).update(more)
    program.needed_statements = {key: _with_same_lines(statements, chosen) for key, chosen in needed.items()}
    program.cells = _cells_to_run(_with_same_lines(statements, to_run), sources)


def _cells_to_run(to_run: list[Statement], sources: dict[str, str]) -> list[Cell]:
    """The cells with these statements, in the order of the notebook. sources: name of a cell to its source."""
    of_cell: dict[str, list[Statement]] = {name: [] for name in sources}
    for one in to_run:
        of_cell[one.cell].append(one)
    return [
        Cell(name=name, source=source, lines=tuple(one.line for one in chosen), is_from_lab=chosen[0].is_from_lab)
        for name, source in sources.items()
        if (chosen := of_cell[name])
    ]


def _with_same_lines(statements: list[Statement], chosen: set[Statement]) -> list[Statement]:
    """The chosen statements and those that begin on a line with one of them, as in `a = 1; b = 2`, in their order.

    The sandbox chooses statements by their lines, so it would run these too, and scan.py must read what is run.
    """
    lines = {(one.cell, one.line) for one in chosen}
    return [one for one in statements if (one.cell, one.line) in lines]


def _statements_by_name(statements: list[Statement]) -> dict[str, list[Statement]]:
    """A name to the statements that bind it.

    Loops, `with` blocks and calls do not count as definitions, even where they bind a name.
    """
    found: dict[str, list[Statement]] = {}
    for one in statements:
        if isinstance(one.node, (*BINDS, ast.If, ast.Try)):
            for name in one.names:
                found.setdefault(name, []).append(one)
    return found


def _with_dependencies(binding: Mapping[str, list[Statement]], names: set[str]) -> set[Statement]:
    """The statements that bind `names`, those that bind the names that these use, and so on.

    binding: from `_statements_by_name`. Each name and each statement is looked at once.
    """
    found: set[Statement] = set()
    waiting, known = list(names), set(names)
    while waiting:
        for statement in binding.get(waiting.pop(), ()):
            if statement not in found:
                found.add(statement)
                new = statement.uses - known
                known |= new
                waiting += new
    return found


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
    return ".".join([aliases[node.id], *reversed(parts)])[:MAX_DOTTED]


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
    """The nodes of a scope without the nodes of the scopes inside it, which only add their names."""
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


def constant_text(node: ast.AST, known: dict[ast.AST, str | None] | None = None) -> str | None:
    """The text of an expression of constants, such as "a" + "b" or "".join(["a", "b"]); None for anything else.

    scan.py looks for forbidden names with it, which such an expression may hide. A text that is built from parts and
    longer than MAX_BUILT is none, so that the parts are read. known: the texts of nodes that were asked for before,
    without which the parts of an expression would be read once more for each expression around them.
    """
    known = {} if known is None else known
    if node not in known:
        parts = _constant_parts(node, known)
        is_built = parts is not None and not isinstance(node, ast.Constant)
        is_long = is_built and len(parts[0]) * max(0, len(parts) - 2) + sum(map(len, parts)) > MAX_BUILT
        known[node] = None if parts is None or is_long else parts[0].join(parts[1:])
    return known[node]


def _constant_parts(node: ast.AST, known: dict[ast.AST, str | None]) -> list[str] | None:
    """The separator and the parts that `constant_text` joins; None if one of them is no constant text."""
    match node:
        case ast.Constant(value=str() as text):
            return ["", text]
        case ast.BinOp(op=ast.Mult(), left=ast.Constant(value=str() as text), right=ast.Constant(value=int() as times)):
            return ["", *[text] * min(times, 20)]  # enough for a name, while "a" * 10**9 would fill the memory
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            texts = ["", constant_text(left, known), constant_text(right, known)]
        case ast.Call(func=ast.Attribute(attr="join", value=separator), args=[ast.List() | ast.Tuple() as items]):
            texts = [constant_text(separator, known), *(constant_text(one, known) for one in items.elts)]
        case _:
            return None
    return None if None in texts else texts
