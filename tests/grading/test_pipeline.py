"""Tests of lab 06's judge: orders, bubbles and cuts are the chapter's, and gradients those of one process."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from helpers import schedules
from helpers.grading import task_of
from helpers.grading.kit import answers, model_tools
from helpers.grading.kit.messages import RETURNED, worlds_of_calls
from helpers.grading.pipeline import schedule, stage
from helpers.grading.task import JudgedWorld, TaskRun
from helpers.parallel.pipeline.partition import balanced
from tests.grading.known_mistakes import repeated
from tests.schedules.written import written

SEEDS = range(6)


def cases_of(key: str, seed: int) -> list:
    return task_of(key).inputs(seed, 1)[0]["cases"]


# -- what is right ---------------------------------------------------------------------------------------------------
@repeated("seed", SEEDS)
def test_what_is_held_is_that_of_the_chapter(seed):
    for actions, *_ in cases_of("06.bubble", seed):
        parsed = written("\n".join(map(",".join, actions)))
        assert schedule.in_flight(actions) == [parsed.in_flight(rank) for rank in range(parsed.num_ranks)]


def test_a_rank_idles_while_the_others_work():
    """One micro-batch takes 1 + 3 s forward and 4 + 2 s back, and the two ranks work for 3 and 7 of these 10 s."""
    actions = [["0F0", "0B0"], ["1F0", "1B0"]]
    assert schedule.bubble(actions, [1.0, 3.0], [2.0, 4.0]) == pytest.approx(0.5)


@pytest.mark.parametrize(("p", "m"), [(1, 1), (2, 2), (4, 8), (8, 32), (5, 2)])
def test_equal_stages_have_the_bubble_of_the_formula(p, m):
    for order in (schedules.gpipe, schedules.one_f_one_b):
        fraction = schedule.bubble(schedule.action_lists(order(p, m)), [1.0] * p, [2.0] * p)
        assert fraction == pytest.approx((p - 1) / (m + p - 1))


@repeated("seed", SEEDS)
def test_the_fastest_cut_is_the_chapters_and_shortcuts_miss_it(seed):
    for number, (layers, num_stages) in enumerate(cases_of("06.cut", seed)):
        best = min(schedule.slowest_stage(layers, sizes) for sizes in schedule.all_cuts(layers, num_stages))
        assert schedule.slowest_stage(layers, balanced(layers, num_stages)) == best
        ways = list(schedule.shortcuts(layers, num_stages))
        assert all(sum(sizes) == len(layers) and min(sizes) > 0 for sizes in ways)
        assert number < 7 or all(schedule.slowest_stage(layers, sizes) > best for sizes in ways)


def test_the_slowest_stage_is_the_largest_sum():
    assert schedule.slowest_stage([3, 1, 4, 1, 5], [2, 2, 1]) == 5
    assert schedule.slowest_stage([3, 1, 4, 1, 5], [1, 1, 3]) == 10


def test_answers_are_compared_as_people_mean_them():
    assert answers.is_same_answer([0.1 + 0.2, [3]], (0.3, [torch.tensor(3.0)]))
    assert answers.is_same_answer([[0, 3], [1]], [torch.tensor([0, 3]), torch.tensor([1])])
    assert not answers.is_same_answer([[0, 3], [1]], [torch.tensor([0, 3]), torch.tensor(1)])
    assert (
        not answers.is_same_answer(1, True)
        and not answers.is_same_answer([1, 2], [1])
        and not answers.is_same_answer(["0F0"], "0F0")
    )
    assert answers.display_pair(1 / 3, 0.5) == (0.333333, 0.5)
    assert answers.display_pair(1 / 3, 1 / 3 + 1e-8) == (1 / 3, 1 / 3 + 1e-8)


# -- on live ranks ---------------------------------------------------------------------------------------------------
def pipelines_of(size: int, seed: int = 0) -> list[stage.PipelineInOneProcess]:
    """One process for each call of the check."""
    inputs = task_of("06.stage").inputs(seed, size)
    num_calls = len(inputs[0]["calls"])
    marks = [[RETURNED, 1.0 + number] for number in range(num_calls)]
    run = TaskRun(
        outputs=[[[None] * num_calls]] * size, events=[[[]]] * size, marks=[[marks]] * size, calls=[[[]]] * size
    )
    return [stage.PipelineInOneProcess(call) for call in worlds_of_calls(JudgedWorld.of(inputs, run))]


@repeated("size", [1, 2, 3, 4, 5])
def test_one_process_gives_the_gradient_of_the_mean_loss(size):
    for pipeline in pipelines_of(size):
        model = nn.Sequential(*pipeline.stages)
        model.zero_grad()
        losses = [F.mse_loss(model(x), y) for x, y in zip(pipeline.inputs, pipeline.targets, strict=True)]
        (sum(losses) / len(losses)).backward()
        assert pipeline.losses == pytest.approx([loss.item() for loss in losses])
        for rank, one in enumerate(pipeline.stages):
            right, got = model_tools.gradients_of(one), pipeline.gradients(rank)
            assert all(torch.allclose(right[name], got[name], rtol=1e-12, atol=1e-14) for name in right)


@repeated("size", [1, 2, 3, 4, 5])
def test_both_orders_are_asked_and_they_differ_where_they_can(size):
    calls = [one["calls"] for one in task_of("06.stage").inputs(0, size)]
    for rank, (first, second, *_) in enumerate(calls):
        m = len(first["actions"]) // 2
        assert first["actions"] == schedule.one_f_one_b(rank, size, m)
        assert second["actions"] == schedule.gpipe(rank, size, len(second["actions"]) // 2)
        assert (first["inputs"] is None) == (rank > 0) and (first["targets"] is None) == (rank < size - 1)
        assert m > 1, "neighbours send to each other only if something is in flight"
    widths = [first["widths"] for first, *_ in calls]
    assert all(before[1] == after[0] for before, after in pairwise(widths))


@repeated("size", [1, 3])
def test_a_wrong_gradient_is_taken_apart_into_those_of_the_micro_batches(size):
    for pipeline in pipelines_of(size):
        factors = [float(j) for j in range(pipeline.m)]
        for rank in range(size):
            parts = [part[rank] for part in pipeline.parts]
            got = {name: sum(f * part[name] for f, part in zip(factors, parts, strict=True)) for name in parts[0]}
            assert pipeline.weights(rank, got) == pytest.approx(factors)
            assert pipeline.weights(rank, {name: tensor + 1 for name, tensor in got.items()}) == []
