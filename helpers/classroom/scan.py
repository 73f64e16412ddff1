"""Read a submission without running it, and flag for a teacher what honest answers do not do, with the line.

It takes no points. It knows what honest answers use (rules.py), so that a new way to cheat is seen without being known.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from dataclasses import replace

from helpers.classroom.flags import LOOK, Flag
from helpers.classroom.labs import Lab
from helpers.classroom.names import Notebook, aliases_of, own_names
from helpers.classroom.program import Program, Statement
from helpers.classroom.reader import Reader
from helpers.classroom.rules import SAYS
from helpers.grading.kit import meter
from helpers.grading.task import Task


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
    return any(value is meter.MemoryMeter or value is meter for value in vars(home).values()) if home else False


def _is_own_check(statement: Statement) -> bool:
    """It is never called: the grader has its own."""
    node = statement.node
    return isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == "check"
