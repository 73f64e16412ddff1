"""The predicted messages of ZeRO's stages, against the closed forms and numbers worked out by hand."""

from collections import Counter
from contextlib import nullcontext
from math import inf

import pytest
import torch

from helpers.observe.comms import record_comms
from helpers.parallel.shared.recompute import recompute_blocks
from helpers.parallel.zero import Zero1, Zero2, Zero3
from helpers.predict.traffic.zero import (
    data_parallel_share,
    padding_elements,
    stage1_share,
    stage2_share,
    stage3_share,
    tokens_where_tp_sends_as_much,
    zero_traffic,
)
from helpers.workloads import GPT, MLP, GPTConfig, token_loss

EVEN = [4000, 400, 8000, 400]  # every unit divides by 2 and 4: nothing is padded
P = 4 * sum(EVEN)


def sent(log):
    return log.sent_bytes() / P


@pytest.mark.parametrize("world_size", [2, 4])
def test_on_a_ring_the_stages_send_what_the_closed_forms_say(world_size):
    n = dict(world_size=world_size)
    assert data_parallel_share(world_size) == 2 * (world_size - 1) / world_size
    assert sent(zero_traffic(EVEN, stage=1, **n)) == stage1_share(world_size)
    assert sent(zero_traffic(EVEN, stage=1, reduce="all_reduce", **n)) == stage1_share(world_size, reduce="all_reduce")
    assert sent(zero_traffic(EVEN, stage=2, **n)) == stage2_share(world_size) == data_parallel_share(world_size)
    assert sent(zero_traffic(EVEN, stage=3, **n)) == stage3_share(world_size) == 1.5 * data_parallel_share(world_size)


def test_micro_batches_cost_stage_2_gradients_again_and_stage_3_everything_again():
    n = dict(world_size=4, num_microbatches=3)
    assert sent(zero_traffic(EVEN, stage=1, **n)) == 2 * 3 / 4
    assert sent(zero_traffic(EVEN, stage=2, **n)) == stage2_share(4, num_microbatches=3) == 4 * 3 / 4
    assert sent(zero_traffic(EVEN, stage=3, **n)) == stage3_share(4, num_microbatches=3) == 9 * 3 / 4


def test_no_sync_saves_all_reduce_scatters_but_one():
    n = dict(world_size=4, num_microbatches=3, no_sync=True)
    assert sent(zero_traffic(EVEN, stage=2, **n)) == stage2_share(4, num_microbatches=3, no_sync=True) == 2 * 3 / 4
    assert sent(zero_traffic(EVEN, stage=3, **n)) == stage3_share(4, num_microbatches=3, no_sync=True) == 7 * 3 / 4


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


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (dict(stage=0), "must be 1, 2 or 3"),
        (dict(stage=2, reduce="all_reduce"), "stage 2 with reduce='all_reduce'"),
        (dict(stage=1, num_microbatches=0), "num_microbatches is 0"),
        (dict(stage=3, units=[[0, 1], [1]]), "must be in one unit, once"),
    ],
)
def test_bad_input_gets_a_sentence(options, words):
    with pytest.raises(ValueError, match=words):
        zero_traffic([10, 20, 30], world_size=2, **options)


def train_mlp(stage, options, num_microbatches, no_sync):
    """One update of an MLP whose sizes nothing divides; the log, and elements of each parameter."""
    torch.manual_seed(0)
    model = MLP([7, 13, 5])
    sizes = [parameter.numel() for parameter in model.parameters()]
    make = {1: lambda **o: Zero1(model.parameters(), torch.optim.SGD, lr=0.1, **o),
            2: lambda **o: Zero2(model, torch.optim.SGD, lr=0.1, **o)}  # fmt: skip
    if stage == 3:
        model = sharded = Zero3(model, **options)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    else:
        sharded = optimizer = make[stage](**options)
    with record_comms() as recorder:
        for j in range(num_microbatches):
            with sharded.no_sync() if (no_sync or stage == 1) and j < num_microbatches - 1 else nullcontext():
                model(torch.ones(4, 7)).square().mean().backward()
        optimizer.step()
    return recorder.log, sizes


def messages(log):
    """Without their order: those under way at the same time may end in any."""
    return Counter((event.op, event.payload_bytes, event.dtype) for event in log.events)


CASES = {
    "1": (1, {}, {}),
    "1, all_reduce": (1, {"reduce": "all_reduce"}, {"reduce": "all_reduce"}),
    "1, in buckets": (1, {"bucket_bytes": 300}, {"bucket_bytes": 300}),
    "1, in one": (1, {"bucket_bytes": inf}, {"bucket_bytes": inf}),
    "1, 3 micro-batches": (1, {}, {"num_microbatches": 3}),
    "2": (2, {"bucket_bytes": 300}, {"bucket_bytes": 300}),
    "2, 3 micro-batches": (2, {}, {"num_microbatches": 3}),
    "2, no_sync": (2, {}, {"num_microbatches": 3, "no_sync": True}),
    "3": (3, {}, {}),
    "3, prefetch": (3, {"prefetch": 0}, {}),
    "3, keep": (3, {"keep_parameters": True}, {"keep_parameters": True}),
    "3, 3 micro-batches": (3, {}, {"num_microbatches": 3}),
    "3, no_sync": (3, {}, {"num_microbatches": 3, "no_sync": True}),
    "3, 16 bits": (3, {"param_dtype": torch.bfloat16, "reduce_dtype": torch.float32},
                   {"dtype_bytes": 2, "reduce_dtype_bytes": 4}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("num_ranks", [2, 3])
def test_live_ranks_log_what_was_predicted_message_by_message(ranks, num_ranks, case):
    stage, options, more = CASES[case]
    units = {"units": [[0, 1], [2, 3]]} if stage == 3 else {}
    results = ranks[:num_ranks].run(train_mlp, stage, options, more.get("num_microbatches", 1), more.get("no_sync"))
    for log, sizes in results:
        assert messages(log) == messages(zero_traffic(sizes, stage=stage, world_size=num_ranks, **units, **more))


def train_gpt(recompute):
    torch.manual_seed(0)
    config = GPTConfig.tiny()
    plain = GPT(config)
    blocks = sum(parameter.numel() for parameter in plain.blocks[0].parameters())
    rest = sum(parameter.numel() for parameter in plain.parameters()) - config.num_layers * blocks
    if recompute:
        recompute_blocks(plain, mode="full")
    model = Zero3(plain)
    tokens = torch.randint(0, config.vocab_size, (2, config.context))
    logs = []
    for _ in range(2):  # the first pass finds the order, the second fetches ahead
        with record_comms() as recorder:
            token_loss(model(tokens), tokens).backward()
        logs.append(recorder.log)
    return logs, [rest] + config.num_layers * [blocks]


@pytest.mark.parametrize("recompute", [False, True])
def test_a_gpt_in_units_and_its_recomputation_gathers_nothing_more(ranks, recompute):
    for logs, units in ranks[:2].run(train_gpt, recompute):
        predicted = messages(zero_traffic(units, stage=3, world_size=2))
        assert [messages(log) for log in logs] == [predicted, predicted]


def test_zero3_and_tensor_parallelism_send_as_much_where_the_formula_says():
    hidden = 64
    layer, tokens = 12 * hidden**2, int(tokens_where_tp_sends_as_much(hidden))
    gathered = zero_traffic([layer], stage=3, world_size=4)
    sent = sum(event.sent_bytes() for event in gathered.events)
    assert sent == 4 * data_parallel_share(4) * 4 * tokens * hidden  # 4 all-reduces of fp32 activations
