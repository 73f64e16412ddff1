"""The predicted messages of a tensor-parallel step, against the papers' counts and against what live ranks logged."""

from dataclasses import replace

import pytest
import torch

from helpers.observe.comms import record_comms
from helpers.parallel.tensor_parallel import shard_tensor_parallel, vocab_parallel_cross_entropy
from helpers.predict.traffic.tensor_parallel import layer_payload_bytes, layer_sent_bytes, tensor_parallel_traffic
from helpers.specs import ModelSpec, Plan
from helpers.workloads import GPT, GPTConfig

TINY = ModelSpec(num_layers=2, hidden=32, num_heads=4, vocab=68, seq=32)
BATCH = 2
TOKENS = BATCH * TINY.seq
STREAM = 4 * TOKENS * TINY.hidden  # bytes of (b, s, h) in fp32


def of_layer(log, layer):
    return [event for event in log.events if f"blocks.{layer}." in event.caller]


def test_a_block_costs_two_all_reduces_forward_and_two_backward():
    log = tensor_parallel_traffic(TINY, Plan(tp=2), batch=BATCH)
    block = of_layer(log, 1)
    assert [(event.op, event.payload_bytes) for event in block] == 4 * [("all_reduce", STREAM)]
    assert [event.caller.endswith("forward") for event in block] == [True, True, False, False]
    assert sum(event.payload_bytes for event in block) == layer_payload_bytes(batch=BATCH, seq=32, hidden=32)


def test_sequence_parallel_sends_the_same_bytes_but_for_the_kept_inputs():
    log = tensor_parallel_traffic(TINY, Plan(tp=4, sequence_parallel=True), batch=BATCH)
    block = of_layer(log, 0)
    again = [event for event in block if "kept input" in event.caller]
    small = [event for event in block if event.op == "all_reduce"]
    rest = [event.sent_bytes() for event in block if event not in again + small]
    assert sum(rest) == layer_sent_bytes(batch=BATCH, seq=32, hidden=32, tp=4)
    assert [event.payload_bytes for event in again] == 2 * [STREAM // 4]
    assert sorted(event.shape for event in small) == [(2, 32), (2, 32), (32,), (32,)]  # norms, biases after rows


def test_one_rank_sends_nothing_and_micro_batches_send_it_again():
    assert tensor_parallel_traffic(TINY, Plan(), batch=BATCH).count() == 0
    plans = [Plan(tp=2, num_microbatches=number) for number in (1, 3)]
    once, thrice = (tensor_parallel_traffic(TINY, plan, batch=BATCH) for plan in plans)
    assert thrice.payload_bytes() == 3 * once.payload_bytes()


def test_recomputing_blocks_sends_their_forward_again():
    plain, again = (tensor_parallel_traffic(TINY, Plan(tp=2, recompute=r), batch=BATCH) for r in ("selective", "full"))
    assert plain == tensor_parallel_traffic(TINY, Plan(tp=2), batch=BATCH)
    assert again.payload_bytes() - plain.payload_bytes() == TINY.num_layers * 2 * STREAM


@pytest.mark.parametrize(
    ("model", "plan", "batch", "words"),
    [
        (TINY, Plan(tp=3), 2, "does not divide num_heads=4"),
        (TINY, Plan(tp=2), 0, "batch is 0"),
        (TINY, Plan(tp=2, pp=2), 2, "pp=2"),
        (replace(TINY, seq=31), Plan(tp=2, sequence_parallel=True), 2, "31 tokens"),
    ],
)
def test_bad_input_gets_a_sentence(model, plan, batch, words):
    with pytest.raises(ValueError, match=words):
        tensor_parallel_traffic(model, plan, batch=batch)


def logged(config, sequence_parallel, dtype):
    torch.manual_seed(0)
    model = shard_tensor_parallel(GPT(config).to(dtype), sequence_parallel=sequence_parallel)
    tokens = torch.randint(0, config.vocab_size, (BATCH, config.context))
    with record_comms() as recorder:
        vocab_parallel_cross_entropy(model(tokens), tokens).backward()
    return recorder.log


def messages(log):
    """As gloo is given them: one tensor may be laid out flat."""
    return [(event.op, event.payload_bytes, event.dtype, (event.reduce_op or "").lower()) for event in log.events]


@pytest.mark.parametrize("sequence_parallel", [False, True], ids=["TP", "SP"])
@pytest.mark.parametrize("num_ranks", [1, 2, 4])
@pytest.mark.parametrize(
    ("changes", "dtype"),
    [({}, torch.float32), ({"tied": False, "vocab_size": 67}, torch.float64), ({"num_kv_heads": 1}, torch.bfloat16)],
)
def test_live_ranks_log_what_was_predicted_message_by_message(ranks, num_ranks, sequence_parallel, changes, dtype):
    config = GPTConfig.tiny(**changes)
    model = replace(TINY, vocab=config.vocab_size, tied_embeddings=config.tied, num_kv_heads=config.num_kv_heads)
    plan = Plan(tp=num_ranks, sequence_parallel=sequence_parallel)
    predicted = tensor_parallel_traffic(model, plan, batch=BATCH, dtype_bytes=dtype.itemsize)
    for log in ranks[:num_ranks].run(logged, config, sequence_parallel, dtype):
        assert messages(log) == messages(predicted)
        assert log.payload_bytes() == predicted.payload_bytes()
