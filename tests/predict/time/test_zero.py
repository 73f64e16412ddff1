"""A simulated ZeRO-3 step against times worked out by hand."""

import pytest

from helpers.predict.time.zero import Zero3Step, compare_stages, gpt_zero3_step, simulate_zero3_step, stage1_seconds
from helpers.specs import LINKS, PRESETS, Link

# Two ranks: gathering or scattering a unit of 2 MB moves 1 MB, 1 s.
LINK = Link(latency=0.0, bandwidth=1e6)
N = dict(link=LINK, world_size=2)


def step(forward=(2.0, 2.0, 2.0), backward=(4.0, 4.0, 4.0)):
    return Zero3Step(names=("a", "b", "c"), num_bytes=(2_000_000,) * 3, forward=forward, backward=backward)


def test_without_prefetch_every_gather_is_waited_for():
    line = simulate_zero3_step(step(), prefetch=0, **N)
    # Forward 3 (1 + 2). Backward: c 1 + 4; then the scatter of c goes before the gather of b: 1 + 1 + 4 each.
    assert line.duration == 9 + 5 + 6 + 6 + 1


def test_with_prefetch_all_but_the_first_gathers_and_the_last_scatter_hide():
    line = simulate_zero3_step(step(), prefetch=1, **N)
    assert line.duration == (1 + 6) + (1 + 12) + 1


def test_a_slow_link_is_the_whole_step_and_prefetch_gains_only_the_compute():
    thin = step(forward=(0.1,) * 3, backward=(0.2,) * 3)
    without, with_it = (simulate_zero3_step(thin, prefetch=k, **N).duration for k in (0, 1))
    busy = 9  # 3 gathers forward, 3 backward, 3 scatters, a second each
    assert busy < with_it < without <= busy + 0.9


def test_kept_units_are_gathered_once():
    line = simulate_zero3_step(step(), prefetch=1, limit=3, keep_parameters=True, **N)
    gathers = [span.name for span in line.for_rank(0).spans if span.name.startswith("all_gather")]
    assert gathers == ["all_gather a", "all_gather b", "all_gather c"]
    assert line.duration == (1 + 6) + 12 + 1


def test_compute_waits_for_the_reduce_scatter_before_the_next():
    uneven = step(forward=(0.0,) * 3, backward=(2.0, 0.25, 0.25))
    line = simulate_zero3_step(uneven, keep_parameters=True, prefetch=0, **N)
    assert line.duration - 3 == (0.25 + 1) + 2 + 1  # a computes when b's gradients could leave, after c's had left


def test_prefetch_holds_one_unit_more():
    def most_parameters(prefetch):
        line = simulate_zero3_step(step(), prefetch=prefetch, limit=3, **N).for_rank(0)
        instants = [span.start for span in line.spans] + [span.end for span in line.spans]
        parameters = [h for h in line.held if h.kind == "parameters"]
        held = [sum(h.num_bytes for h in parameters if h.start <= t < h.end) for t in instants]
        return max(held)

    shards, unit = 3_000_000, 2_000_000
    assert [most_parameters(k) for k in (0, 1, 2)] == [shards + unit, shards + 2 * unit, shards + 3 * unit]


def test_for_7_billion_parameters_the_link_decides_whether_zero_3_is_sensible():
    llama = gpt_zero3_step(PRESETS["llama2-7b"], tokens=4096, flops_per_second=150e12)
    compute = sum(llama.forward) + sum(llama.backward)
    options = {"world_size": 64, "shown_ranks": 1}
    seconds = {name: simulate_zero3_step(llama, link=link, **options).duration for name, link in LINKS.items()}
    assert seconds["NVLink 4"] < 1.05 * compute
    assert seconds["10 Gb/s"] > 20 * compute


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: simulate_zero3_step(step(), prefetch=-1, **N), "prefetch is -1"),
        (lambda: simulate_zero3_step(step(), shown_ranks=3, **N), "shown_ranks is 3"),
        (lambda: step(forward=(1.0,)), "1 and 3 durations"),
        (lambda: step(backward=(1.0, 1.0, -1.0)), "negative"),
        (lambda: simulate_zero3_step(step(), limit=0, **N), "limit is 0"),
    ],
)
def test_bad_input_gets_a_sentence(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_stage_1_hides_what_compute_covers_and_stage_3_needs_a_faster_network_to_catch_up():
    step = Zero3Step(names=("a", "b"), num_bytes=(100, 100), forward=(2.0, 2.0), backward=(4.0, 4.0))
    link, options = Link(latency=0, bandwidth=50), dict(world_size=2)  # a message of a unit takes 1 s
    assert stage1_seconds(step, link=link, overlap=False, **options) == 12 + 4
    # 1 s until the first unit is gathered, 12 s of compute, 1 s for the last gradients
    assert stage1_seconds(step, link=link, **options) == 1 + 12 + 1
    assert stage1_seconds(step, link=link, num_microbatches=3, **options) == 1 + 36 + 1
    slow = Link(latency=0, bandwidth=5)  # 10 s per message: 20 s of gathers, and the last reduction ends after 20 more
    assert stage1_seconds(step, link=slow, **options) == 20 + 2 + 4 + 20
    times = compare_stages(PRESETS["llama2-7b"], (300, 400, 1000), num_microbatches=1)
    assert times["stage 3"][300] < times["stage 1"][300] and times["stage 3"][400] > times["stage 1, overlapped"][400]
    assert times["stage 3"][1000] == pytest.approx(times["stage 1, overlapped"][1000], rel=0.01)
