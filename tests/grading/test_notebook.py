"""A check in a real kernel: the learner's ranks and variables stay theirs, and a failure is the verdict alone."""

from __future__ import annotations

import pytest

from helpers.grading.check import LINE_WIDTH
from tests.ranks.kernel import Kernel

SETUP = """
import torch.distributed as dist
from helpers.grading import check
from helpers.ranks import Ranks
ranks = Ranks(2, device="cpu", quiet=True)
def average_gradients(model):
    for parameter in filter(lambda p: p.grad is not None, model.parameters()):
        dist.all_reduce(parameter.grad)
"""


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    """A kernel whose home is a folder of this test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        kernel = Kernel()
    try:
        reply = kernel.run(SETUP)
        assert reply.error is None, reply.shown
        yield kernel
    finally:
        kernel.close()


def test_a_failure_shows_the_verdict_alone(kernel):
    reply = kernel.run('check("03.average", average_gradients)')
    assert reply.error == "NotYet"
    lines = reply.shown.splitlines()
    assert lines[0] == "03.average  not yet"
    assert all(line.startswith("  ") and len(line) <= LINE_WIDTH for line in lines[1:])  # folded, and no traceback
    said = " ".join(line.strip() for line in lines)
    assert "passed: 1 rank; failed: 2, 3, 4 and 5 ranks" in said and "the same inputs again: seed=" in said
    assert not reply.text or reply.text.startswith("checking 03.average · ")  # the line of a check that takes long
    assert "Warning" not in reply.text


def test_a_pass_is_shown_and_variables_are_kept(kernel):
    kernel.run("%%ranks\nmine = rank + 10")
    fixed = "trained = lambda model: [p for p in model.parameters() if p.requires_grad]\n"
    fixed += "average = lambda model: [dist.all_reduce(p.grad, op=dist.ReduceOp.AVG) for p in trained(model)]"
    reply = kernel.run(f'{fixed}\ncheck("03.average", average)')
    assert reply.error is None, reply.shown
    assert reply.text.splitlines()[-1].startswith("03.average  passed · 1, 2, 3, 4, 5 ranks · ")
    assert kernel.run("%%ranks\nmine").text == "rank 0 │ 10\nrank 1 │ 11\n"


def test_an_error_names_the_learners_line(kernel):
    reply = kernel.run("def wrong(model):\n    return model.nothing\ncheck('03.average', wrong)")
    assert reply.error == "NotYet"
    assert "line 2: `return model.nothing`" in reply.shown
    assert "run_on_ranks.py" not in reply.shown and "helpers/" not in reply.shown


def test_the_attempts_are_in_the_home(kernel):
    kernel.run("from helpers.learner import progress")
    reply = kernel.run("print(progress.read_standings()['03']['03.average'].attempts > 0)")
    assert reply.text.strip() == "True"
