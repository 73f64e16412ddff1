"""A cut model equals one process: losses, gradients and weights, on every rank, in float64.

Five steps for a GPT, with dropout and without, and on a mesh; three for each of its other kinds.
"""

from functools import lru_cache

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from helpers.devices import computing_device
from helpers.observe.comms import record_comms
from helpers.observe.equality import assert_equal
from helpers.parallel.ddp import DistributedDataParallel
from helpers.parallel.shared.autocast import autocast as our_autocast
from helpers.parallel.shared.clip import clip_grad_norm_
from helpers.parallel.shared.placement import placements_of
from helpers.parallel.shared.recompute import recompute_blocks
from helpers.parallel.tensor_parallel import (
    ColumnParallelLinear,
    RowParallelLinear,
    gather_full_state,
    shard_tensor_parallel,
    vocab_parallel_cross_entropy,
)
from helpers.ranks import RankError
from helpers.workloads import GPT, MLP, GPTConfig, token_loss

STEPS, ROWS, TOKENS, VOCAB = 5, 4, 12, 50  # 50 needs padding on 3 and on 4 ranks
KINDS = {
    "tied": {},
    "untied": dict(tied=False),
    "materialized": dict(attention="materialized"),
    "dropout": dict(dropout=0.2),
    "one key and value head": dict(num_kv_heads=1),
    "two key and value heads": dict(num_kv_heads=2),
    "six key and value heads": dict(num_kv_heads=6),
}
ZERO_IN_THEORY = {"*key.bias": 1e-9, "*key.bias.grad": 1e-12}


def build(kind="tied", seed=0, **changes):
    torch.manual_seed(seed)
    if kind.startswith("mlp"):
        return MLP({"mlp of 2": [8, 12, 10], "mlp of 3": [8, 24, 12, 10]}[kind]).double()
    shape = dict(vocab_size=VOCAB, context=TOKENS, hidden=24, num_heads=12)
    return GPT(GPTConfig.tiny(**shape | KINDS.get(kind, {}) | changes)).double()


def batches(kind, steps=STEPS):
    generator = torch.Generator().manual_seed(3)
    if kind.startswith("mlp"):
        x = torch.randn(steps, ROWS, 8, generator=generator, dtype=torch.float64)
        return list(zip(x, torch.randint(0, 10, (steps, ROWS), generator=generator), strict=True))
    tokens = torch.randint(0, VOCAB, (steps, ROWS, TOKENS + 1), generator=generator)
    targets = tokens[..., 1:].masked_fill(torch.rand(tokens[..., 1:].shape, generator=generator) < 0.1, -100)
    return list(zip(tokens[..., :-1], targets, strict=True))


def whole_gradients(model):
    """Name -> the whole gradient, of one message with all parts; where ranks hold copies, these must be the same."""
    owners = [(path, module, leaf) for path, module in model.named_modules() for leaf in module._parameters]
    own = {f"{path}.{leaf}.grad": (module, leaf, getattr(module, leaf)) for path, module, leaf in owners}
    own = {name: found for name, found in own.items() if found[2] is not None}
    group = model.token_embedding.group if isinstance(model, GPT) else None
    flat = torch.cat([parameter.grad.flatten() for *_, parameter in own.values()])
    theirs = [torch.empty_like(flat) for _ in range(dist.get_world_size(group))]
    dist.all_gather(theirs, flat, group=group)
    split = [each.split([parameter.numel() for *_, parameter in own.values()]) for each in theirs]
    gradients = {}
    for (name, (module, leaf, parameter)), parts in zip(own.items(), zip(*split, strict=True), strict=True):
        shards = [part.view_as(parameter) for part in parts]
        for rank, shard in enumerate(shards):
            copies = placements_of(parameter)["tp"].copies
            assert torch.equal(shard, shards[rank - rank % copies]), f"{name} parts on rank {rank}"
        split = getattr(module, "splits", {}).get(leaf)
        gradients[name] = shards[0].clone() if split is None else split.join(shards)
    return gradients


def num_steps(kind):
    return STEPS if kind in ("tied", "dropout") else 3


def train(model, kind, loss_of, gradients, state, share=slice(None), inner=None):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-8, foreach=False)
    torch.manual_seed(5)  # of the dropout
    history = {}
    for step, (x, y) in enumerate(batches(kind, num_steps(kind))):
        optimizer.zero_grad()
        loss = loss_of(model(x[share]), y[share])
        loss.backward()
        if step in (0, num_steps(kind) - 1):
            history |= {f"{step} {name}": gradient for name, gradient in gradients(inner or model).items()}
        optimizer.step()
        history[f"{step} loss"] = loss.detach()
    return history | state(inner or model)


def plain_loss(kind):
    return nn.functional.cross_entropy if kind.startswith("mlp") else token_loss


def one_process(kind):
    def gradients(model):
        return {f"{name}.grad": p.grad.clone() for name, p in model.named_parameters()}

    return train(build(kind), kind, plain_loss(kind), gradients, nn.Module.state_dict)


expected = lru_cache(one_process)


def split(kind, sequence_parallel=False):
    model = shard_tensor_parallel(build(kind), None, sequence_parallel=sequence_parallel)
    loss = plain_loss(kind) if kind.startswith("mlp") else vocab_parallel_cross_entropy
    found = train(model, kind, loss, whole_gradients, gather_full_state)
    return drop_tied_gradient(found, model)


def plain_or_sharded(sharded, model, **options):
    """The model and its loss."""
    if not sharded:
        return model, token_loss
    return shard_tensor_parallel(model, **options), vocab_parallel_cross_entropy


def drop_tied_gradient(found, model):
    """named_parameters of the plain model names a tied one once."""
    tied = hasattr(model, "head") and model.head.weight is model.token_embedding.weight
    return {name: t for name, t in found.items() if not (tied and name.endswith("head.weight.grad"))}


@pytest.mark.parametrize(
    ("kind", "num_ranks", "sequence_parallel"),
    [
        *(("tied", num_ranks, flag) for num_ranks in (1, 2, 3, 4) for flag in (False, True)),
        *(("dropout", 3, flag) for flag in (False, True)),
        ("untied", 3, True),
        ("materialized", 2, True),
        # Key and value heads as many as ranks, fewer, more.
        ("one key and value head", 3, True),
        ("two key and value heads", 2, False),
        ("two key and value heads", 4, False),
        ("two key and value heads", 4, True),
        ("six key and value heads", 3, False),
    ],
)
def test_every_kind_of_gpt_equals_one_process(ranks, kind, num_ranks, sequence_parallel):
    results = ranks[:num_ranks].run(split, kind, sequence_parallel=sequence_parallel)
    assert_equal(expected(kind), results, atol=ZERO_IN_THEORY)


@pytest.mark.parametrize(("kind", "num_ranks"), [("mlp of 2", 3), ("mlp of 3", 4)])
def test_an_mlp_equals_one_process(ranks, kind, num_ranks):
    """Also one whose last layer has no partner. It has no tokens to share."""
    assert_equal(expected(kind), ranks[:num_ranks].run(split, kind))
    with pytest.raises(RankError, match="the plan calls nothing 'sequence'"):
        ranks[:num_ranks].run(split, kind, sequence_parallel=True)


def on_a_mesh(sequence_parallel):
    mesh = init_device_mesh(computing_device().type, (2, 2), mesh_dim_names=("dp", "tp"))
    tp, dp = mesh["tp"].get_group(), mesh["dp"].get_group()
    sharded = shard_tensor_parallel(build(), tp, sequence_parallel=sequence_parallel)
    model = DistributedDataParallel(sharded, dp, first_bucket_mb=0.01)  # several buckets leave while backward runs
    share = slice(2 * dp.rank(), 2 * dp.rank() + 2)

    def loss_of(logits, targets):
        dist.all_reduce(count := (targets != -100).sum(), group=dp)
        loss = vocab_parallel_cross_entropy(logits, targets, tp, reduction="sum")
        return loss * 2 / count  # DDP averages over 2: so the mean over all rows' targets

    found = train(model, "tied", loss_of, whole_gradients, gather_full_state, share=share, inner=sharded)
    for step in range(STEPS):
        dist.all_reduce(found[f"{step} loss"], group=dp)
        found[f"{step} loss"] /= 2
    return drop_tied_gradient(found, sharded)


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_equals_one_process_on_a_mesh_with_data_parallelism(ranks, sequence_parallel):
    assert_equal(expected("tied"), ranks.run(on_a_mesh, sequence_parallel), atol=ZERO_IN_THEORY)


def test_float32_equals_one_process_to_its_rounding(ranks):
    def trained(sharded):
        model, loss_of = plain_or_sharded(sharded, build().float(), sequence_parallel=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x, y in batches("tied"):
            optimizer.zero_grad()
            loss_of(model(x), y).backward()
            optimizer.step()
        return gather_full_state(model)

    assert_equal(trained(False), ranks[:2].run(trained, True), atol={"*key.bias": 1e-7})


def test_accumulated_gradients_are_summed_over_ranks_once_each(ranks):
    """A hook on the accumulated gradient of a norm would all-reduce the first micro-batch's twice."""

    def accumulated(sharded):
        model, loss_of = plain_or_sharded(sharded, build(), sequence_parallel=True)
        for x, y in batches("tied", 3):
            (loss_of(model(x), y) / 3).backward()
        if sharded:
            return drop_tied_gradient(whole_gradients(model), model)
        return {f"{name}.grad": p.grad for name, p in model.named_parameters()}

    assert_equal(accumulated(False), ranks[:2].run(accumulated, True), atol=ZERO_IN_THEORY)


@pytest.mark.parametrize(("mode", "seed"), [("full", None), ("selective", 7)])
def test_recomputed_blocks_draw_the_same_masks_again(ranks, mode, seed):
    def gradients(recomputed):
        model = shard_tensor_parallel(build("dropout"), sequence_parallel=True, seed=seed)
        if recomputed:
            recompute_blocks(model, mode=mode)
        torch.manual_seed(5)
        x, y = batches("tied", 1)[0]
        vocab_parallel_cross_entropy(model(x), y).backward()
        return {name: p.grad for name, p in model.named_parameters()}

    for kept, again in zip(ranks[:2].run(gradients, False), ranks[:2].run(gradients, True), strict=True):
        assert_equal(kept, again, atol=ZERO_IN_THEORY)


def test_a_frozen_part_gets_no_gradient_and_changes_nothing_else(ranks):
    def gradients(sharded):
        model = build("untied")
        for name, parameter in model.named_parameters():
            parameter.requires_grad_("embedding" not in name and "query" not in name and "blocks.0" not in name)
        model, loss_of = plain_or_sharded(sharded, model)
        x, y = batches("tied", 1)[0]
        loss_of(model(x), y).backward()
        return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}

    plain, found = gradients(False), ranks[:2].run(gradients, True)
    assert all(rank.keys() == plain.keys() for rank in found)
    assert_equal({"n": plain["final_norm.weight"]}, [{"n": rank["final_norm.weight"]} for rank in found])


# --- what is sent


def ops_of_a_step(sequence_parallel=False, **changes):
    model = shard_tensor_parallel(build(**changes), sequence_parallel=sequence_parallel)
    x, y = batches("tied", 1)[0]
    with record_comms() as forward:
        loss = vocab_parallel_cross_entropy(model(x), y)
    with record_comms() as backward:
        loss.backward()
    return [[event.op for event in recorder.log.events] for recorder in (forward, backward)]


def test_a_layer_costs_two_all_reduces_each_way(ranks):
    for layers in (1, 2, 3):
        forward, backward = ranks[:2].run(ops_of_a_step, num_layers=layers)[0]
        assert forward == ["all_reduce"] * (1 + 2 * layers + 2)  # the embedding; the layers; the loss's two
        assert backward == ["all_reduce"] * (1 + 2 * layers)  # the head's input; the layers


def test_sequence_parallelism_gathers_its_kept_inputs_again_in_backward(ranks):
    for layers in (1, 2):
        forward, backward = ranks[:2].run(ops_of_a_step, sequence_parallel=True, num_layers=layers)[0]
        assert forward.count("all_gather") == 2 * layers + 1  # before attention, feed-forward and the head
        assert forward.count("reduce_scatter") == 2 * layers + 1  # after them, and the embedding
        again, gradients_of_rows, positions = 2 * layers + 1, 2 * layers + 1, 1
        assert backward.count("all_gather") == again + gradients_of_rows + positions
        assert backward.count("reduce_scatter") == 2 * layers + 1


def test_sequence_parallelism_keeps_parts_of_the_inputs(ranks):
    def saved_shapes(sequence_parallel):
        layer = ColumnParallelLinear(nn.Linear(8, 6), sequence_dim=1 if sequence_parallel else None)
        kept = []
        x = torch.randn(2, 6 if sequence_parallel else 12, 8, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(tuple(t.shape)) or t, lambda t: t):
            layer(x)
        return kept

    assert ranks[:2].run(saved_shapes, False)[0] == [(2, 12, 8), (3, 8)]
    assert ranks[:2].run(saved_shapes, True)[0] == [(2, 6, 8), (3, 8)]


def test_the_global_norm_counts_what_is_whole_once(ranks):
    def norms(kind):
        model = shard_tensor_parallel(build(kind), sequence_parallel=True)
        x, y = batches(kind, 1)[0]
        vocab_parallel_cross_entropy(model(x), y).backward()
        naive = sum((p.grad**2).sum() for p in model.parameters())
        dist.all_reduce(naive)  # the bug: norms, biases and positions count once a rank
        norm = clip_grad_norm_(model.parameters(), 0.1)
        largest = clip_grad_norm_(model.parameters(), 1e9, torch.inf, group=dist.group.WORLD)  # the same group
        return norm, naive.sqrt(), largest, drop_tied_gradient(whole_gradients(model), model)

    for kind in ("tied", "two key and value heads"):
        model = build(kind)
        x, y = batches(kind, 1)[0]
        token_loss(model(x), y).backward()
        expected = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        largest = max(p.grad.abs().max() for p in model.parameters())
        clipped = {f"{name}.grad": p.grad for name, p in model.named_parameters()}
        results = ranks.run(norms, kind)
        assert_equal({"norm": expected, "largest": largest}, [{"norm": r[0], "largest": r[2]} for r in results])
        assert_equal(clipped, [r[3] for r in results], atol=ZERO_IN_THEORY)
        assert all(r[1] > 1.1 * expected for r in results)


# --- layers by themselves


def test_the_bias_is_added_once(ranks):
    def zero_weights():
        linear = nn.Linear(8, 4)
        with torch.no_grad():
            linear.weight.zero_()
            linear.bias.fill_(1.0)
        return RowParallelLinear(linear)(torch.ones(2, 8 // dist.get_world_size()))

    assert all(torch.equal(y, torch.ones(2, 4)) for y in ranks.run(zero_weights))


class FusedAttention(nn.Module):
    def __init__(self, hidden=24, head_size=4):
        super().__init__()
        self.head_size = head_size
        self.qkv, self.projection = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)

    def forward(self, x):
        parts = (part.unflatten(-1, (-1, self.head_size)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        return self.projection(nn.functional.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2))


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_a_plan_cuts_a_model_of_ones_own_with_a_fused_qkv(ranks, num_ranks):
    def output(sharded):
        torch.manual_seed(0)
        model, x = nn.Sequential(FusedAttention()).double(), torch.randn(2, 5, 24, dtype=torch.float64)
        if sharded:
            shard_tensor_parallel(model, plan={"0.qkv": "fused_qkv", "0.projection": "row"})
        y = model(x.requires_grad_())
        y.square().sum().backward()
        return {"y": y.detach(), "dx": x.grad, **gather_full_state(model)}

    assert_equal(output(False), ranks[:num_ranks].run(output, True))


@pytest.mark.parametrize("region", [torch.autocast, our_autocast])
def test_autocast_reaches_cut_layers(ranks, region):
    def step(sharded):
        model, loss_of = plain_or_sharded(sharded, build().float(), sequence_parallel=True)
        x, y = batches("tied", 1)[0]
        with region(device_type=computing_device().type, dtype=torch.bfloat16):
            logits = model(x)
            loss = loss_of(logits, y)
        loss.backward()
        norms = {name: p.grad for name, p in model.named_parameters() if name.endswith("norm.weight")}
        return logits.dtype, {"loss": loss.detach().float()} | norms

    dtype, expected = step(False)
    for found_dtype, found in ranks[:2].run(step, True):
        assert found_dtype == dtype == torch.bfloat16
        assert_equal(expected, found, rtol=0.05)


# --- checkpoints


def test_a_checkpoint_of_one_process_comes_back_whole(ranks):
    def there_and_back():
        before = build("two key and value heads").state_dict()
        model = build("two key and value heads", seed=1)
        model.load_state_dict(before)
        after = gather_full_state(shard_tensor_parallel(model))
        return list(after) == list(before), after

    expected = build("two key and value heads").state_dict()
    for same_order, after in ranks.run(there_and_back):
        assert same_order
        assert all(torch.equal(after[name], tensor) for name, tensor in expected.items())


def test_tied_embeddings_stay_one_parameter(ranks):
    def tied():
        model = shard_tensor_parallel(build())
        return model.head.weight is model.token_embedding.weight, sum(p.numel() for p in model.parameters())

    config = build().config
    whole = 2 * 6 * 24 + 24 * 12 + 2 * 24  # norms and biases after rows; positions; the final norm
    padded = (config.num_parameters - whole - VOCAB * 24) // 3 + 17 * 24  # 50 rows on 3 ranks: 17 each
    assert ranks[:3].run(tied) == [(True, whole + padded)] * 3


# --- bad input


def sharded_with(plan=None, group=None, seed=0, kind="tied", twice=False, sequence_parallel=False, **changes):
    model = build(kind, seed=seed, **changes)
    before = {name: parameter.shape for name, parameter in model.named_parameters()}
    try:
        shard_tensor_parallel(model, group, plan, sequence_parallel)
        if twice:
            shard_tensor_parallel(model, group, plan)
    except ValueError:
        assert {name: parameter.shape for name, parameter in model.named_parameters()} == before  # as it was
        raise


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (dict(plan={"blocks.*.atention.query": "column"}), "closest are blocks.*.attention.query"),
        (dict(plan={"final_norm": "column"}), "'column' shards a Linear, but final_norm is a LayerNorm"),
        (dict(plan={"final_norm": "colum"}), "the plan says 'colum' for 'final_norm'; it knows column, row"),
        (dict(plan={"token_embedding": "vocabulary"}), "token_embedding.weight and head.weight are one parameter"),
        (dict(plan={"token_embedding": "vocabulary", "head": "row"}), "give both the same word"),
        (dict(num_heads=2), "blocks.0.attention.projection has 2 heads of 12, which 4 ranks cannot share"),
        (dict(num_heads=6), "The nearest numbers of heads that work are 4 or 8"),
        (dict(num_kv_heads=3), "blocks.0.attention.key has 3 heads of 2, which 4 ranks cannot share"),
        (dict(plan={"blocks.*.feed_forward.up": "column"}, hidden=12, kind="mlp of 2"), "closest are layers"),
        (dict(kind="mlp of 2", plan={"layers.1": "column"}), "nearest sizes that work are 8 or 12"),
        (dict(twice=True), "RuntimeError: this GPT is already sharded"),
    ],
)
def test_bad_plans_and_sizes_get_a_sentence_and_leave_the_model_as_it_was(ranks, given, sentence):
    with pytest.raises(RankError) as error:
        ranks.run(sharded_with, **given)
    assert sentence in str(error.value).replace("raised RuntimeError", "RuntimeError").replace("\n", " ")


def test_other_seeds_on_the_ranks_are_found(ranks):
    with pytest.raises(RankError, match="rank 1 holds another token_embedding.weight than rank 0"):
        ranks[:2].run(lambda: sharded_with(seed=dist.get_rank()))

    def other_generators(kind):
        model = build(kind)
        torch.manual_seed(dist.get_rank())
        shard_tensor_parallel(model)

    with pytest.raises(RankError, match="the random generators of rank 0 and rank 1 differ"):
        ranks[:2].run(other_generators, "dropout")
    ranks[:2].run(other_generators, "tied")  # without dropout nothing is drawn


def test_tokens_that_the_ranks_cannot_share_get_a_sentence(ranks):
    def forward():
        shard_tensor_parallel(build(), sequence_parallel=True)(torch.zeros(2, 10, dtype=torch.int64))

    with pytest.raises(RankError, match="it is 10 long, the nearest that works is 8 or 12"):
        ranks.run(forward)


def test_a_model_without_a_plan_gets_a_sentence(ranks):
    with pytest.raises(RankError, match="there is no plan for this Linear"):
        ranks[:2].run(lambda: shard_tensor_parallel(nn.Linear(2, 2)))
