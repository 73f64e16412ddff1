"""Which answers are listed as similar: copies with other names and another order, and never the one natural form."""

from __future__ import annotations

import ast

import pytest

from helpers.classroom import similarity
from helpers.classroom.program import program_of
from helpers.classroom.results import AnswerPieces, GradedSubmission
from tests.classroom import notebooks
from tests.grading.submissions import HANDED_IN, RIGHT_ANSWERS

OWN = '''
def average_gradients(model):
    """Mine."""
    size = float(dist.get_world_size())
    for parameter in model.parameters():
        flat: torch.Tensor = parameter.grad.reshape(-1).clone()
        pieces = flat.split(7)
        for piece in pieces:
            dist.all_reduce(piece)  # a piece at a time
        flat.mul_(1 / size)
        parameter.grad.copy_(flat.view_as(parameter.grad))
'''
COPY = """
def average_gradients(net):
    # all by myself
    for p in net.parameters():
        vector = p.grad.reshape( -1 ).clone()
        parts = vector.split(7)
        for part in parts: dist.all_reduce(part)
        vector.mul_(1/n)
        p.grad.copy_(vector.view_as(p.grad))
    n = float(dist.get_world_size())
"""


def answer(learner: str, text: str) -> tuple[str, AnswerPieces]:
    pieces = similarity.pieces_of(ast.parse(text).body)
    return learner, AnswerPieces(key="03.average", text=text, pieces=pieces)


def found(*texts: str, usual: str = "") -> list[tuple[tuple[str, str], float]]:
    answers = [answer(f"learner {number}", text) for number, text in enumerate(texts)]
    pairs = similarity.pairs_of_task(answers, similarity.pieces_of(ast.parse(usual).body))
    return [(pair.learners, pair.share) for pair in pairs]


def test_other_names_comments_formatting_and_order_change_nothing():
    assert found(OWN, COPY, notebooks.AVERAGE) == [(("learner 0", "learner 1"), 1.0)]


def test_a_change_of_a_line_is_seen_in_the_share():
    ((_, share),) = found(OWN, COPY.replace("split(7)", "split(8)"))
    assert similarity.MIN_SHARE < share < 1
    assert not found(OWN, COPY.replace("split(7)", "split(8)").replace("mul_(1/n)", "div_(n)"))


def test_the_one_natural_form_is_not_listed():
    assert not found(*[notebooks.AVERAGE] * 2, usual="def f(x): pass"), "three short lines that anybody writes"
    assert not found(OWN, COPY, usual=OWN), "the solution's own form"
    assert not found(*[OWN] * 3, *[notebooks.AVERAGE] * 5), "more than a third of the class wrote it"
    assert len(found(*[OWN] * 2, *[notebooks.AVERAGE] * 6)) == 1


def test_nesting_without_end_is_no_answer():
    deep = ast.parse("x")
    for _ in range(2000):
        deep.body = [ast.If(test=ast.Name(id="x", ctx=ast.Load()), body=deep.body, orelse=[])]
    assert not similarity.pieces_of(deep.body)


@pytest.mark.parametrize("lab", HANDED_IN)
def test_right_answers_in_different_styles_are_not_alike(lab):
    by_task: dict[str, list[tuple[str, AnswerPieces]]] = {}
    for one in RIGHT_ANSWERS:
        if one.task in HANDED_IN[lab]:
            by_task.setdefault(one.task, []).append(answer(one.name, one.text))
    own = notebooks.lab_of(f"{lab[:2]}.")
    for key, answers in by_task.items():
        assert not [pair.learners for pair in similarity.pairs_of_task(answers, similarity.lab_pieces(own)[key])]


def test_notebooks_are_compared_task_by_task(lab_03):
    results, average, other = [], {"03.average": OWN}, {"03.average": COPY, "03.start": "def start_equal(model): pass"}
    for name, answers in (("ada", average), ("bob", other), ("eve", {"03.average": notebooks.AVERAGE})):
        cells = notebooks.handed_in(answers, more=("import os  # more",))["cells"]
        pieces = tuple(similarity.answers_in(program_of(cells, lab_03)))
        results.append(GradedSubmission(learner=name, file="", lab="03_ddp", pieces=pieces))
    results.append(GradedSubmission(learner="text", file="", lab="03_ddp"))
    (pair,) = similarity.similar_pairs(results, [lab_03])
    assert (pair.key, pair.learners, pair.share) == ("03.average", ("ada", "bob"), 1.0)
    assert "# a piece at a time" in pair.texts[0] and pair.texts[1].startswith("def average_gradients(net)")
    assert not similarity.similar_pairs(results, []), "answers to a lab that is not graded now are not compared"
