"""Lab 01's judge: rounds counted from who told whom, the parts in a wrong chunk, and the calls of a task."""

from __future__ import annotations

import pytest
import torch

from helpers.commands.rehearse import rehearse
from helpers.grading import grade, task_of
from helpers.grading.collectives.cost import CostQuestion, is_close_number
from helpers.grading.collectives.ring import parts_text
from helpers.grading.collectives.send_receive import rounds_of
from helpers.grading.kit.messages import RETURNED, worlds_of_calls
from helpers.grading.task import JudgedWorld
from helpers.records import CommEvent, CommLog
from tests.grading.known_mistakes import repeated
from tests.grading.submissions import cells_of


@pytest.mark.parametrize(
    ("told", "root", "rounds"),
    [
        ([[]], 0, 0),
        ([[1, 2], [3], [], []], 0, 2),
        ([[2, 1], [], [3], []], 0, 2),
        ([[1, 2, 3], [], [], []], 0, 3),
        ([[1], [2], [3], []], 0, 3),
        ([[1], [], [3, 0], []], 2, 3),
    ],
    ids=["alone", "tree", "far first", "root to all", "chain", "root 2"],
)
def test_rounds_are_counted_by_who_told_whom(told, root, rounds):
    assert rounds_of(told, root) == rounds


def parts(n: int, length: int = 7) -> list[list[torch.Tensor]]:
    rows = torch.randn(n, length, dtype=torch.float64, generator=torch.Generator().manual_seed(n))
    return [list(torch.tensor_split(row, n)) for row in rows]


def test_a_wrong_chunk_is_described_by_the_ranks_whose_parts_it_adds_up():
    given = [of_rank[1] for of_rank in parts(3)]
    assert "the parts of ranks 0, 2 and 2," in parts_text(1, given, given[0] + 2 * given[2]).en
    assert "the part of rank 1 alone" in parts_text(1, given, given[1]).en
    assert parts_text(1, given, torch.zeros_like(given[0])).en.startswith("chunk 1 is zero everywhere")
    assert parts_text(1, given, torch.ones_like(given[0])) is None


def test_formulas_of_the_lab_are_those_of_the_course():
    case = CostQuestion(n=6000, N=6, alpha=1e-3, bandwidth=1e6)
    assert case.right_answer() == pytest.approx((10_000, 0.02, 0.042, "ring"))


@pytest.mark.parametrize(
    ("got", "is_right"),
    [(0.5, True), (0.5 + 1e-12, True), (torch.tensor(0.5), True), (0.501, False), (True, False), (None, False)],
)
def test_a_number_may_be_rounded_and_be_a_tensor(got, is_right):
    assert is_close_number(0.5, got) == is_right


@pytest.mark.parametrize("key", ["01.reduce_scatter", "01.all_reduce"])
@repeated("n", [2, 3, 4, 5])
def test_lengths_are_even_uneven_and_as_short_as_may_be(key, n):
    task = task_of(key)
    lengths = [len(task.inputs(3, n, case)[0]["calls"][0]["tensor"]) for case in task.variations.cases(3)]
    assert lengths[1] == n and lengths[0] % n and lengths[3] % n == 0 and max(lengths) >= 500 * n


@repeated("n", [1, 3, 5])
def test_every_rank_is_the_root_once(n):
    task = task_of("01.broadcast")
    assert {task.inputs(3, n, case)[0]["root"] for case in task.variations.cases(3)} == set(range(n))


def event(start: float) -> CommEvent:
    where = {"rank": 0, "op": "send", "group": "0", "group_ranks": (0, 1), "caller": "a.py:1", "dtype": "float64"}
    return CommEvent(**where, payload_bytes=8, sequence=0, start=start, end=start + 0.1, shape=(1,), peer=1)


def test_each_call_has_its_own_part_of_the_log():
    log = CommLog(events=tuple(map(event, (1.0, 1.5, 3.0))))
    marks = [[(RETURNED, 2.0), (RETURNED, 4.0)]]
    world = JudgedWorld(size=1, inputs=[{"calls": ["a", "b"]}], outputs=[["x", "y"]], logs=[log], marks=marks)
    first, second = worlds_of_calls(world)
    assert (first.inputs, first.outputs, first.logs[0].count("send")) == (["a"], ["x"], 2)
    assert (second.inputs, second.outputs, second.logs[0].count("send")) == (["b"], ["y"], 1)


def test_a_task_on_one_rank_says_rank(ranks):
    def all_reduce_cost(n, world_size, latency, bandwidth):
        return CostQuestion(n=n, N=world_size, alpha=latency, bandwidth=bandwidth).right_answer()

    verdict = grade("01.cost", all_reduce_cost, ranks=ranks)
    assert verdict.text().startswith("01.cost  passed · 1 rank · ")
    assert verdict.text("zh").startswith("01.cost  通过 · 1 个 rank · ")


GPU_JOB = """
import os
import torch
import torch.distributed as dist

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
{functions}

rows = torch.ones(2, 4, device="cuda")
shift(rows)
all_to_all(list(rows))
reduce_scatter(rows[0].clone())
all_reduce(rows[0].clone())
dist.destroy_process_group()
"""


def test_the_ring_of_the_solution_also_runs_by_nccls_rules():
    """Chapter 01 shows that an isend before an irecv on every rank hangs on NCCL, so the lab must not do it."""
    cells = cells_of("01_collectives")
    functions = "\n".join(cells[f"01.{name}"] for name in ("shift", "all_to_all", "reduce_scatter", "all_reduce"))
    report = rehearse(GPU_JOB.format(functions=functions), nproc=2)
    assert [one.label.en for one in report.findings if one.is_mistake] == []
