"""The checks of every task: messages that the log lacks."""

from __future__ import annotations

import torch
import torch.distributed as dist

from helpers.grading import common_checks, grade
from helpers.grading.run_on_ranks import board_counts
from helpers.grading.task import TaskRun
from helpers.ranks.wire import wire


def average(model):
    for gradient in [parameter.grad for parameter in model.parameters() if parameter.grad is not None]:
        dist.all_reduce(gradient)
        gradient /= dist.get_world_size()


def average_unheard(model):
    listeners, wire._listeners.callbacks = wire._listeners.callbacks, []
    dist.all_reduce(torch.ones(3))
    wire._listeners.callbacks = listeners
    average(model)


def average_made_up(model):
    average(model)
    for tell in list(wire._listeners.callbacks):
        tell(tell.__self__._events[-1])


def average_with_a_message_left(model):
    average(model)
    if dist.get_world_size() > 1 and dist.get_rank() == 0:
        model.left = dist.irecv(torch.empty(1), 1)


def test_a_message_that_the_log_lacks_fails_the_check_with_its_numbers(ranks):
    verdict = grade("03.average", average_unheard, ranks=ranks, seed=1)
    assert not verdict.passed and "messages were hidden from the log: rank 0 of 1 issued" in verdict.text("en")
    assert "有消息未进入日志" in verdict.text("zh")


def test_an_entry_that_no_message_stands_behind_is_told_too(ranks):
    assert "hidden from the log" in grade("03.average", average_made_up, ranks=ranks, seed=1).text("en")


def test_honest_functions_are_not_suspected(ranks):
    assert grade("03.average", average, ranks=ranks, seed=1).passed
    assert "hidden" not in grade("03.average", average_with_a_message_left, ranks=ranks, seed=1).text("en")


def test_ranks_that_were_started_anew_in_between_begin_at_nothing():
    assert board_counts({("old", "0"): {0: 9}}, {("new", "0"): {0: 2}}, [{}]) == [{"0": 2}]


def test_groups_are_counted_apart_and_what_is_under_way_is_left_out():
    before, after = {("a", "0"): {0: 5, 1: 5}}, {("a", "0"): {0: 8, 1: 7}, ("b", "1"): {0: 2}}
    assert board_counts(before, after, [{"1": 1}, {}]) == [{"0": 3, "1": 1}, {"0": 2}]
    events = [[[{"group": "0"}, {"group": "1"}], [{"group": "0"}] * 2], [[{"group": "0"}]]]
    run = TaskRun(issued=[{"0": 3, "1": 1}, {"0": 2}], events=events)
    assert "rank 1 of 2 issued 2 operations, and its log has 1" in common_checks.hidden_messages(run).en
    assert common_checks.hidden_messages(TaskRun(events=events)) is None, "where there is no board nothing is compared"
