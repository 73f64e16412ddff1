"""What people mix up in a notebook gets a sentence: its own names, a collective beside the ranks, %%ranks too early."""

from __future__ import annotations

import pytest

from helpers.learner.words import Words
from helpers.ranks.errors import RankError
from helpers.ranks.magic import explain_missing_group, with_advice
from tests.ranks.kernel import Kernel


@pytest.fixture(scope="module")
def kernel():
    kernel = Kernel()
    yield kernel
    kernel.close()


def test_before_the_import_ranks_says_what_to_run(kernel):
    reply = kernel.run("%%ranks\nrank")
    assert reply.text.startswith(
        "UsageError: %%ranks is not known yet. First run the cell with `from helpers.ranks import Ranks`"
    )


def test_after_it_a_cell_runs_and_a_name_of_the_notebook_is_told(kernel):
    setup = "from helpers.ranks import Ranks\nimport torch, torch.distributed as dist\nlr = 0.1\n"
    assert kernel.run(setup + "ranks = Ranks(2, device='cpu', quiet=True)").error is None
    reply = kernel.run("%%ranks\nprint(lr)")
    assert "raised NameError: name 'lr' is not defined" in reply.shown
    assert "`lr` lives in the notebook" in reply.shown and "ranks.run(f, lr)" in reply.shown
    reply = kernel.run("%%ranks\nprint(lrr)")
    assert "'lrr' is not defined" in reply.shown and "lives in the notebook" not in reply.shown
    assert kernel.run("%%ranks\nlr = 0.2\nlr").text == "ranks 0, 1 │ 0.2\n"


def test_a_collective_beside_the_ranks_is_one_sentence(kernel):
    reply = kernel.run("dist.all_reduce(torch.ones(1))")
    first, second = reply.shown.splitlines()
    assert reply.error == "ValueError" and first == "There is no process group here: the notebook is no rank."
    assert "%%ranks" in second and "ranks.run(f)" in second
    assert "line 1" not in reply.shown and "Traceback" in kernel.run("int('x')").shown


def test_only_what_the_notebook_knows_gets_the_sentence():
    error = RankError(Words.of("rank 1 raised NameError: name 'lr' is not defined"), rank=1, tracebacks={1: "…"})
    assert with_advice(error, {"x"}) is error
    told = with_advice(error, {"lr"})
    assert (told.kind, told.rank, told.tracebacks) == (error.kind, 1, error.tracebacks)
    assert "只在 notebook 里" in told.words.zh and told.words.en.startswith(error.words.en)


def test_another_value_error_is_shown_whole():
    error = ValueError("something else")
    explain_missing_group(error)
    assert not hasattr(error, "_render_traceback_")
