"""Recomputation equals the plain run to the bit, keeps less, and says what is wrong in a sentence."""

import copy
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils import checkpoint as torchs

from helpers.observe.equality import assert_equal, state_of
from helpers.parallel.shared.autocast import autocast
from helpers.parallel.shared.recompute import checkpoint, checkpoint_sequential, recompute_blocks
from helpers.parallel.shared.virtual_devices import VirtualDevices
from helpers.workloads import GPT, GPTConfig, token_loss

TORCHS = {
    "torch, reentrant": partial(torchs.checkpoint, use_reentrant=True),
    "torch, not reentrant": partial(torchs.checkpoint, use_reentrant=False),
}
RUNS = {"plain": lambda function, *args: function(*args), "ours": checkpoint, **TORCHS}


def piece(dtype=torch.float64, dropout=0.3):
    """A few layers with dropout, the same ones on each call."""
    torch.manual_seed(0)
    layers = [nn.Linear(6, 12), nn.GELU(), nn.Dropout(dropout), nn.LayerNorm(12), nn.Linear(12, 6), nn.Dropout(dropout)]
    return nn.Sequential(*layers).to(dtype)


def tiny(dtype=torch.float64, **changes):
    torch.manual_seed(0)
    config = GPTConfig.tiny(**{**dict(context=8, num_layers=4, hidden=16, dropout=0.2), **changes})
    return GPT(config).to(dtype)


def batch(rows=3):
    return torch.randint(0, 68, (rows, 8), generator=torch.Generator().manual_seed(1))


def gradients(model, run=None, *, seed=5):
    """Loss and gradients of one step; `run(model, tokens)` gives the logits."""
    torch.manual_seed(seed)
    model.zero_grad()
    loss = token_loss((run or type(model).__call__)(model, batch()), batch())
    loss.backward()
    return {"loss": loss.detach(), **state_of(model)}


assert_same_bits = partial(assert_equal, rtol=0)


def one_backward(run, dtype=torch.float64, dropout=0.3, **options):
    """Output, and gradients of the input and of the weights, of `run(layers, x)` on the same layers and masks."""
    layers, x = piece(dtype, dropout), torch.randn(4, 6, dtype=dtype, generator=torch.Generator().manual_seed(2))
    x.requires_grad_()
    torch.manual_seed(3)
    out = run(layers, x, **options)
    torch.rand(5)  # others draw numbers between forward and backward
    out.float().square().sum().backward()
    after = torch.rand(3)  # to them the recomputation must be invisible
    return {"out": out.detach(), "x": x.grad, "after": after, **state_of(layers)}


def kept_bytes(run):
    """Bytes of the tensors, each storage once, that autograd keeps of `run()`, whose result stays alive meanwhile."""
    kept = {}
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.setdefault(t.data_ptr(), t), lambda t: t):
        result = run()
    return sum(t.untyped_storage().nbytes() for t in kept.values()) if result is not None else 0


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", ["ours", *TORCHS])
def test_gradients_and_dropout_are_those_of_the_plain_run_to_the_bit(name, dtype):
    assert_same_bits(one_backward(RUNS["plain"], dtype), one_backward(RUNS[name], dtype))


def test_without_the_state_of_the_random_numbers_the_gradients_are_wrong_unless_nothing_is_dropped():
    right, wrong = one_backward(RUNS["plain"]), one_backward(checkpoint, preserve_rng_state=False)
    assert torch.equal(right["out"], wrong["out"])
    assert (right["0.weight.grad"] - wrong["0.weight.grad"]).norm() > 0.1 * right["0.weight.grad"].norm()
    plain = one_backward(RUNS["plain"], dropout=0.0)
    assert_same_bits(plain, one_backward(checkpoint, dropout=0.0, preserve_rng_state=False))


def test_a_first_block_whose_input_needs_no_gradient_still_trains():
    layers, x = piece(), torch.ones(4, 6, dtype=torch.float64)
    out = checkpoint(layers, x)
    assert out.requires_grad
    out.sum().backward()
    assert all(parameter.grad is not None for parameter in layers.parameters()) and x.grad is None


def test_nested_checkpoints():
    def nested(layers, x):
        return checkpoint(lambda y: checkpoint(layers[3:], checkpoint(layers[:3], y)), x)

    assert_same_bits(one_backward(RUNS["plain"]), one_backward(nested))


def test_arguments_of_every_kind_and_results_of_every_kind():
    def mix(pair, factor, *, weights, index, name):
        assert name == "a name"
        a, b = pair
        return {"sum": factor * a + b[index] @ weights["w"], "index": index + 1, "said": name, "unused": a * 2}, (b,)

    def grads(run):
        a, b, w = (torch.full((3, 3), float(n), dtype=torch.float64, requires_grad=True) for n in (1, 2, 3))
        index = torch.tensor([2, 0, 1])
        out, (same,) = run(mix, (a, b), 1.5, weights={"w": w}, index=index, name="a name")
        assert out["said"] == "a name" and out["index"].tolist() == [3, 1, 2]
        (out["sum"].square().sum() + same.sum()).backward()
        return {"a": a.grad, "b": b.grad, "w": w.grad}

    assert_same_bits(grads(lambda function, *args, **kwargs: function(*args, **kwargs)), grads(checkpoint))


def test_a_weight_behind_an_output_that_nobody_used_gets_no_gradient():
    used, unused = nn.Linear(2, 2), nn.Linear(2, 2)
    first, _ = checkpoint(lambda x: (used(x), unused(x)), torch.ones(1, 2))
    first.sum().backward()
    assert used.weight.grad is not None and unused.weight.grad is None


def test_inputs_are_kept_and_the_inside_is_not():
    layers, x = piece(dropout=0.0), torch.ones(64, 6, dtype=torch.float64, requires_grad=True)
    weights = {parameter.data_ptr(): parameter.untyped_storage().nbytes() for parameter in layers.parameters()}
    assert kept_bytes(lambda: checkpoint(layers, x)) == x.untyped_storage().nbytes()
    assert kept_bytes(lambda: layers(x)) > sum(weights.values()) + 4 * x.untyped_storage().nbytes()


def test_the_peak_is_not_above_torchs():
    """Backward through the second run starts at a place in its graph, so the second output need not stay."""
    peaks = {}
    for name in ("ours", *TORCHS):
        layers, devices = nn.Sequential(*[nn.Linear(64, 64) for _ in range(8)]), VirtualDevices(1)
        with devices:
            x = torch.ones(256, 64, requires_grad=True)
            for half in (layers[:4], layers[4:]):
                x = RUNS[name](half, x)
            x.sum().backward()
        peaks[name] = devices.peak(0)
    one_tensor = 256 * 64 * 4
    assert peaks["ours"] <= peaks["torch, reentrant"] - one_tensor
    assert peaks["ours"] < peaks["torch, not reentrant"] + one_tensor


def test_changing_an_input_before_backward_is_caught():
    x = torch.ones(2, 6, dtype=torch.float64)
    out = checkpoint(piece(), x)
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_without_a_graph_it_is_a_call():
    layers = piece().eval()
    with torch.no_grad():
        out = checkpoint(layers, torch.ones(2, 6, dtype=torch.float64))
    assert not out.requires_grad


@pytest.mark.parametrize("backward_inside", [False, True])
@pytest.mark.parametrize(
    ("open_autocast", "dtype", "reference"),
    [
        (partial(torch.autocast, "cpu"), torch.bfloat16, "torch, reentrant"),
        (partial(torch.autocast, "cpu"), torch.float16, "torch, reentrant"),
        (autocast, torch.bfloat16, "plain"),
    ],
    ids=["torch's, bf16", "torch's, fp16", "ours"],
)
def test_autocast_is_as_it_was_in_forward(open_autocast, dtype, reference, backward_inside):
    results = []
    for run in (RUNS[reference], checkpoint):
        layers, x, seen = piece(torch.float32), torch.randn(4, 6, generator=torch.Generator().manual_seed(2)), []
        layers[0].register_forward_hook(lambda module, args, out, seen=seen: seen.append(out.dtype))
        torch.manual_seed(3)
        with open_autocast(dtype):
            loss = run(layers, x.requires_grad_()).float().square().sum()
            if backward_inside:
                loss.backward()
        if not backward_inside:
            loss.backward()
        assert set(seen) == {dtype}
        results.append({"x": x.grad, **state_of(layers)})
    assert len(seen) == 2
    assert_same_bits(*results)


@pytest.mark.parametrize("open_autocast", [autocast, partial(torch.autocast, "cpu")])
def test_an_autocast_around_backward_does_not_reach_a_forward_without(open_autocast):
    layers, seen = piece(torch.float32), []
    layers[0].register_forward_hook(lambda module, args, out: seen.append(out.dtype))
    loss = checkpoint(layers, torch.ones(4, 6)).sum()
    with open_autocast(torch.bfloat16):
        loss.backward()
    assert seen == [torch.float32, torch.float32]


def test_a_weight_in_two_checkpoints_under_our_autocast_with_backward_inside():
    layer, x = piece(torch.float32)[4], torch.ones(4, 12)
    with autocast(torch.bfloat16):
        (checkpoint(layer, x).float() + checkpoint(layer, 2 * x).float()).sum().backward()
    assert torch.allclose(layer.weight.grad, torch.full_like(layer.weight, 12.0))  # 4 rows of 1 and 4 of 2


def test_a_function_that_returns_no_tensor_is_named():
    def forgets(x):
        x.sum()

    with pytest.raises(ValueError, match=r"ran .*forgets, which returned no tensor"):
        checkpoint(forgets, torch.ones(2))


def test_autograd_grad_is_refused_with_a_sentence():
    x = torch.ones(2, 6, dtype=torch.float64, requires_grad=True)
    with pytest.raises(RuntimeError, match=r"Call loss\.backward\(\)"):
        torch.autograd.grad(checkpoint(piece(), x).sum(), x)


@pytest.mark.parametrize("num_segments", [1, 2, 3, 5, 6])
def test_sequential_equals_the_plain_run(num_segments):
    def in_segments(layers, x):
        return checkpoint_sequential(layers, num_segments, x)

    assert_same_bits(one_backward(RUNS["plain"]), one_backward(in_segments))


def test_sequential_keeps_one_input_a_segment_and_the_inside_of_the_last():
    layers = [nn.Sigmoid() for _ in range(12)]  # each keeps its output
    x = torch.ones(100, requires_grad=True)
    for num_segments in (1, 2, 3, 4, 6, 12):
        kept = kept_bytes(partial(checkpoint_sequential, layers, num_segments, x)) / 400
        assert kept == (num_segments - 1) + 12 // num_segments


@pytest.mark.parametrize("num_segments", [0, -1, 7])
def test_sequential_refuses_with_the_right_range(num_segments):
    with pytest.raises(ValueError, match=f"num_segments={num_segments} for 6 layers: give 1 to 6"):
        checkpoint_sequential(piece(), num_segments, torch.ones(1, 6))


MODES = [dict(), dict(every=2), dict(every=3), dict(every=4), dict(mode="selective")]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("attention", ["flash", "materialized"])
@pytest.mark.parametrize("mode", MODES)
def test_blocks_equal_the_plain_model_to_the_bit_and_come_back(mode, attention, dtype):
    model = tiny(dtype, attention=attention)
    names, plain = list(model.state_dict()), gradients(model)
    with recompute_blocks(model, **mode):
        assert_same_bits(plain, gradients(model))
        assert list(model.state_dict()) == names
        assert_same_bits(plain, gradients(copy.deepcopy(model)))
    before = kept_bytes(lambda: model(batch()))
    handle = recompute_blocks(model, **mode)
    assert kept_bytes(lambda: model(batch())) < before
    handle.remove()
    handle.remove()
    assert kept_bytes(lambda: model(batch())) == before
    assert_same_bits(plain, gradients(model))


def test_what_full_and_selective_leave_out():
    """A block keeps its input alone, s b h numbers; selective leaves out the maps, and nothing else (h = 16, a = 4)."""
    s, b, h, a, layers = 8, 3, 16, 4, 4
    model = tiny(torch.float32, attention="materialized", dropout=0.0)
    kept = {}
    for name, mode in {"full": dict(), "selective": dict(mode="selective"), "every 2": dict(every=2)}.items():
        with recompute_blocks(model, **mode):
            kept[name] = kept_bytes(lambda: model(batch()))
    kept["none"] = kept_bytes(lambda: model(batch()))
    assert kept["none"] - kept["selective"] == 4 * layers * a * b * s * s
    assert kept["full"] - kept["every 2"] == 4 * layers // 2 * s * b * h


@pytest.mark.parametrize("changes, words", [
    (dict(every=0), r"every=0 for 4 blocks: give 1 to 4"),
    (dict(every=5), r"every=5 for 4 blocks: give 1 to 4"),
    (dict(mode="partial"), r"mode='partial'; known are 'full' and 'selective'"),
    (dict(mode="selective", every=2), r"works inside each block"),
])  # fmt: skip
def test_blocks_refuse_with_a_sentence(changes, words):
    with pytest.raises(ValueError, match=words):
        recompute_blocks(tiny(), **changes)


def test_blocks_refuse_a_wrapper_and_a_second_time():
    with pytest.raises(ValueError, match="got a Linear without `blocks`"):
        recompute_blocks(nn.Linear(2, 2))
    for mode in ("full", "selective"):
        model = tiny()
        with recompute_blocks(model, mode=mode), pytest.raises(RuntimeError, match="recompute already"):
            recompute_blocks(model)
