"""Our autocast is torch's: the same tables, the same bits from each operation, the same losses and gradients."""

import contextlib
import threading
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

from helpers.devices import autocast_tables as tables
from helpers.parallel.shared import autocast as module
from helpers.parallel.shared.autocast import autocast, innermost
from helpers.workloads import GPT, MLP, GPTConfig, SmallResNet, characters, digits, token_loss

LOW = [torch.bfloat16, torch.float16]
# Ours alone: torch reaches their parts in C++.
COMPOSED = {"einsum", "chain_matmul", "linalg_multi_dot", "lstm", "rnn_tanh", "rnn_relu", "tensordot", "gru"}


# ---- the tables ----


# Torch's CUDA build registers its kernel inside lstm, gru and rnn_tanh, which are listed; the CPU build has none.
OF_A_BUILD = {"_cudnn_rnn"}


def registered(device_type: str) -> set[str]:
    key = {"cpu": "AutocastCPU", "cuda": "AutocastCUDA"}[device_type]
    found = torch._C._dispatch_get_registrations_for_dispatch_key(key)
    return {name.removeprefix("aten::").partition(".")[0] for name in found}


def listed(device_type: str) -> set[str]:
    every = [tables.names(table, device_type) for table in (tables.LOWER, tables.FLOAT32, tables.PROMOTE)]
    return set().union(*every, tables.BANNED[device_type])


@pytest.mark.parametrize("device_type", ["cpu", "cuda"])
def test_the_tables_name_what_torch_registers(device_type):
    assert registered(device_type) - listed(device_type) <= OF_A_BUILD
    extra = {"nll_loss_nd", "cross_entropy_loss", "pairwise_distance", *COMPOSED}  # entered from C++ there
    assert listed(device_type) - registered(device_type) <= extra


@pytest.mark.parametrize("device_type", ["cpu", "cuda"])
def test_no_operation_has_two_policies(device_type):
    groups = [group for table in (tables.LOWER, tables.FLOAT32, tables.PROMOTE) for group in table[device_type]]
    every = [name for group in groups for name in group.split()]
    assert len(every) == len(set(every))


# ---- operation by operation ----


def operations(device: str, low: torch.dtype) -> dict:
    """Name to a call without arguments. f: float32, h: 16 bits, all values in (0, 1)."""

    def f(*shape):
        return torch.rand(*shape, device=device, **seeded)

    def h(*shape):
        return f(*shape).to(low)

    def zeros(*shape):
        return torch.zeros(*shape, dtype=torch.long, device=device)

    seeded = {"generator": torch.Generator().manual_seed(0)} if device == "cpu" else {}
    mat, row, half, batch = f(4, 4), f(4), h(4, 4), f(2, 4, 4)
    image, volume = h(1, 2, 4, 4), h(1, 2, 4, 4, 4)
    return {
        "@": lambda: mat @ mat,
        "@ half": lambda: half @ mat,
        "mm": lambda: torch.mm(mat, mat),
        "bmm": lambda: torch.bmm(batch, batch),
        "addmm": lambda: mat.addmm(mat, mat),
        "baddbmm": lambda: torch.baddbmm(batch, batch, batch),
        "mv": lambda: torch.mv(mat, row),
        "dot": lambda: torch.dot(row, row),
        "linear": lambda: F.linear(mat, mat, row),
        "conv1d": lambda: F.conv1d(batch, batch),
        "conv2d same": lambda: F.conv2d(f(1, 2, 4, 4), f(3, 2, 3, 3), padding="same"),
        "conv_transpose2d": lambda: F.conv_transpose2d(f(1, 2, 4, 4), f(2, 3, 3, 3)),
        "einsum": lambda: torch.einsum("bij,bjk->bik", batch, batch),
        "tensordot": lambda: torch.tensordot(mat, mat, 1),
        "multi_dot": lambda: torch.linalg.multi_dot([mat, mat, mat]),
        "bilinear": lambda: F.bilinear(mat, mat, f(3, 4, 4)),
        "attention": lambda: F.scaled_dot_product_attention(f(1, 2, 4, 8), f(1, 2, 4, 8), f(1, 2, 4, 8)),
        "multi_head_attention": lambda: F.multi_head_attention_forward(
            batch, batch, batch, 4, 2, f(12, 4), f(12), None, None, False, 0.0, f(4, 4), f(4), need_weights=True
        )[0],
        "prelu": lambda: F.prelu(mat, f(1)),
        "embedding": lambda: F.embedding(zeros(3), mat),
        "softmax": lambda: F.softmax(half, -1),
        "Tensor.softmax": lambda: half.softmax(-1),
        "softmax dtype": lambda: torch.softmax(half, -1, dtype=low),
        "softmax dtype by place": lambda: torch.softmax(half, -1, low),
        "log_softmax": lambda: F.log_softmax(half, -1),
        "softmin": lambda: F.softmin(half, -1),
        "layer_norm": lambda: F.layer_norm(half, (4,), row, row),
        "rms_norm": lambda: F.rms_norm(half, (4,)),
        "group_norm": lambda: F.group_norm(h(2, 4, 3), 2),
        "batch_norm": lambda: F.batch_norm(half, f(4), f(4), training=False),
        "instance_norm": lambda: F.instance_norm(h(2, 4, 3)),
        "cross_entropy": lambda: F.cross_entropy(half, zeros(4)),
        "nll_loss": lambda: F.nll_loss(half, zeros(4)),
        "mse_loss": lambda: F.mse_loss(half, half + 1),
        "l1_loss": lambda: F.l1_loss(half, half + 1),
        "huber_loss": lambda: F.huber_loss(half, half + 1),
        "kl_div": lambda: F.kl_div(half, half, reduction="batchmean"),
        "bce with logits": lambda: F.binary_cross_entropy_with_logits(half, half),
        "triplet": lambda: F.triplet_margin_loss(half, half + 1, half + 2),
        "exp": lambda: half.exp(),
        "log": lambda: torch.log(half),
        "** 2": lambda: half**2,
        "2 **": lambda: 2**half,
        "1 /": lambda: 1 / half,
        "rsqrt": lambda: half.rsqrt(),
        "sqrt": lambda: half.sqrt(),
        "sum": lambda: half.sum(),
        "sum of integers": lambda: zeros(3).sum(),
        "mean": lambda: half.mean(),
        "std": lambda: half.std(),
        "prod": lambda: half.prod(),
        "cumsum": lambda: half.cumsum(0),
        "norm": lambda: half.norm(),
        "torch.norm": lambda: torch.norm(half, dim=0),
        "normalize": lambda: F.normalize(half),
        "cosine_similarity": lambda: F.cosine_similarity(half, half),
        "pairwise_distance": lambda: F.pairwise_distance(half, half + 1),
        "cdist": lambda: torch.cdist(half, half),
        "softplus": lambda: F.softplus(half),
        "+": lambda: half + mat,
        "relu": lambda: F.relu(half),
        "gelu": lambda: F.gelu(half),
        "unflatten": lambda: half.unflatten(1, (2, 2)),
        "dropout": lambda: F.dropout(half, 0.0),
        "cat": lambda: torch.cat([half, mat]),
        "cat of halves": lambda: torch.cat([half, half]),
        "stack": lambda: torch.stack([half, mat]),
        "addcmul": lambda: torch.addcmul(half, half, mat),
        "atan2": lambda: torch.atan2(half, mat),
        "avg_pool2d": lambda: F.avg_pool2d(image, 2),
        "avg_pool3d": lambda: F.avg_pool3d(volume, 2),
        "max_pool2d": lambda: F.max_pool2d(image, 2),
        "interpolate": lambda: F.interpolate(image, scale_factor=2, mode="bilinear"),
        "reflection_pad1d": lambda: torch._C._nn.reflection_pad1d(h(1, 2, 4), (1, 1)),
        "float64": lambda: mat.double() @ mat.double(),
        "integers": lambda: zeros(2, 2) @ zeros(2, 2),
        "in place": lambda: f(4, 4).addmm_(mat, mat),
        "out=": lambda: torch.mm(mat, mat, out=torch.empty(4, 4, device=device)),
        "binary_cross_entropy": lambda: F.binary_cross_entropy(half, half),
        **(only_on_cuda(half, mat, zeros(4, 4)) if device == "cuda" else only_on_cpu(half, mat)),
    }


def only_on_cuda(half: torch.Tensor, mat: torch.Tensor, index: torch.Tensor) -> dict:
    """Promoted there; on CPU these raise for unequal types, with and without autocast."""
    return {"scatter_add": lambda: half.scatter_add(0, index, mat), "index_put": lambda: half.index_put((index,), mat)}


def only_on_cpu(half: torch.Tensor, mat: torch.Tensor) -> dict:
    """Promoted on CPU alone, or impossible for the stand-ins for CUDA tensors, which have no values to decompose."""
    return {
        "index_copy": lambda: half.index_copy(0, torch.tensor([1]), mat[:1]),
        "grid_sample": lambda: F.grid_sample(half[None, None], half.view(1, 2, 4, 2), align_corners=False),
        "linalg.inv": lambda: torch.linalg.inv(half + torch.eye(4)),
        "svdvals": lambda: torch.linalg.svdvals(half),
        "fft": lambda: torch.fft.fft(half),
        "trace": lambda: half.trace(),
        "quantile": lambda: half.quantile(0.5),
    }


@contextlib.contextmanager
def torchs(device_type: str, low: torch.dtype):
    """torch.autocast, switched on also for "cuda" on a machine without one, where the class itself refuses."""
    before = torch.get_autocast_dtype(device_type)
    torch.set_autocast_enabled(device_type, True)
    torch.set_autocast_dtype(device_type, low)
    try:
        yield
    finally:
        torch.set_autocast_enabled(device_type, False)
        torch.set_autocast_dtype(device_type, before)
        torch.clear_autocast_cache()


NAMES = list(operations("cpu", torch.bfloat16))


@pytest.mark.parametrize("low", LOW)
@pytest.mark.parametrize("name", NAMES)
def test_an_operation_gives_the_bits_of_torch_on_cpu(name, low):
    with torchs("cpu", low):
        expected = operations("cpu", low)[name]()
    with autocast(low):
        actual = operations("cpu", low)[name]()
    assert actual.dtype == expected.dtype
    assert torch.equal(actual, expected) or name == "bilinear"  # a product inside C++, unseen: float32 all through here


@pytest.mark.parametrize("low", LOW)
def test_each_operation_gives_the_dtype_of_torch_on_cuda(low):
    """Without a GPU: tensors that only claim to be on one go through torch's own CUDA table."""
    with FakeTensorMode(), torch.no_grad():
        ours, theirs = operations("cuda", low), operations("cuda", low)
        for name in theirs.keys() - {"binary_cross_entropy", "multi_head_attention"}:  # the latter indexes: no stand-in
            with torchs("cuda", low):
                expected = theirs[name]()
            with autocast(low, device_type="cuda"):
                actual = ours[name]()
            assert actual.dtype == expected.dtype, name


def test_the_tables_differ_between_devices():
    half = torch.rand(4, 4).bfloat16()
    with autocast(torch.bfloat16):
        assert F.softmax(half, -1).dtype == half.exp().dtype == torch.bfloat16
    with autocast(torch.bfloat16, table="cuda"):
        assert F.softmax(half, -1).dtype == half.exp().dtype == torch.float32
        assert F.layer_norm(half, (4,)).dtype == torch.float32


def test_an_explicit_dtype_is_left_alone():
    half = torch.rand(4, 4).bfloat16().requires_grad_()
    with autocast(torch.bfloat16, table="cuda"):
        chosen, left = F.softmax(half, -1, dtype=torch.bfloat16), torch.softmax(half, -1, torch.bfloat16)
        cast = F.softmax(half, -1)
    before = [type(out.grad_fn.next_functions[0][0]).__name__ for out in (chosen, left, cast)]
    assert before == ["AccumulateGrad", "AccumulateGrad", "ToCopyBackward0"]
    assert cast.dtype == torch.float32


def test_cudas_table_refuses_binary_cross_entropy():
    with autocast(torch.float16, table="cuda"), pytest.raises(RuntimeError, match="binary_cross_entropy_with_logits"):
        F.binary_cross_entropy(torch.rand(3), torch.rand(3))


# ---- whole models ----


def images():
    features, labels = digits()
    return features[:8].view(-1, 1, 8, 8), labels[:8]


MODELS = {
    "GPT": (lambda: GPT(GPTConfig.tiny()), lambda: characters().batch(0, 4, 16), token_loss),
    "untied GPT": (lambda: GPT(GPTConfig.tiny(tied=False)), lambda: characters().batch(0, 4, 16), token_loss),
    "MLP": (lambda: MLP([64, 32, 10]), lambda: (images()[0].flatten(1), images()[1]), F.cross_entropy),
    "SmallResNet": (SmallResNet, images, F.cross_entropy),
    "ResNet, group norm": (lambda: SmallResNet(norm=lambda c: nn.GroupNorm(4, c)), images, F.cross_entropy),
}


def one_step(kind: str, region) -> dict[str, torch.Tensor]:
    build, batch, loss_of = MODELS[kind]
    torch.manual_seed(0)
    model, (x, y) = build(), batch()
    with region:
        loss = loss_of(model(x), y)
    loss.backward()
    return {"loss": loss.detach(), **{name: parameter.grad for name, parameter in model.named_parameters()}}


@pytest.mark.parametrize("low", LOW)
@pytest.mark.parametrize("kind", MODELS)
def test_a_model_gives_the_bits_of_torch(kind, low):
    expected = one_step(kind, torch.autocast("cpu", dtype=low))
    actual = one_step(kind, autocast(low))
    assert all(torch.equal(actual[name], expected[name]) for name in expected)
    plain = one_step(kind, contextlib.nullcontext())
    assert not torch.equal(actual["loss"], plain["loss"])  # something ran in 16 bits
    assert {gradient.dtype for gradient in actual.values()} == {torch.float32}


@pytest.mark.parametrize("kind", ["GPT", "SmallResNet"])
def test_without_the_cache_a_model_gives_the_same(kind):
    expected = one_step(kind, torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False))
    actual = one_step(kind, autocast(torch.bfloat16, cache=False))
    assert all(torch.equal(actual[name], expected[name]) for name in expected)


# ---- the weight cache ----


def casts_of(weight: nn.Parameter, graph_of: torch.Tensor) -> int:
    """In how many places of the graph behind a tensor the weight is cast."""
    seen, todo, count = set(), [graph_of.grad_fn], 0
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        nexts = [after for after, _ in node.next_functions]
        count += any(getattr(after, "variable", None) is weight for after in nexts)
        todo += nexts
    return count


@pytest.mark.parametrize(("cache", "expected"), [(True, 1), (False, 3)])
def test_a_weight_is_cast_once_a_region_and_its_gradient_flows(cache, expected):
    weight, x = nn.Parameter(torch.rand(4, 4)), torch.rand(2, 4)
    with autocast(torch.bfloat16, cache=cache):
        loss = sum((x @ weight).float().sum() for _ in range(3))
    assert casts_of(weight, loss) == expected
    loss.backward()
    assert torch.allclose(weight.grad, 3 * x.sum(0)[:, None].expand(4, 4), rtol=2**-6)


def test_a_step_between_regions_is_seen_and_the_cache_is_empty_outside():
    weight, x = nn.Parameter(torch.ones(2, 2)), torch.ones(1, 2)
    for value in (1.0, 3.0):
        with torch.no_grad():
            weight.fill_(value)
        with autocast(torch.bfloat16):
            assert (x @ weight).tolist() == [[2 * value] * 2]
            assert module._THREAD.copies
        assert not module._THREAD.copies


def test_a_step_inside_a_region_is_not_seen_as_in_torch():
    def second_product(region):
        weight, x = nn.Parameter(torch.ones(2, 2)), torch.ones(1, 2)
        with region:
            x @ weight
            with torch.no_grad():
                weight.fill_(3.0)
            return (x @ weight).tolist()

    assert second_product(autocast(torch.bfloat16)) == second_product(torch.autocast("cpu", torch.bfloat16)) == [[2, 2]]
    assert second_product(autocast(torch.bfloat16, cache=False)) == [[6, 6]]


def test_a_look_under_no_grad_does_not_cut_the_gradient_off():
    weight, x = nn.Parameter(torch.ones(2, 2)), torch.ones(1, 2)
    with autocast(torch.bfloat16):
        with torch.no_grad():
            x @ weight
        (x @ weight).float().sum().backward()
    assert weight.grad is not None


def test_the_cache_is_emptied_after_an_error():
    with pytest.raises(ZeroDivisionError), autocast(torch.bfloat16):
        torch.ones(1, 2) @ nn.Parameter(torch.ones(2, 2))
        raise ZeroDivisionError
    assert not module._THREAD.copies
    assert innermost() is None


# ---- regions ----


def test_the_innermost_region_decides():
    x, weight = torch.rand(2, 2), nn.Parameter(torch.rand(2, 2))
    with autocast(torch.bfloat16):
        assert (x @ weight).dtype == torch.bfloat16
        with autocast(torch.float16):  # torch's cache would hand out the bfloat16 copy here
            assert (x @ weight).dtype == torch.float16
            with autocast(torch.float16, enabled=False):
                assert (x @ weight).dtype == torch.float32
                assert F.normalize(x).dtype == torch.float32
            assert (x @ weight).dtype == torch.float16
        assert (x @ weight).dtype == torch.bfloat16
    assert (x @ weight).dtype == torch.float32


def test_one_region_object_may_be_entered_again():
    region, x = autocast(torch.bfloat16), torch.rand(2, 2)
    for _ in range(2):
        with region, region:
            assert (x @ x).dtype == torch.bfloat16
        assert (x @ x).dtype == torch.float32


def test_as_a_decorator():
    @autocast(torch.float16)
    def product(x):
        return x @ x

    assert product(torch.rand(2, 2)).dtype == torch.float16


def test_tensors_of_another_device_are_left_alone():
    with autocast(torch.float16, device_type="cuda"):
        assert (torch.rand(2, 2) @ torch.rand(2, 2)).dtype == torch.float32


def test_another_thread_is_not_in_the_region():
    found = []
    with autocast(torch.bfloat16):
        thread = threading.Thread(target=lambda: found.append((torch.rand(2, 2) @ torch.rand(2, 2)).dtype))
        thread.start()
        thread.join()
    assert found == [torch.float32]


def test_torchs_checkpoint_with_the_region_in_its_context():
    layer, x = nn.Linear(4, 4), torch.rand(2, 4)

    def gradient(run):
        layer.zero_grad()
        with autocast(torch.bfloat16):
            out = run()
        out.float().sum().backward()
        return layer.weight.grad.clone()

    def again():
        context = lambda: (contextlib.nullcontext(), autocast(torch.bfloat16))  # noqa: E731
        return checkpoint(layer, x, use_reentrant=False, context_fn=context)

    assert torch.equal(gradient(lambda: layer(x)), gradient(again))


def test_what_a_learner_may_get_wrong():
    with pytest.raises(ValueError, match=r"the dtype comes first here; write autocast\(torch.bfloat16, device_type="):
        autocast("cpu")
    for dtype in (torch.float32, torch.float64, "bf16", torch.int8):
        with pytest.raises(ValueError, match="lowers to torch.bfloat16 or torch.float16"):
            autocast(dtype)
    with pytest.raises(ValueError, match="device_type='cuda:0'"):
        autocast(torch.float16, device_type="cuda:0")
    with pytest.raises(ValueError, match="table='tpu'"):
        autocast(torch.float16, table="tpu")


def test_no_warning_from_functions_that_are_looked_into():
    with warnings.catch_warnings(), autocast(torch.bfloat16, table="cuda"):
        warnings.simplefilter("error")
        nn.MultiheadAttention(8, 2)(*[torch.rand(3, 2, 8)] * 3)
        F.gumbel_softmax(torch.rand(3, 4))
        F.normalize(torch.rand(3, 4))
