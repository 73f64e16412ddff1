"""The cell magic %%ranks, and the sentences for what people mix up between the notebook and its ranks."""

from __future__ import annotations

import sys

import psutil
import pytest

from helpers.learner.words import Words
from helpers.ranks.board.errors import RankError
from helpers.ranks.magic import _parse, explain_missing_group, until_our_frames, with_advice, without_our_frames
from helpers.ranks.processes import limits
from tests.ranks.kernel import Kernel


def test_the_line_of_the_magic():
    assert vars(_parse("")) == {"ranks": None, "timeout": None}
    assert vars(_parse("0,2 --timeout 60  # a comment")) == {"ranks": [0, 2], "timeout": 60.0}


@pytest.mark.parametrize("line", ["0-2", "0 1", "--time 3"])
def test_a_wrong_line(line):
    with pytest.raises(ValueError, match="write it as %%ranks"):
        _parse(line)


def frames(trace):
    while trace is not None:
        yield trace.tb_frame.f_code.co_name
        trace = trace.tb_next


def test_our_frames_are_left_out():
    try:
        limits.check_num_ranks(0)
    except ValueError:
        assert list(frames(without_our_frames(sys.exc_info()[2]))) == ["test_our_frames_are_left_out"]


def test_the_learners_own_error_is_shown_whole():
    def inner():
        raise ValueError

    try:
        inner()
    except ValueError:
        shown = list(frames(without_our_frames(sys.exc_info()[2])))
    assert shown == ["test_the_learners_own_error_is_shown_whole", "inner"]


def test_an_interrupt_of_this_package_shows_the_learners_line(monkeypatch):
    """It comes in a library that this package has called; the learner's own call of the library is shown whole."""
    names = {}
    exec(compile("def busy(): raise KeyboardInterrupt", psutil.__file__, "exec"), names)
    monkeypatch.setattr(limits.psutil, "virtual_memory", names["busy"])
    for call, below in ((limits.available_memory, []), (names["busy"], ["busy"])):
        with pytest.raises(KeyboardInterrupt) as caught:
            call()
        shown = list(frames(until_our_frames(caught.value.__traceback__)))
        assert shown == ["test_an_interrupt_of_this_package_shows_the_learners_line", *below]


@pytest.fixture(scope="module")
def bare_kernel():
    kernel = Kernel()
    yield kernel
    kernel.close()


def test_before_the_import_ranks_says_what_to_run(bare_kernel):
    reply = bare_kernel.run("%%ranks\nrank")
    assert reply.text.startswith(
        "UsageError: %%ranks is not known yet. First run the cell with `from helpers.ranks import Ranks`"
    )


def test_after_it_a_cell_runs_and_a_name_of_the_notebook_is_told(bare_kernel):
    setup = "from helpers.ranks import Ranks\nimport torch, torch.distributed as dist\nlr = 0.1\n"
    assert bare_kernel.run(setup + "ranks = Ranks(2, device='cpu', quiet=True)").error is None
    reply = bare_kernel.run("%%ranks\nprint(lr)")
    assert "raised NameError: name 'lr' is not defined" in reply.shown
    assert "`lr` exists only in the notebook" in reply.shown and "ranks.run(f, lr)" in reply.shown
    reply = bare_kernel.run("%%ranks\nprint(lrr)")
    assert "'lrr' is not defined" in reply.shown and "lives in the notebook" not in reply.shown
    assert bare_kernel.run("%%ranks\nlr = 0.2\nlr").text == "ranks 0, 1 │ 0.2\n"


def test_a_collective_beside_the_ranks_is_one_sentence(bare_kernel):
    reply = bare_kernel.run("dist.all_reduce(torch.ones(1))")
    first, second = reply.shown.splitlines()
    assert reply.error == "ValueError" and first == "There is no process group here: the notebook is no rank."
    assert "%%ranks" in second and "ranks.run(f)" in second
    assert "line 1" not in reply.shown and "Traceback" in bare_kernel.run("int('x')").shown


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
