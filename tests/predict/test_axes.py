"""Where a rank stands, who is in its group, and what it sends over each axis."""

import pytest

from helpers.costs import sent_bytes
from helpers.predict.axes import axis_bytes, coordinates, group, num_copies
from helpers.predict.states import params_per_rank
from helpers.predict.tensor_parallel import tensor_parallel_traffic
from helpers.specs import PRESETS, ModelSpec, Plan

PLAN = Plan(dp=8, tp=8, pp=4)
SMALL = ModelSpec(num_layers=4, hidden=32, num_heads=4, vocab=64, seq=16)


def test_tensor_parallel_groups_are_neighbours():
    assert coordinates(77, PLAN) == {"tp": 5, "cp": 0, "dp": 1, "pp": 1}
    assert group(77, "tp", PLAN) == tuple(range(72, 80))
    assert group(77, "dp", PLAN) == tuple(range(69, 128, 8))
    assert group(77, "pp", PLAN) == (13, 77, 141, 205)


@pytest.mark.parametrize("axis", ["tp", "cp", "dp", "pp"])
def test_groups_of_an_axis_part_the_world(axis):
    plan = Plan(dp=2, tp=2, pp=2, cp=3)
    groups = {group(rank, axis, plan) for rank in range(plan.world_size)}
    assert sorted(rank for members in groups for rank in members) == list(range(24))
    assert all(rank in group(rank, axis, plan) for rank in range(24))


def test_every_place_is_taken_once():
    places = {tuple(coordinates(rank, PLAN).values()) for rank in range(256)}
    assert len(places) == 256


def test_bytes_are_those_of_the_logs_and_of_the_formulas():
    """Tensor parallelism of the blocks as the predicted log has it; one all-reduce of a stage's gradients."""
    plan = Plan(dp=4, tp=2, pp=2, num_microbatches=3)
    found = axis_bytes(SMALL, plan, stage=0)
    log = tensor_parallel_traffic(SMALL, Plan(tp=2, num_microbatches=3), batch=1, dtype_bytes=2)
    blocks = [e.sent_bytes() for e in log.events if "blocks" in e.caller and e.shape == (1, 16, 32)]
    assert found.tp == sum(blocks) / 2  # half of the layers
    assert found.dp == sent_bytes("all_reduce", 2 * params_per_rank(SMALL, plan, 0), 4)
    assert found.pp == 3 * 16 * 32 * 2  # to one neighbour


def test_zero_1_brings_weights_back_in_their_own_width():
    plan = Plan(dp=4, zero=1, precision="mixed_fp32_grads")
    params = params_per_rank(SMALL, plan, 0)
    expected = sent_bytes("reduce_scatter", 4 * params, 4) + sent_bytes("all_gather", 2 * params, 4)
    assert axis_bytes(SMALL, plan).dp == expected
    plain = Plan(dp=4, precision="mixed_fp32_grads")
    assert axis_bytes(SMALL, plain).dp == sent_bytes("all_reduce", 4 * params, 4)


def test_an_inner_stage_has_two_neighbours_and_one_stage_none():
    inner, outer = (axis_bytes(SMALL, Plan(pp=4), stage=stage).pp for stage in (1, 0))
    assert inner == 2 * outer
    assert axis_bytes(PRESETS["gpt2"], Plan()).pp == axis_bytes(PRESETS["gpt2"], Plan()).tp == 0


def test_copies_fill_what_is_left():
    assert num_copies(512, tp=8, pp=4) == 16
    with pytest.raises(ValueError, match="does not divide 100"):
        num_copies(100, tp=8)


def test_bad_input_is_a_sentence():
    with pytest.raises(ValueError, match="rank 256 does not exist"):
        coordinates(256, PLAN)
    with pytest.raises(ValueError, match="axis is 'ep'"):
        group(0, "ep", PLAN)
    with pytest.raises(ValueError, match="zero=3"):
        axis_bytes(SMALL, Plan(dp=2, zero=3))
