"""Chapter 10's runs: the slow rank is slow, the absent one is named, weights drift apart. No time is measured."""

import pytest
import torch.distributed as dist

from helpers.chapters import profiling
from helpers.commands.traces.example import example
from helpers.parallel.shared.bucket_rule import split_into_buckets


def paces(job):
    """On a rank: seconds that its first layer takes, forward and backward, and batches of its loader."""
    model, _, loader = job()
    layer = model.module[0]
    return layer.forward_seconds, layer.backward_seconds, len(loader)


def test_one_rank_of_the_slow_job_computes_longer_and_the_mended_one_has_none(ranks):
    usual = (profiling.FORWARD, profiling.BACKWARD, profiling.STEPS)
    slow = ranks[:3].run(paces, profiling.slow_job)
    assert slow[:2] == [usual] * 2 and slow[2] == (2.5 * profiling.FORWARD, 2.5 * profiling.BACKWARD, profiling.STEPS)
    assert ranks[:3].run(paces, profiling.fixed_job) == [usual] * 3


def test_who_does_not_come_to_a_barrier_is_named(ranks):
    said = ranks[:3].run(profiling.monitored_barrier_error, 1, seconds=0.2)
    assert "1" in said[0] and "monitoredBarrier" in said[0] and said[1] == ""


def test_losses_are_equal_weights_are_not_and_the_watchdog_says_so(ranks):
    (losses, norms, said), (same, other, _) = ranks[:2].run(profiling.train_with_drift, 10)
    assert losses == same and norms != other and len(said) == 1 and "norm" in said[0]


def test_a_variable_counts_when_a_group_is_made(ranks):
    old, new = ranks[:1].run(profiling.interface_changed_after_init, "no-such")[0]
    assert old == "runs" and "no-such" in new
    assert ranks[:1].run(lambda: dist.new_group(backend="gloo") is not None) == [True]


def test_a_cap_closes_a_bucket_after_so_many_layers():
    for size in (1, 2, 4, 8, 16):
        layer, cap = [4 * profiling.TUNED_WIDTH, 4 * profiling.TUNED_WIDTH**2], profiling.bucket_cap_mb(size) * 2**20
        for order in (layer, layer[::-1]):  # torch assigns them anew in the order in which gradients arrive
            buckets = split_into_buckets(order * profiling.NUM_TUNED_LAYERS, bucket_cap=cap, first_bucket_cap=cap)
            assert len(buckets) == profiling.NUM_TUNED_LAYERS // size
    best = min((1, 2, 4, 8, 16), key=profiling.predicted_step_seconds)
    assert best == 4 and profiling.predicted_step_seconds(4, "bucketed") > profiling.predicted_step_seconds(4)


def test_the_shortest_step_is_shown_and_does_not_tell_for_whom_it_waits():
    run = example("a run")
    number, parts = profiling.parts_of_a_step(run)
    lengths = {n: max(step.end - step.start for row in run.steps.values() for step in row if step.number == n)
               for n in (step.number for step in run.steps[0])}  # fmt: skip
    assert lengths[number] == min(lengths.values()) < max(lengths.values())
    for rank, own in parts.items():
        (step,) = (one for one in run.steps[rank] if one.number == number)
        assert sum(own.values()) == pytest.approx(step.end - step.start)
        shown = profiling.spans_of_a_step(run, number, rank)
        assert step.start <= shown.start and shown.end <= step.end and shown.ranks == (rank,)
        assert not any("←" in span.name or span.lane == "host" for span in shown.spans)


def test_the_log_of_the_opening_is_the_slow_job():
    scene = profiling.opening_scene()
    assert "170 ms, busy 94%" in scene.summary


def test_a_trace_of_one_rank_shows_waiting_as_a_long_all_reduce():
    run = example("a run")
    number, parts = profiling.parts_of_a_step(run)
    scene, most = profiling.own_parts_scene(parts[0])
    assert most == "all-reduces" and "waiting" not in scene.summary
    scene, share = profiling.messages_scene(run, number, rank=0)
    moving = sum(
        one.end - max(one.ready, one.last_ready) for one in run.messages if (one.rank, one.step) == (0, number)
    )
    both = sum(one.end - one.ready for one in run.messages if (one.rank, one.step) == (0, number))
    limits = {"less than a third of it": (0, 1 / 3), "about a half of it": (1 / 3, 2 / 3)}
    limits["nearly all of this time"] = (2 / 3, 1)
    low, high = limits[share]
    assert low <= moving / both <= high
