"""The predicted traffic of one step, against numbers worked out by hand."""

import math

import pytest

from helpers.predict.traffic import data_parallel as comms
from helpers.specs import Link

MIB = 1024**2
LAYERS = [1000, 10, 500_000, 10, 300_000, 10]  # elements of each parameter, first layer first


def ddp_with_buckets_of(size, parameters=LAYERS, **how):
    return comms.ddp_traffic(parameters, bucket_bytes=size, first_bucket_bytes=size, **how)


def test_small_buckets_send_one_message_a_parameter():
    log = ddp_with_buckets_of(1, world_size=4)
    assert [event.payload_bytes for event in log.events] == [4 * n for n in reversed(LAYERS)]
    assert log.sent_bytes() == pytest.approx(1.5 * 4 * sum(LAYERS))


def test_one_bucket_for_all_carries_the_same_bytes():
    flat = ddp_with_buckets_of(math.inf, world_size=4)
    assert flat.count() == 1
    assert flat.payload_bytes() == ddp_with_buckets_of(1, world_size=4).payload_bytes()


def test_buckets_fill_from_the_last_layer_and_the_first_closes_early():
    log = comms.ddp_traffic(LAYERS, world_size=4, bucket_bytes=2_000_000, first_bucket_bytes=1 * MIB)
    sizes = [event.payload_bytes // 4 for event in log.events]
    assert sizes == [10 + 300_000, 10 + 500_000, 10 + 1000]
    assert log.payload_bytes() == 4 * sum(LAYERS)


def test_a_number_alone_fills_buckets_to_the_brim():
    log = comms.ddp_traffic(10_698_240, world_size=4)
    assert [event.payload_bytes for event in log.events] == [MIB, 25 * MIB, 10_698_240 * 4 - 26 * MIB]
    assert int(log.sent_bytes()) == 64_189_440


def test_on_a_link_the_operations_follow_each_other():
    link = Link(latency=1e-3, bandwidth=1e9)
    log = ddp_with_buckets_of(1, [250_000_000, 250_000_000], world_size=2, link=link)
    assert [(e.start, e.end) for e in log.events] == [pytest.approx((0, 1.002)), pytest.approx((1.002, 2.004))]


def test_half_precision_halves_the_bytes():
    assert comms.ddp_traffic(LAYERS, world_size=2, dtype_bytes=2).payload_bytes() == 2 * sum(LAYERS)


def test_data_parallel_sends_the_model_out_and_the_gradients_back_each_step():
    log = comms.data_parallel_traffic(1000, num_devices=4, input_bytes=800, output_bytes=80)
    assert [event.op for event in log.events] == ["scatter", "broadcast", "gather", "scatter", "reduce"]
    assert comms.master_link_bytes(log) == 600 + 3 * 4000 + 60 + 60 + 3 * 4000


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: comms.ddp_traffic([], world_size=4), "none at all"),
        (lambda: comms.ddp_traffic([3.5], world_size=4), "got 3.5"),
        (lambda: comms.ddp_traffic(-1, world_size=4), "got -1"),
        (lambda: comms.ddp_traffic(10, world_size=4, dtype_bytes=3), "dtype_bytes is 3"),
        (lambda: comms.ddp_traffic(10, world_size=4, bucket_bytes=2), "holds no element"),
        (lambda: comms.ddp_traffic([10], world_size=4, bucket_bytes=0), "bucket"),
    ],
)
def test_bad_input_gets_a_sentence(call, words):
    with pytest.raises(ValueError, match=words):
        call()
