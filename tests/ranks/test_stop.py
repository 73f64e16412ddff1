"""Stop, in every wait of a notebook: the prompt is free within a second, and a sentence says what became of the run."""

from __future__ import annotations

import time
from dataclasses import dataclass

import pytest

from tests.ranks.kernel import Kernel
from tests.timing import assert_one_of_three_is_within

LIMIT = 1.0  # seconds from the interrupt to a free prompt, on an idle machine
KEPT, LOST = "Your variables are kept", "their variables are lost; the next cell starts new ones"
INTERRUPTED, STARTING = "the run was interrupted", "interrupted while the ranks were starting"
NOT_COUNTED = ("the check was interrupted", "No attempt was counted.")

SETUP = """
import os, sys, time, torch
os.environ["RANKS_HOME"] = {home!r}
from helpers.grading import check, drill, exercise, run_on_ranks
from helpers.ranks import Ranks
from helpers.ranks.processes import pool, process
from helpers.widgets import PipelineExplorer
ranks = Ranks(2, device="cpu", quiet=True)

def endless(model):
    while True:
        pass

def stuck(model):
    import re
    re.match("(a+)+$", "a" * 64 + "b")

def right(model):
    import torch.distributed as dist
    for parameter in filter(lambda p: p.grad is not None, model.parameters()):
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()

def slowly(*_, **__):
    open({began!r}, "w").close()
    time.sleep(1000)

judging = sys.modules["helpers.grading.judging"]
spec, judge_case = pool.Pool._spec, judging.judge_case

def alone(self, rank):  # each rank waits for one more than there will be, so the start does not end
    open({began!r}, "w").close()
    return spec(self, rank) | {{"world_size": self.settings.num_ranks + 1}}
"""
# The file is made once every rank has begun: on a busy machine one rank can be a second later than the other.
ON_RANKS = "%%ranks\nimport re, time; dist.barrier()\nopen({began!r}, 'w').close()\n"
HANGS_AT_START, STARTS = "pool.Pool._spec = alone\n", "pool.Pool._spec = spec\n"
RANKS_WORK, CHECKS_WORK = "ranks.run(lambda: 7)", "check('03.average', right, seed=1).passed"


@dataclass(frozen=True, kw_only=True)
class Wait:
    """A cell that never ends, and what it shows after Stop.

    seconds: between the file that the cell makes and Stop. An answer that is checked may make no file, so there the
    cell makes it before the check. then, gives: a cell that works afterwards, and its end.
    """

    source: str
    says: tuple[str, ...]
    seconds: float = 0.1
    presses: int = 1
    then: str = RANKS_WORK
    gives: str = "[7, 7]"


LOOP = {"source": ON_RANKS + "while True: pass", "says": (INTERRUPTED, "are at cell line 4", KEPT)}
C_CODE = {"source": ON_RANKS + "re.match('(a+)+$', 'a' * 64 + 'b')", "says": (INTERRUPTED, LOST)}
START = {"source": HANGS_AT_START + "Ranks(3, device='cpu')", "says": (STARTING, "run this cell again")}
BEGAN = "open({began!r}, 'w').close()\n"
CHECK = {"says": NOT_COUNTED, "then": CHECKS_WORK, "gives": "True"}
WAITS = {
    "a loop on the ranks": Wait(**LOOP),
    "a loop on the ranks, Stop twice": Wait(**LOOP, presses=2),
    "a collective": Wait(source=ON_RANKS + "if rank == 0: time.sleep(1000)\ndist.barrier()", says=(INTERRUPTED, KEPT)),
    "a function on the ranks": Wait(source="ranks.run(slowly)", says=(INTERRUPTED, KEPT)),
    "C code on the ranks": Wait(**C_CODE),
    "C code on the ranks, Stop twice": Wait(**C_CODE, presses=2),
    "ranks start": Wait(**START, then=STARTS + "Ranks(3, device='cpu').run(lambda: 7)", gives="[7, 7, 7]"),
    "ranks start, Stop twice": Wait(**START, presses=2, then=STARTS + RANKS_WORK),
    "ranks start again after a death": Wait(
        source=HANGS_AT_START + "ranks.run(lambda: os._exit(3))",
        says=("died: its process ended with exit code 3", LOST),
        then=STARTS + RANKS_WORK,
    ),
    "a check, an endless answer": Wait(source=BEGAN + "check('03.average', endless)", seconds=0.5, **CHECK),
    "a check, an answer in C code": Wait(source=BEGAN + "check('03.average', stuck)", seconds=0.5, **CHECK),
    "a check, its ranks start": Wait(
        source=f"run_on_ranks._ranks.close()\n{HANGS_AT_START}check('03.average', right)",
        **CHECK | {"then": STARTS + CHECKS_WORK},
    ),
    "a check, its judge is at work": Wait(
        source="judging.judge_case = slowly\ncheck('03.average', right)",
        **CHECK | {"then": "judging.judge_case = judge_case\n" + CHECKS_WORK},
    ),
    "an exercise": Wait(source=BEGAN + "exercise('03.average', endless)", seconds=0.5, **CHECK),
    "a drill": Wait(
        source=f"one = drill('03.average').begin()\n{BEGAN}one.check(endless)",
        seconds=0.5,
        **CHECK | {"then": "len(one.talk.outcomes)", "gives": "0"},
    ),
    "an explorer, a run on ranks": Wait(
        source="print(PipelineExplorer(run=lambda *_, **__: ranks.run(slowly)).run_now().text)",
        says=(INTERRUPTED, KEPT),
    ),
    "an explorer, a run in the notebook": Wait(
        source="print(PipelineExplorer(run=slowly).run_now().text)", says=("The run was interrupted.",)
    ),
    # The process from which ranks are forked imports torch for seconds. Last, since all ranks end with the old one.
    "the first ranks start": Wait(
        source="old = process.zygote().process\nold.kill()\nold.wait()\n"
        "open({began!r}, 'w').close()\nRanks(2, device='cpu')",
        says=(STARTING,),
        then="Ranks(2, device='cpu').run(lambda: 7)",
    ),
}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def kernel(home):
    """A kernel with two ranks, whose grader has started its ranks as well."""
    kernel = Kernel()
    try:
        reply = kernel.run(SETUP.format(home=str(home), began=str(home / "began")) + CHECKS_WORK)
        assert reply.text.endswith("True"), reply.shown
        yield kernel
    finally:
        kernel.close()


def stopped(kernel, wait, began):
    """What a cell gives that is stopped while it runs."""
    began.unlink(missing_ok=True)
    message = kernel.start(wait.source.replace("{began!r}", repr(str(began))))
    kernel.wait_until_started(message)
    end = time.monotonic() + 30
    while not began.exists():
        assert time.monotonic() < end, "the cell does not come to its wait"
        time.sleep(0.01)
    time.sleep(wait.seconds)
    for press in range(wait.presses):
        time.sleep(0.1 * press)
        kernel.interrupt()
    return kernel.finish(message)


@pytest.mark.parametrize("name", WAITS)
def test_stop_gives_back_the_prompt(kernel, home, name):
    wait, noted = WAITS[name], home / ".rank-by-rank" / "progress.jsonl"
    before = noted.read_text()

    def seconds_to_prompt(attempt: int) -> float:
        reply = stopped(kernel, wait, home / "began")
        said = reply.text + reply.shown
        print(f"{name}: {reply.seconds:.2f} s\n{said}")
        assert all(text in said for text in wait.says), said
        assert "helpers/" not in said and "Traceback" not in said, said
        assert noted.read_text() == before, "an attempt was counted"
        return reply.seconds

    assert_one_of_three_is_within(LIMIT, seconds_to_prompt)
    assert kernel.run(wait.then).text.endswith(wait.gives)
