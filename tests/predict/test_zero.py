"""The predicted messages of ZeRO's stages, against the closed forms and numbers worked out by hand."""

import pytest

from helpers.predict.comms import ddp_traffic
from helpers.predict.zero import (
    data_parallel_share,
    padding_elements,
    stage1_share,
    stage2_share,
    stage3_share,
    zero_traffic,
)
from helpers.specs import Link

EVEN = [4000, 400, 8000, 400]  # every unit divides by 2 and 4: nothing is padded
P = 4 * sum(EVEN)


def sent(log):
    return log.sent_bytes() / P


@pytest.mark.parametrize("world_size", [2, 4])
def test_on_a_ring_the_stages_send_what_the_closed_forms_say(world_size):
    n = dict(world_size=world_size)
    assert sent(ddp_traffic(EVEN, **n)) == data_parallel_share(world_size) == 2 * (world_size - 1) / world_size
    assert sent(zero_traffic(EVEN, stage=1, **n)) == stage1_share(world_size)
    assert sent(zero_traffic(EVEN, stage=1, reduce="all_reduce", **n)) == stage1_share(world_size, reduce="all_reduce")
    assert sent(zero_traffic(EVEN, stage=2, **n)) == stage2_share(world_size) == data_parallel_share(world_size)
    assert sent(zero_traffic(EVEN, stage=3, **n)) == stage3_share(world_size) == 1.5 * data_parallel_share(world_size)


def test_micro_batches_cost_stage_2_gradients_again_and_stage_3_everything_again():
    n = dict(world_size=4, num_microbatches=3)
    assert sent(zero_traffic(EVEN, stage=1, **n)) == 2 * 3 / 4
    assert sent(zero_traffic(EVEN, stage=2, **n)) == stage2_share(4, num_microbatches=3) == 4 * 3 / 4
    assert sent(zero_traffic(EVEN, stage=3, **n)) == stage3_share(4, num_microbatches=3) == 9 * 3 / 4


def test_kept_parameters_save_a_gather_and_recomputation_costs_one():
    for options, share in (({"keep_parameters": True}, 2 * 3 / 4), ({"recompute": True}, 4 * 3 / 4)):
        assert sent(zero_traffic(EVEN, stage=3, world_size=4, **options)) == stage3_share(4, **options) == share


def test_a_unit_is_padded_to_equal_parts():
    odd, units = [5, 2, 3], [[0, 1], [2]]
    log = zero_traffic(odd, stage=3, world_size=4, units=units)
    assert [(event.op, event.shape) for event in log.events] == [
        ("all_gather", (2,)), ("all_gather", (1,)),
        ("all_gather", (1,)), ("reduce_scatter", (4,)), ("all_gather", (2,)), ("reduce_scatter", (8,)),
    ]  # fmt: skip
    assert padding_elements(odd, units, world_size=4) == 1 + 1


def test_stage_2_fills_buckets_from_the_last_parameter():
    log = zero_traffic(EVEN, stage=2, world_size=2, bucket_bytes=20_000)
    assert [event.shape for event in log.events if event.op == "reduce_scatter"] == [(8400,), (4400,)]
    assert [event.shape for event in log.events if event.op == "all_gather"] == [(4200,), (2200,)]


def test_on_a_link_the_operations_follow_each_other():
    log = zero_traffic([1000], stage=1, world_size=2, link=Link(latency=0.0, bandwidth=1e6))
    assert [(event.start, event.end) for event in log.events] == [(0, 0.002), (0.002, 0.004)]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (dict(stage=0), "see ddp_traffic"),
        (dict(stage=2, reduce="all_reduce"), "stage 2 with reduce='all_reduce'"),
        (dict(stage=1, num_microbatches=0), "num_microbatches is 0"),
        (dict(stage=3, units=[[0, 1], [1]]), "must be in one unit, once"),
    ],
)
def test_bad_input_gets_a_sentence(options, words):
    with pytest.raises(ValueError, match=words):
        zero_traffic([10, 20, 30], world_size=2, **options)
