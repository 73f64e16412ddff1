"""The limits of a cell: honest notebooks are far below them, and what is beyond them is refused with its reason."""

from __future__ import annotations

import ast

import pytest

from helpers.classroom import cell_source, labs, similarity
from helpers.classroom.cell_source import CellParser, SourceRefused
from helpers.classroom.program import program_of
from helpers.grading.lab_notebooks import source_of
from tests.classroom import notebooks


@pytest.mark.parametrize("name", labs.lab_names())
def test_a_solution_has_a_tenth_of_every_limit_at_most(name, monkeypatch):
    cells = notebooks.lab(name, folder="solutions")["cells"]
    parser, sources = CellParser(), [source_of(cell) for cell in cells if cell["cell_type"] == "code"]
    monkeypatch.setattr(cell_source, "MAX_NESTING", cell_source.MAX_NESTING // 2)
    for source in sources:
        parser.parse(source)
        assert len(source) < cell_source.MAX_CELL_CHARACTERS / 10
    assert parser.characters < cell_source.MAX_CHARACTERS / 10
    assert parser.statements < cell_source.MAX_STATEMENTS / 10 and parser.nodes < cell_source.MAX_NODES / 10
    program = program_of(cells, labs.load_lab(name))
    for key in program.needed_statements:
        nodes = [one.node for one in similarity.learner_statements(program, key)]
        assert sum(1 for node in nodes for _ in ast.walk(node)) < similarity.MAX_ANSWER_NODES / 10


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("x" * 100_001, "it has 100,001 characters, more than 100,000"),
        ("x\n" * 5_001, "with it the notebook has more than 5,000 statements"),
        ("x = [" + "1," * 49_996 + "]", "more than 50,000 names, numbers and operations"),
        ("y = 1\nx = " + "not " * 101 + "1", "its line 2 is nested more than 100 deep"),
        ("x = " + "-" * 50_000 + "1", "nested too deeply to be parsed"),
        ("x = '\ud800'", "half of a surrogate pair"),
    ],
)
def test_a_cell_beyond_a_limit_is_refused_and_takes_nothing_from_the_others(source, reason):
    parser = CellParser()
    with pytest.raises(SourceRefused, match=reason):
        parser.parse(source)
    assert (parser.statements, parser.nodes) == (0, 0)
    assert parser.parse("x\n" * 5_000)[0] == "x\n" * 5_000


def test_the_cells_of_a_notebook_share_the_limits():
    parser = CellParser()
    parser.parse("x\n" * 3_000)
    with pytest.raises(SourceRefused, match="5,000 statements"):
        parser.parse("x\n" * 3_000)
    parser.parse("x\n" * 2_000)
    parser = CellParser()
    for _ in range(4):
        parser.parse("'" + "x" * 99_990 + "'")
    with pytest.raises(SourceRefused, match="400,000 characters"):
        parser.parse("'" + "x" * 99_990 + "'")
