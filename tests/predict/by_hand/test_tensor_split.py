"""What the ranks compute from their parts is what torch's autograd computes of the whole, and what they send is what
the papers say."""

from collections import Counter

import pytest
import torch

from helpers.predict.by_hand.small_matrices import Operation, ShardedMatrix, stack
from helpers.predict.by_hand.tensor_split import (
    ARRIVES,
    ARRIVES_WIDE,
    CUTS,
    FORWARD,
    INPUTS,
    KEY,
    QUERY,
    RANKS,
    TABLE,
    TOKEN_IDS,
    VALUE,
    VOCABULARY,
    WEIGHTS,
    A,
    B,
    G,
    X,
    flops,
    seconds,
    split,
)
from helpers.predict.traffic.tensor_parallel import tensor_parallel_traffic
from helpers.quantities import costs
from helpers.specs import LINKS, ModelSpec, Plan

CASES = [(cut, ranks, sequence) for cut in CUTS for ranks in RANKS for sequence in (False, True)]


def leaf(numbers):
    return torch.tensor(numbers, dtype=torch.float64).requires_grad_()


def attention(x, query, key, value, output):
    """Heads of one number each, causal."""
    heads = ((x @ weight).T.unsqueeze(-1) for weight in (query, key, value))
    attended = torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=True, scale=1.0)
    return attended.squeeze(-1).T @ output


def by_torch(cut):
    """Every result of a cut, by name, from autograd on whole matrices."""
    names = {
        "mlp": ({"X": X, "A": A, "B": B}, lambda x, a, b: (x @ a).relu() @ b, "Z", ARRIVES),
        "columns": ({"X": X, "A": A}, torch.matmul, "Y", ARRIVES_WIDE),
        "rows": ({"G": G, "B": B}, torch.matmul, "Z", ARRIVES),
        "attention": ({"X": X, "Wq": QUERY, "Wk": KEY, "Wv": VALUE, "Wo": B}, attention, "Z", ARRIVES),
        "embedding": ({"E": TABLE}, lambda e: torch.nn.functional.embedding(torch.tensor(TOKEN_IDS), e), "X", ARRIVES),
    }
    inputs, act, name, arrives = names[cut]
    leaves = {key: leaf(value) for key, value in inputs.items()}
    output = act(*leaves.values())
    output.backward(torch.tensor(arrives, dtype=torch.float64))
    return {name: output.detach()} | {f"d{key}": value.grad for key, value in leaves.items()}


def head_by_torch():
    x, table = leaf(X), leaf(TABLE)
    logits = x @ table.T
    losses = torch.nn.functional.cross_entropy(logits, torch.tensor(TOKEN_IDS), reduction="none")
    losses.mean().backward()
    return {"L": logits.detach(), "loss": losses.detach().unsqueeze(1), "dX": x.grad, "dW": table.grad.T}


@pytest.mark.parametrize(("cut", "ranks", "sequence"), CASES)
def test_what_the_ranks_have_together_is_what_autograd_says_of_the_whole(cut, ranks, sequence):
    known = head_by_torch() if cut == "head" else by_torch(cut)
    seen = set()
    for one in split(cut, ranks, sequence).values():
        assert one.difference < 1e-14
        for name, expected in one.expected.items():
            joined = torch.tensor(one.joined(name), dtype=torch.float64)
            torch.testing.assert_close(joined, known[name], rtol=1e-12, atol=1e-14)
            torch.testing.assert_close(torch.tensor(expected, dtype=torch.float64), known[name], rtol=1e-12, atol=1e-14)
            seen.add(name)
    assert seen == set(known)


@pytest.mark.parametrize(("cut", "ranks", "sequence"), CASES)
def test_each_row_ends_with_the_result_whole_or_in_parts(cut, ranks, sequence):
    """What stands last in the rows of the ranks is what stands last in the row of one process."""
    for name, one in split(cut, ranks, sequence).items():
        ends = [row[-1] for row in one.by_rank]
        whole = one.one_process[-1].values
        if ends[0].shape == one.one_process[-1].shape:  # each rank has all of it
            assert all(end.values == ends[0].values for end in ends)
            joined = ends[0].values
        else:
            by = "rows" if ends[0].shape[0] < len(whole) else "columns"
            joined = stack([end.values for end in ends], by)
        assert torch.tensor(joined).sub(torch.tensor(whole)).abs().max() < 1e-6, name


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


def test_a_term_alone_is_not_the_result():
    """Else adding the terms up would prove nothing."""
    for cut in ("mlp", "rows", "attention", "embedding"):
        one = split(cut, 2)[FORWARD]
        (name,) = one.expected
        assert all(block.partial and block.values != one.expected[name] for block in one.results[name])


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
        assert all(
            [item for item in row if isinstance(item, Operation)] == list(one.operations)
            for one in passes
            for row in one.by_rank
        )


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
    assert flops("head", 2, 10, 64) == 2 * 10 * 64 * VOCABULARY / 2 and flops("embedding", 2, 10, 64) == 0


def test_the_loss_costs_three_numbers_a_token():
    """12 bytes in fp32, whatever the vocabulary."""
    operations = split("head", 2)[FORWARD].operations
    assert sum(one.num_bytes(1000, 4096) for one in operations) == 12 * 1000
    assert sum(one.count for one in operations) == 3 * len(TOKEN_IDS)


def test_bad_input_gets_a_sentence():
    with pytest.raises(ValueError, match="no cut 'diagonal'; known are mlp, columns"):
        split("diagonal", 2)
    with pytest.raises(ValueError, match="3 ranks cannot cut a layer whose widths are 4 and 8; take 2 or 4"):
        split("mlp", 3)
