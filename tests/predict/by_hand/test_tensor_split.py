"""The explorer's numbers are those of the strategies on live ranks, and what it says is sent is what the papers say."""

import sys
from collections import Counter

import cloudpickle
import pytest
import torch

from helpers.observe.comms import record_comms
from helpers.predict.by_hand.tensor_split import (
    CUTS,
    FORWARD,
    INPUTS,
    RANKS,
    WEIGHTS,
    Operation,
    ShardedMatrix,
    flops,
    recorded,
    seconds,
    split,
)
from helpers.predict.traffic.tensor_parallel import tensor_parallel_traffic
from helpers.quantities import costs
from helpers.specs import LINKS, ModelSpec, Plan
from tools import record_explorers

cloudpickle.register_pickle_by_value(sys.modules[__name__])
cloudpickle.register_pickle_by_value(record_explorers)
TOKENS = 4


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize(("num_ranks", "sequence"), [(2, True), (4, False)])
def test_the_numbers_are_those_of_a_run(ranks, cut, num_ranks, sequence):
    full, partial, differences = record_explorers.record_layer(cut, num_ranks, sequence, ranks)
    known = recorded()[cut]
    assert record_explorers.full_numbers(full) == known["full"]
    assert record_explorers.partial_numbers(partial) == known["partial"][str(num_ranks)]
    assert all(difference < 1e-14 for difference in differences.values())
    assert all(each[sequence] < 1e-14 for each in known["differences"][str(num_ranks)].values())


def operations_on_a_rank(cut, sequence):
    with record_comms() as recorder:
        record_explorers.run_layer(cut, record_explorers.OnRanks(sequence))
    return [event.op for event in recorder.log.events]


@pytest.mark.parametrize("sequence", [False, True])
def test_the_collectives_are_those_of_a_run(ranks, sequence):
    for cut in CUTS:
        shown = [operation.op for each in split(cut, 2, sequence).values() for operation in each.operations]
        for sent in ranks[:2].run(operations_on_a_rank, cut, sequence):
            assert Counter(sent) == Counter(shown), cut


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("num_ranks", RANKS)
def test_partial_matrices_join_to_the_full_one(cut, num_ranks):
    for name, parts in recorded()[cut]["partial"][str(num_ranks)].items():
        stacked = torch.tensor(parts, dtype=torch.float64)
        whole = stacked.amax(0) if name == "m" else stacked.sum(0)
        expected = torch.tensor(recorded()[cut]["full"][name], dtype=torch.float64)
        torch.testing.assert_close(whole, expected, rtol=0, atol=1e-5)
        assert all(not torch.equal(part, expected) for part in stacked) or name == "m"


@pytest.mark.parametrize("ranks", RANKS)
def test_a_rank_holds_its_share_of_the_weights_and_no_number_of_another(ranks):
    for cut in CUTS:
        for rank, row in enumerate(split(cut, ranks)[FORWARD].by_rank):
            blocks = [item for item in row if isinstance(item, ShardedMatrix)]
            assert {owner for block in blocks for owner in block.ranks} <= {rank, None}
            for block in blocks:
                if block.name[0] in "ABEW":
                    whole = {"A": 12, "B": 12, "E": 24}.get(block.name[0], 24 if cut == "head" else 12)
                    assert block.shape[0] * block.shape[1] == whole // ranks, block.name


SENT = {  # without sequence parallelism, then with it: forward, gradients of inputs, of weights
    "mlp": ("Z | dX |", "gX sZ | gdZ sdX | gX"),
    "attention": ("Z | dX |", "gX sZ | gdZ sdX | gX"),
    "columns": ("| dX |", "gX | sdX | gX"),
    "rows": ("Z | |", "sZ | gdZ |"),
    "embedding": ("X |", "sX | gdX"),
    "head": ("m s+t | dX |", "gX m s+t | sdX | gX"),
}
OPS = {"all_reduce": "", "all_gather": "g", "reduce_scatter": "s"}


@pytest.mark.parametrize("cut", CUTS)
def test_what_is_sent(cut):
    for sequence, expected in enumerate(SENT[cut]):
        passes = split(cut, 4, bool(sequence)).values()
        said = [" ".join(OPS[o.op] + o.name.replace(" and ", "+") for o in one.operations) for one in passes]
        assert " | ".join(said).split() == expected.split()
        rows = [(one, row) for one in passes for row in one.by_rank]
        assert all([item for item in row if isinstance(item, Operation)] == list(one.operations) for one, row in rows)


def test_sequence_parallelism_sends_as_much_forward_and_one_gather_more_in_all():
    """Korthikanti et al. 2022, section 4.2.2: a ring's all-reduce is a reduce-scatter and an all-gather."""
    plain, cut = (split("mlp", 4, sequence) for sequence in (False, True))
    sent = [
        {
            name: sum(costs.sent_bytes(o.op, o.num_bytes(8192, 4096), 4) for o in each.operations)
            for name, each in one.items()
        }
        for one in (plain, cut)
    ]
    assert sent[0][FORWARD] == sent[1][FORWARD] == 1.5 * 8192 * 4096 * 2
    assert sent[0][INPUTS] == sent[1][INPUTS]
    assert sent[0][WEIGHTS] == 0 and sent[1][WEIGHTS] == sent[1][FORWARD] / 2


@pytest.mark.parametrize("sequence", [False, True])
def test_a_block_sends_what_the_prediction_of_a_whole_step_says(sequence):
    """A second block adds the operations of one attention and one MLP."""
    plan = Plan(tp=2, sequence_parallel=sequence)
    one, two = (
        tensor_parallel_traffic(ModelSpec(num_layers=n, hidden=8, num_heads=2, vocab=16, seq=4), plan, batch=1)
        for n in (1, 2)
    )
    parts = [each.operations for cut in ("attention", "mlp") for each in split(cut, 2, sequence).values()]
    shown = Counter(operation.op for operations in parts for operation in operations)
    for op in ("all_gather", "reduce_scatter") if sequence else ("all_reduce",):
        assert two.count(op) - one.count(op) == shown[op] > 0


def test_seconds_and_flops_of_a_layer_of_real_size():
    passes, link = split("mlp", 4), LINKS["NVLink 4"]
    assert seconds(passes[FORWARD], 8192, 4096, link) == costs.seconds("all_reduce", 8192 * 4096 * 2, 4, link)
    assert seconds(passes[WEIGHTS], 8192, 4096, link) == 0
    assert flops("mlp", 4, 8192, 4096) == 2 * 8192 * 8 * 4096**2 / 4
    assert flops("head", 2, 10, 64) == 10 * 64 * 128_256 and flops("embedding", 2, 10, 64) == 0


def test_the_loss_costs_three_numbers_a_token():
    """12 bytes in fp32, whatever the vocabulary."""
    operations = split("head", 2)[FORWARD].operations
    assert sum(one.num_bytes(1000, 4096) for one in operations) == 12 * 1000
    assert sum(one.count for one in operations) == 3 * TOKENS


def test_bad_input_gets_a_sentence():
    with pytest.raises(ValueError, match="no cut 'diagonal'; known are mlp, columns"):
        split("diagonal", 2)
    with pytest.raises(ValueError, match="3 ranks cannot cut a layer whose widths are 4 and 8; take 2 or 4"):
        split("mlp", 3)
