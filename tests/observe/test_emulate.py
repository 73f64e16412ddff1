"""A simulated step that real ranks play comes out as it was predicted: the same messages, about the same times."""

import math

import pytest

from helpers.observe.emulate import MAX_RANKS, emulate_ddp_step
from helpers.predict.time.data_parallel import BackwardPass, simulate_ddp_step
from helpers.specs import Link

# Four gradients of 4 MiB, 5 ms each; a link that is as fast as backward.
PASS = BackwardPass(
    names=("d", "c.weight", "b", "a"), num_bytes=(2**22,) * 4, seconds=(0.005,) * 4, forward_seconds=0.01
)
LINK = Link(latency=1e-4, bandwidth=1.2e9)


def both(**options):
    options = {"link": LINK, "world_size": 2, "bucket_cap_mb": 4, "first_bucket_mb": 1} | options
    return simulate_ddp_step(PASS, **options), emulate_ddp_step(PASS, **options)


def messages(timeline, rank):
    return [span.num_bytes for span in timeline.for_rank(rank).spans if span.lane == "communication"]


def compute(timeline, rank, kind):
    return [span.name for span in timeline.for_rank(rank).spans if span.kind == kind]


@pytest.fixture(scope="module")
def overlapped():
    return both()


def test_every_rank_sends_the_messages_that_were_predicted(overlapped):
    predicted, emulated = overlapped
    assert (emulated.source, emulated.ranks, emulated.title) == ("emulated", (0, 1), predicted.title)
    assert messages(emulated, 0) == messages(emulated, 1) == messages(predicted, 0) == [2**22] * 4


def test_layers_run_in_the_order_of_the_pass_and_keep_their_names(overlapped):
    emulated = overlapped[1]
    assert compute(emulated, 1, "backward") == list(PASS.names)
    (forward,) = (span for span in emulated.for_rank(1).spans if span.kind == "forward")
    assert forward.duration > 0.9 * PASS.forward_seconds


def test_nothing_is_faster_than_the_model_and_the_scale_is_that_of_the_model(overlapped):
    """A busy machine only ever adds time; a mistake of scale would be off by the slowdown, about 25."""
    predicted, emulated = overlapped
    assert 0.98 * predicted.duration < emulated.duration < 10 * predicted.duration
    assert emulated.busy(0, "communication") > 0.9 * predicted.busy(0, "communication")


def test_a_link_carries_one_message_at_a_time(overlapped):
    spans = [span for span in overlapped[1].for_rank(0).spans if span.lane == "communication"]
    assert all(one.end <= two.start for one, two in zip(spans, spans[1:], strict=False))


def test_one_bucket_for_everything_hides_nothing():
    _, emulated = both(bucket_cap_mb=math.inf, first_bucket_mb=math.inf)
    assert messages(emulated, 0) == [2**24]
    sent = emulated.busy(0, "communication")
    assert emulated.exposed_communication(0) > 0.9 * sent


def test_more_ranks_than_a_machine_should_run_get_a_sentence():
    with pytest.raises(ValueError, match=f"64 ranks .* emulate 1 to {MAX_RANKS}"):
        emulate_ddp_step(PASS, link=LINK, world_size=64)
