"""Chapter 06's runs on two ranks: each finds what it is meant to find, and notices what is wrong."""

import math

import pytest
import torch

from helpers.chapters import pipeline
from helpers.chapters.pipeline import (
    bytes_by_axis,
    dualpipe_v,
    equal_to_one_process,
    exchange_between_two_ranks,
    exchange_by_blocking_sends,
    link_table,
    recorded,
    run_as_chain,
    shortest_step,
    torch_equal_to_one_process,
)
from helpers.observe.comms import record_comms
from helpers.observe.memory import record_memory
from helpers.predict.time.pipeline import simulate
from helpers.schedules import ORDERS, gpipe, interleaved, one_f_one_b, zb_h1


@pytest.mark.parametrize("kind", ["layers", "gpt", "cnn"])
def test_ours_equals_one_process_with_its_norm(ranks, kind):
    assert equal_to_one_process(ranks[:2], zb_h1(2, 4), kind).startswith("equal: ")


@pytest.mark.parametrize("name", ORDERS)
def test_torch_runs_our_schedules(ranks, name):
    schedule = interleaved(4, 4, 2) if name == "interleaved" else ORDERS[name](2, 4)
    assert torch_equal_to_one_process(ranks, schedule).startswith("equal: 16 tensors")


def test_a_gradient_that_one_rank_has_otherwise_is_found():
    expected = {"a": torch.ones(2), "b": torch.ones(2)}
    with pytest.raises(AssertionError, match="b differs"):
        pipeline._compare(expected, [{"a": torch.ones(2)}, {"b": torch.zeros(2)}])


def peak_of_activations(schedule):
    stage, x, y = pipeline.wide_stage(schedule)
    with record_memory(stage) as recorder:
        stage.step(x, y)
    return round(recorder.peak.activations / pipeline.one_microbatch_bytes())


def sends_of_a_step(schedule):
    stage, x, y = pipeline.small_stage(schedule)
    with record_comms() as recorder:
        stage.step(x, y)
    return recorder.log.count("send")


def test_peaks_and_messages_are_those_of_the_schedule(ranks):
    assert ranks[:2].run(peak_of_activations, gpipe(2, 4)) == [4, 4]
    assert ranks[:2].run(peak_of_activations, one_f_one_b(2, 4)) == [2, 1]
    assert sum(ranks[:2].run(sends_of_a_step, interleaved(4, 4, 2))) == 2 * 4 * 3


def train(lr):
    model, x, y, loss = pipeline.model_and_batch("layers")
    stage = pipeline.partition(model, 2)[torch.distributed.get_rank()]
    loop = pipeline.MiniPipeline(stage, loss, (2, 8))
    optimizer = torch.optim.AdamW(stage.parameters(), lr=lr)
    for _ in range(3):
        optimizer.zero_grad()
        loop.one_f_one_b(x.chunk(4), y.chunk(4))
        optimizer.step()
    return pipeline.held_by(model, stage)


def test_the_loop_is_compared_with_the_same_training_in_one_process(ranks):
    assert pipeline.compare_with_one_process(ranks[:2].run(train, 1e-2)).startswith("equal: 32 tensors")
    with pytest.raises(AssertionError, match="differs"):
        pipeline.compare_with_one_process(ranks[:2].run(train, 2e-2))


@pytest.mark.parametrize(("loop", "schedule"), [("gpipe", gpipe), ("one_f_one_b", one_f_one_b)])
@pytest.mark.parametrize(("num_stages", "num_microbatches"), [(1, 3), (3, 2), (4, 8)])
def test_the_loops_written_down_are_the_schedules(loop, schedule, num_stages, num_microbatches):
    rows = [recorded(loop, rank, num_stages, num_microbatches) for rank in range(num_stages)]
    assert rows == [list(map(str, row)) for row in schedule(num_stages, num_microbatches).actions]


SLOW = {"forward": 0.01, "backward_input": 0.01, "backward_weight": 0.01, "send": 0.01}


def test_a_long_step_needs_one_micro_batch_more_than_a_round_trip_holds():
    short, long = ([round(1e3 * shortest_step(m, n, **SLOW)) for n in (4, 6, 7)] for m in (8, 64))
    assert short == [490, 390, 390] and long == [3010, 2630, 2070]


def test_torchs_dual_pipe_trains_and_holds_as_many_halves_as_stages_and_one(ranks):
    schedule = dualpipe_v(4, 12)
    assert [schedule.stages_of(rank) for rank in range(4)] == [(0, 7), (1, 6), (2, 5), (3, 4)]
    assert [schedule.in_flight(rank) for rank in range(4)] == [9] * 4
    assert equal_to_one_process(ranks[:2], dualpipe_v(2, 4)).startswith("equal: ")
    with pytest.raises(ValueError, match="as many micro-batches as stages: 8, not 7"):
        dualpipe_v(4, 7)


def test_bytes_and_seconds_of_a_real_job():
    head, *_, last = link_table(134e6, 0.1, 8).splitlines()
    assert last == "400 Gb/s    2.68 ms, 0.027 of the forward   335 µs, 0.0034 of the forward"
    assert head.index("16.8 MB per message") == last.index("335 µs")
    lines = list(bytes_by_axis(70.6e9, 80, 134e6, {"pp": 4, "tp": 8, "dp": 8}))
    assert [line.split(":")[1].strip() for line in lines] == ["134 MB", "9.38 GB", "7.72 GB"]


def test_blocking_sends_wait_for_each_other_and_posted_ones_do_not(ranks):
    assert exchange_between_two_ranks(ranks, "isend").endswith("[2, 2]")
    report, waits = exchange_by_blocking_sends(ranks)
    assert report.startswith("every rank waits for another one") and waits == "both wait forever in a send"


def test_steps_are_compared_in_the_words_of_the_questions():
    short, long = ({"forward": 1.0, "backward_input": 1.0, "backward_weight": 1.0, "send": send} for send in (0.0, 1.0))
    gpipe_step, same, slow = (
        simulate(order(4, 8), **times) for order, times in ((gpipe, short), (one_f_one_b, short), (one_f_one_b, long))
    )
    assert pipeline.bubble_beside_gpipe(gpipe_step, same) == "as large as GPipe's"
    assert pipeline.bubble_beside_gpipe(gpipe_step, slow) == "larger than GPipe's"
    assert pipeline.bubble_beside_gpipe(slow, same) == "smaller than GPipe's"
    assert pipeline.length_beside_h1(same, gpipe_step) == "exactly as long"
    assert pipeline.length_beside_h1(same, slow) == "longer than ZB-H1's"


@pytest.mark.parametrize(
    ("losses", "seen"),
    [
        ([4.0, 3.0], "nothing: the loss falls"),
        ([4.0, 4.0], "the loss stays flat"),
        ([4.0, math.nan], "the loss becomes NaN"),
    ],
)
def test_what_the_loss_of_a_tied_model_shows(losses, seen):
    assert pipeline.TiedRun(apart=[0.0], losses=losses).what_is_seen == seen


class Net(torch.nn.Module):
    def __init__(self, width: int, act):
        super().__init__()
        self.first, self.second, self.act = torch.nn.Linear(8, 8), torch.nn.Linear(width, 8), act

    def forward(self, x):
        return self.second(self.act(self.first(x))[:, : self.second.in_features])


def test_a_chain_of_children_loses_what_forward_does():
    torch.manual_seed(0)
    x = torch.randn(4, 8)
    outcomes = [
        run_as_chain(Net(8, torch.relu), x),
        run_as_chain(Net(8, lambda y: y), x),
        run_as_chain(Net(4, torch.relu), x),
    ]
    assert outcomes == ["other numbers, and no error", "the same output", "an error"]
