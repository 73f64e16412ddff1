"""What a rank sends over each axis."""

import pytest

from helpers.costs import sent_bytes
from helpers.predict.memory.states import params_per_rank
from helpers.predict.traffic.axes import axis_bytes
from helpers.predict.traffic.tensor_parallel import tensor_parallel_traffic
from helpers.specs import PRESETS, ModelSpec, Plan

SMALL = ModelSpec(num_layers=4, hidden=32, num_heads=4, vocab=64, seq=16)


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


def test_bad_input_is_a_sentence():
    with pytest.raises(ValueError, match="zero=3"):
        axis_bytes(SMALL, Plan(dp=2, zero=3))
