"""Steps with the optimizer on the host or of adapters alone, beside the whole step they come from."""

from dataclasses import replace

import pytest

from helpers.predict.memory.adapters import adapter_params
from helpers.predict.time.lighter import HOST_BANDWIDTH, HOST_LINK, UNPACKING, adapter_step, offloaded_step
from helpers.predict.time.model import step_time
from helpers.predict.time.stacks import FSDP, MEGATRON_CORE
from helpers.specs import CLUSTERS, PRESETS, Plan

MODEL, NODE = PRESETS["llama2-7b"], CLUSTERS["8 A100"]


def bars(step):
    return {bar.name: bar.seconds for bar in step.bars}


@pytest.mark.parametrize("microbatches", [1, 4])
def test_offload_touches_the_state_on_the_host_once_per_step(microbatches):
    plan = Plan(dp=8, zero=3, num_microbatches=microbatches)
    whole, lighter = (bars(make(MODEL, plan, NODE, MEGATRON_CORE)) for make in (step_time, offloaded_step))
    share = MODEL.num_params / 8
    assert lighter["optimizer on the host"] == pytest.approx(8 * share * (2 * 12 + 2 + 2) / HOST_BANDWIDTH)
    assert lighter["parameters from the host"] == pytest.approx(HOST_LINK.seconds(2 * share))
    assert "gradients to the host" not in lighter  # they hide behind backward
    assert "optimizer" not in lighter and lighter["products"] == whole["products"]


def test_adapters_spare_a_third_of_the_products_and_nearly_all_gradients():
    plan = Plan(dp=8, micro_batch=4)
    whole = bars(step_time(MODEL, plan, NODE, MEGATRON_CORE))
    small = bars(adapter_step(MODEL, plan, NODE, MEGATRON_CORE, rank=16))
    assert small["products"] == pytest.approx(2 / 3 * whole["products"], rel=0.05)
    share = adapter_params(MODEL, rank=16) / MODEL.num_params
    assert small["optimizer"] == pytest.approx(share * whole["optimizer"])
    packed = bars(adapter_step(MODEL, plan, NODE, MEGATRON_CORE, rank=16, is_quantized=True))
    written = UNPACKING * 2 * 2.5 * MODEL.num_layers * MODEL.params_per_layer / (0.85 * NODE.gpu.memory_bandwidth)
    assert packed["weights out of 4 bits"] == pytest.approx(written) and "weights out of 4 bits" not in small


QWEN = {
    256: 27.4,
    1024: 41.4,
    4096: 97.7,
    8192: 179.8,
}  # tokens: seconds of 8 micro-batches, README of github.com/QwenLM/Qwen


@pytest.mark.parametrize("seq", QWEN)
def test_four_bits_take_about_as_long_as_qwen_published(seq):
    model = replace(PRESETS["llama3-70b"], vocab=152_064, ffn_hidden=24_576, num_kv_heads=64, seq=seq)
    plan = Plan(micro_batch=1, num_microbatches=8, recompute="full")
    step = adapter_step(model, plan, replace(NODE, gpus_per_node=1), FSDP, rank=64, is_quantized=True)
    assert 0.85 * QWEN[seq] < step.seconds < 1.1 * QWEN[seq]
