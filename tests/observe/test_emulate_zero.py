"""A simulated ZeRO-3 step that real ranks play comes out as predicted: the same messages, in the same places."""

import pytest

from helpers.observe.emulate import MAX_RANKS, emulate_zero3_step
from helpers.predict.time.zero import Zero3Step, simulate_zero3_step
from helpers.specs import Link

# Three layers of 8 MiB; their gathers take about as long as their forwards.
STEP = Zero3Step(names=("a", "b", "c"), num_bytes=(2**23,) * 3, forward=(0.01,) * 3, backward=(0.02,) * 3)
LINK = Link(latency=1e-4, bandwidth=5e8)


@pytest.fixture(scope="module", params=[0, 1], ids=["no prefetch", "prefetch"])
def both(request):
    options = dict(link=LINK, world_size=2, prefetch=request.param)
    return simulate_zero3_step(STEP, **options), emulate_zero3_step(STEP, **options)


def of(timeline, lane):
    return sorted((span for span in timeline.for_rank(0).spans if span.lane == lane), key=lambda span: span.start)


def test_the_messages_and_the_layers_are_those_of_the_prediction(both):
    predicted, emulated = both
    assert (emulated.source, emulated.ranks, emulated.title) == ("emulated", (0, 1), predicted.title)
    sent = [[(span.name.split()[0], span.num_bytes) for span in of(line, "communication")] for line in both]
    assert sent[0] == sent[1] and len(sent[0]) == 9
    ran = [[(span.kind, span.name) for span in of(line, "compute")] for line in both]
    assert ran[0] == ran[1] and len(ran[0]) == 6


def test_nothing_is_faster_than_the_model_and_the_scale_is_that_of_the_model(both):
    """A busy machine only ever adds time; a mistake of scale would be off by the slowdown, about 10."""
    predicted, emulated = both
    assert 0.98 * predicted.duration < emulated.duration < 5 * predicted.duration


def test_a_gather_runs_beside_compute_only_if_it_was_fetched_ahead(both):
    for line in both:
        forward = [span for span in of(line, "compute") if span.kind == "forward"]
        gathers = [span for span in of(line, "communication") if span.name.startswith("all_gather")][1:3]
        middle = 0.5 * STEP.forward[0]
        during = [any(g.start < f.start + middle < g.end for f in forward) for g in gathers]
        assert during == [line.title.endswith("prefetch 1")] * 2


def test_the_last_reduce_scatter_comes_after_all_compute(both):
    for line in both:
        assert of(line, "communication")[-1].end > of(line, "compute")[-1].end


def test_too_many_ranks_get_a_sentence():
    with pytest.raises(ValueError, match=f"emulate 1 to {MAX_RANKS}"):
        emulate_zero3_step(STEP, link=LINK, world_size=MAX_RANKS + 1)
