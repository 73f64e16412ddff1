"""DDP equals one process: losses, gradients and weights of several steps, on every rank, in float64."""

import inspect
from contextlib import nullcontext
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as torch_ddp
from torch.utils.checkpoint import checkpoint as torchs_checkpoint

from helpers.chapters.ddp import AveragedGradients
from helpers.observe.equality import assert_equal, state_of
from helpers.observe.training import Training, beside_one_process
from helpers.parallel.ddp import BucketedDDP, DistributedDataParallel, FlatDDP, MiniDDP, NaiveDDP, comm_hooks
from helpers.parallel.shared import recompute
from helpers.workloads import GPT, MLP, GPTConfig, token_loss

PER_RANK, STEPS = 4, 4
SMALL_BUCKETS = dict(bucket_cap_mb=0.002, first_bucket_mb=0.0005)


class TwoHeads(nn.Module):
    """A model with a tied weight, a frozen layer, a buffer and a part that only some inputs use."""

    def __init__(self):
        super().__init__()
        self.first, self.tied = nn.Linear(8, 8), nn.Linear(8, 8)
        self.again = nn.Linear(8, 8)
        self.again.weight = self.tied.weight
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.extra, self.never = nn.Linear(8, 8), nn.Linear(8, 8)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x, use_extra=True):
        x = torch.tanh(self.first(x))
        x = torch.tanh(self.again(torch.tanh(self.tied(x))) + self.frozen(x))
        return x + self.extra(x) if use_extra else x


class AllUsed(TwoHeads):
    """The same, where every trainable parameter always gets a gradient."""

    def forward(self, x):
        return self.never(super().forward(x))


MODELS = {
    "mlp": lambda: MLP([8, 16, 8]),
    "TwoHeads": TwoHeads,
    "AllUsed": AllUsed,
    "TinyGPT": lambda: GPT(GPTConfig.tiny(context=8, num_layers=1, hidden=16)),
}


def build(kind):
    torch.manual_seed(0)
    return MODELS[kind]().double()


def data(kind, steps=STEPS, rows=PER_RANK * 4):
    generator = torch.Generator().manual_seed(7)
    if kind == "TinyGPT":
        return [torch.randint(0, 68, (rows, 8), generator=generator) for _ in range(steps)]
    return [torch.randn(rows, 8, generator=generator, dtype=torch.float64) for _ in range(steps)]


def share_of(rank):
    return slice(rank * PER_RANK, (rank + 1) * PER_RANK)


def loss_of(output, x):
    return token_loss(output, x) if output.dim() == 3 else (output - x.roll(1, dims=1)).square().mean()


def check(pool, model, wrap, kind=""):
    """Losses, and weights and gradients of the last step. Ranks begin with other weights, which rank 0's replace."""
    batches = [x[: PER_RANK * len(pool)] for x in data(kind)]
    how = dict(batch=lambda step: (batches[step],) * 2, loss=loss_of, options=dict(lr=1e-2), steps=STEPS)
    training = Training(model=lambda: model().double(), seeds_by_rank=True, **how)
    beside_one_process(pool, training.under(AveragedGradients, wrap=wrap))


def with_small_buckets(**options):
    return partial(DistributedDataParallel, **SMALL_BUCKETS, **options)


WRAPPERS = {
    "naive": NaiveDDP,
    "flat": FlatDDP,
    "mini": partial(MiniDDP, bucket_bytes=2000, first_bucket_bytes=500),
    "bucketed": partial(BucketedDDP, **SMALL_BUCKETS),
    "default": DistributedDataParallel,
    "small buckets": with_small_buckets(),
    "no overlap": with_small_buckets(overlap=False),
    "find unused": with_small_buckets(find_unused_parameters=True),
    "static graph": with_small_buckets(static_graph=True),
}


@pytest.mark.parametrize(("kind", "world_size"), [*(("AllUsed", size) for size in (1, 2, 3, 4)), ("TinyGPT", 3)])
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_equals_one_process(ranks, wrapper, kind, world_size):
    check(ranks[:world_size], MODELS[kind], WRAPPERS[wrapper], kind)


def backward(model, x=None):
    x = torch.ones(2, 8, dtype=torch.float64) if x is None else x
    model(x).square().mean().backward()
    return model


def gradients_of(model):
    return {name: tensor for name, tensor in state_of(model).items() if name.endswith(".grad")}


def test_buckets_of_the_simple_class_leave_while_backward_goes_on(ranks):
    def order():
        model, seen = WRAPPERS["bucketed"](build("AllUsed")), []
        send = model._send
        model._send = lambda bucket: seen.append(f"bucket {bucket.index()}") or send(bucket)
        first = model.module.first.weight  # the last gradient to come
        first.register_post_accumulate_grad_hook(lambda _: seen.append("the last gradient"))
        backward(model)
        return seen, len(model.buckets)

    for seen, count in ranks[:2].run(order):
        assert [one for one in seen if one.startswith("bucket")] == [f"bucket {index}" for index in range(count)]
        assert seen.index("the last gradient") > seen.index("bucket 1")


def test_the_idea_fits_one_screen():
    for core in (NaiveDDP, FlatDDP, BucketedDDP):
        assert len(inspect.getsource(core).splitlines()) <= 60
    assert len(inspect.getsource(MiniDDP).splitlines()) <= 45


def test_mini_ddp_sends_as_many_buckets_as_torch_in_its_second_step_and_while_backward_goes_on(ranks):
    def sent():
        shapes, in_flight = [64, 600, 600, 600, 64], []
        model = MiniDDP(MLP(shapes), 2 * 2**20, 2 * 2**20)  # torch uses one cap for all if it is given
        first = next(model.module.parameters())  # the last gradient to come
        first.register_post_accumulate_grad_hook(lambda _: in_flight.append(len(model.in_flight)))
        backward(model, torch.ones(2, 64))
        mine = [flat.numel() for flat, _ in model.in_flight]
        model.wait()
        return mine, sizes_of_second_step(torch_ddp(MLP(shapes), bucket_cap_mb=2)), in_flight

    for mine, theirs, in_flight in ranks[:2].run(sent):
        assert sorted(mine) == sorted(theirs) and len(mine) > 1
        assert 0 < in_flight[0]


def sizes_of_second_step(model):
    """Elements of each message; the first step ends with new buckets."""
    sizes = []
    model.register_comm_hook(sizes, recorded)
    for _ in range(2):
        sizes.clear()
        backward(model, torch.ones(2, 64))
    return sizes


def recorded(sizes, bucket):
    sizes.append(bucket.buffer().numel())
    return comm_hooks.fp16_compress_hook(None, bucket)


def test_as_many_buckets_as_torch(ranks):
    def bucket_sizes():
        small = partial(DistributedDataParallel, first_bucket_mb=0.1)
        equal = partial(DistributedDataParallel, first_bucket_mb=2)  # torch's is smaller only by default
        models = (wrap(MLP([64, 600, 600, 600, 64]), bucket_cap_mb=2) for wrap in (small, equal, torch_ddp))
        return [sizes_of_second_step(model) for model in models]

    for small, mine, theirs in ranks[:2].run(bucket_sizes):
        assert mine == theirs
        assert len(mine) > 1
        assert 4 * small[0] < 0.3e6 < 2e6 < 4 * small[1]  # the first bucket's own cap; bytes


def test_mini_ddp_accumulates_under_no_sync_and_notices_a_missing_gradient(ranks):
    def summed():
        x = torch.full((2, 8), dist.get_rank() + 1.0, dtype=torch.float64)
        model = MiniDDP(build("AllUsed"))
        with model.no_sync():
            backward(model, x)
        assert not model.in_flight
        backward(model, x).wait()
        with pytest.raises(RuntimeError, match=r"parameter\(s\) got no gradient"):
            backward(MiniDDP(build("TwoHeads")), x).wait()
        return gradients_of(model)

    model = build("AllUsed")
    for rank in (0, 0, 1, 1):
        (model(torch.full((2, 8), rank + 1.0, dtype=torch.float64)).square().mean() / 2).backward()
    assert_equal(gradients_of(model), ranks[:2].run(summed))


# ---- what the learner can rely on ----


def small():
    return with_small_buckets()(build("AllUsed"))


def test_gradients_are_views_into_the_buckets_after_zero_grad(ranks):
    def views():
        model = small()
        found = []
        for _ in range(3):
            model.zero_grad(set_to_none=True)
            backward(model)
            flats = {bucket.flat.untyped_storage().data_ptr() for bucket in model.buckets}
            found.append([s.parameter.grad.untyped_storage().data_ptr() in flats for s in model.slots])
        return found

    for found in ranks[:2].run(views):
        assert all(found[1]) and all(found[2])  # the first backward ends with new buckets


def test_buckets_follow_the_order_of_rank_zero_after_the_first_step(ranks):
    class Swapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)

        def forward(self, x):
            layers = (self.b, self.a) if dist.get_rank() == 0 else (self.a, self.b)
            return layers[1](layers[0](x))

    def order():
        model = with_small_buckets()(Swapped())
        before = [slot.name for bucket in model.buckets for slot in bucket.slots]
        backward(model, torch.ones(1, 4))
        return before, [slot.name for bucket in model.buckets for slot in bucket.slots]

    assert ranks[:3].run(order) == [(["b.weight", "a.weight"], ["a.weight", "b.weight"])] * 3


def test_buffers_are_those_of_rank_zero(ranks):
    def buffers():
        model = build("AllUsed")
        model.calls.fill_(float(dist.get_rank() + 1))
        wrapped = DistributedDataParallel(model)
        at_construction = model.calls.item()
        model.calls.fill_(float(dist.get_rank() + 5))
        wrapped.eval()(torch.ones(1, 8, dtype=torch.float64))
        after_eval = model.calls.item()
        wrapped.train()(torch.ones(1, 8, dtype=torch.float64))
        return at_construction, after_eval, model.calls.item()

    assert ranks[:3].run(buffers) == [(1, 5, 5), (1, 6, 5), (1, 7, 5)]


# ---- unused parameters ----


def trained_on(parts, kind, num_batches, wrap, **extra):
    """Weights and gradients after steps on the rows of these parts, all ranks' in one process; None: this rank's own.

    num_batches: of each part. extra: of the forward, part -> value. wrap: None in one process.
    """
    parts, model = [dist.get_rank()] if parts is None else parts, build(kind)
    wrapped = wrap(model) if wrap else model
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    with wrapped.join() if wrap and len(set(num_batches)) > 1 else nullcontext():
        for step, x in enumerate(data(kind, steps=max(num_batches[part] for part in parts))):
            optimizer.zero_grad()
            used = [part for part in parts if num_batches[part] > step]
            outputs = [wrapped(x[share_of(part)], **{name: of(part) for name, of in extra.items()}) for part in used]
            torch.cat(outputs).square().mean().backward()
            optimizer.step()
    return state_of(model)


UNUSED = [{"find_unused_parameters": True}, {"static_graph": True}]


@pytest.mark.parametrize("options", UNUSED, ids=str)
def test_parameters_unused_on_some_ranks(world, options):
    size = len(world)
    how = dict(kind="TwoHeads", num_batches=[STEPS] * size, use_extra=lambda part: part == size - 1)
    states = world.run(trained_on, None, wrap=with_small_buckets(**options), **how)
    assert "never.weight.grad" not in states[0]  # unused everywhere: no gradient, so AdamW leaves it alone
    assert_equal(trained_on(range(size), wrap=None, **how), states)


def test_unused_parameters_are_named(ranks):
    def unused():
        model = with_small_buckets()(build("TwoHeads"))
        for wrapped in (WRAPPERS["bucketed"](build("TwoHeads")), model):
            with pytest.raises(RuntimeError, match=r"never\.weight \(bucket \d+\).*find_unused_parameters=True"):
                backward(wrapped)
        frozen = small()
        frozen.module.never.bias.requires_grad_(False)
        with pytest.raises(RuntimeError, match="freeze first, then wrap"):
            backward(frozen)
        model.find_unused = True
        model.zero_grad()
        return gradients_of(backward(model))  # the failure leaves nothing behind

    assert_equal(gradients_of(backward(build("TwoHeads"))), ranks[:2].run(unused))


# ---- the graph's odd corners ----


REENTRANT, NOT_REENTRANT = (partial(torchs_checkpoint, use_reentrant=flag) for flag in (True, False))


class Checkpointed(nn.Module):
    """Two checkpoints; with `tied` the same layer stands in both, so that its hooks fire once for each."""

    def __init__(self, tied, run):
        super().__init__()
        self.first, self.one = nn.Linear(8, 8), nn.Linear(8, 8)
        self.two = self.one if tied else nn.Linear(8, 8)
        self.run = run

    def forward(self, x):
        x = self.first(x)
        for layer in (self.one, self.two):
            x = torch.tanh(self.run(layer, x))
        return x


@pytest.mark.parametrize(
    ("tied", "run", "options"),
    [
        (True, NOT_REENTRANT, {}),
        (False, REENTRANT, {}),
        (True, REENTRANT, {"static_graph": True}),
        (False, REENTRANT, {"find_unused_parameters": True}),
        (False, recompute.checkpoint, {}),
        (True, recompute.checkpoint, {"static_graph": True}),
    ],
)
def test_checkpointing(ranks, tied, run, options):
    check(ranks[:2], lambda: Checkpointed(tied, run), with_small_buckets(**options))


@pytest.mark.parametrize("mode", [dict(), dict(every=2), dict(mode="selective")], ids=str)
@pytest.mark.parametrize("options", [dict(), dict(static_graph=True)], ids=str)
def test_recomputed_blocks(ranks, mode, options):
    def wrap(model):
        recompute.recompute_blocks(model, **mode)
        return with_small_buckets(**options)(model)

    config = GPTConfig.tiny(context=8, num_layers=4, hidden=16)
    check(ranks[:2], lambda: GPT(config), wrap, kind="TinyGPT")


@pytest.mark.cpu("a gradient that comes again while its bucket travels is a race, and on cards said as one")
@pytest.mark.parametrize("run", [REENTRANT, recompute.checkpoint], ids=["torch's", "ours"])
def test_a_gradient_in_two_parts_is_refused(ranks, run):
    def twice():
        with pytest.raises(RuntimeError, match=r"one\.\w+ arrived 2 times.*static_graph=True"):
            backward(with_small_buckets()(Checkpointed(True, run).double()))

    ranks[:2].run(twice)


def test_an_exception_in_backward_leaves_nothing_behind(ranks):
    def fail_then_train():
        model = backward(small())
        handle = model.module.first.weight.register_hook(lambda grad: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            backward(model)
        handle.remove()
        dist.barrier()
        model.zero_grad()
        return gradients_of(backward(model))

    assert_equal(gradients_of(backward(build("AllUsed"))), ranks[:3].run(fail_then_train))


def test_two_backwards_add_up(ranks):
    """One after the other without zero_grad, and two forwards before one backward."""

    def twice():
        model = small()
        x = torch.full((2, 8), float(dist.get_rank()), dtype=torch.float64)
        backward(backward(model, x), x)
        (model(x) + model(2 * x)).square().mean().backward()
        return gradients_of(model)

    model = build("AllUsed")
    for rank in range(2):
        x = torch.full((2, 8), float(rank), dtype=torch.float64)
        (model(x).square().mean() + (model(x) + model(2 * x)).square().mean() / 2).backward()
    assert_equal(gradients_of(model), ranks[:2].run(twice))


def test_wrapping_again_does_not_send_twice(ranks):
    def wrap_twice():
        inner = build("AllUsed")
        backward(DistributedDataParallel(inner))
        model = backward(DistributedDataParallel(inner))
        return len(model.module.first.weight._post_accumulate_grad_hooks)

    assert ranks[:2].run(wrap_twice) == [1, 1]


def test_outputs_may_be_nested_and_partly_unused(ranks):
    class Nested(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x):
            return {"used": [self.a(x)], "unused": (self.b(x), "text")}

    def run():
        model = DistributedDataParallel(Nested(), find_unused_parameters=True)
        model(torch.ones(1, 2))["used"][0].sum().backward()
        return model.module.a.weight.grad.tolist(), model.module.b.weight.grad

    assert ranks[:2].run(run) == [([[1, 1], [1, 1]], None)] * 2


def test_mixed_dtypes_travel_in_their_own_buckets(ranks):
    def run():
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4).double())
        wrapped = DistributedDataParallel(model)
        x = torch.full((1, 4), float(dist.get_rank()))
        (wrapped.module[0](x).sum() + wrapped.module[1](x.double()).sum()).backward()  # not through forward
        return model[0].weight.grad[0, 0].item(), model[1].weight.grad[0, 0].item(), len(wrapped.buckets)

    assert ranks[:3].run(run) == [(1.0, 1.0, 2)] * 3


# ---- uneven inputs, hooks, mistakes ----


@pytest.mark.parametrize("num_batches", [(2,), (0, 3), (3, 3, 3), (1, 2, 0, 5)], ids=str)
@pytest.mark.parametrize("options", [{}, *UNUSED], ids=str)
def test_uneven_inputs(ranks, num_batches, options):
    def weights(state):
        return {name: tensor for name, tensor in state.items() if not name.endswith(".grad")}

    joined = ranks[: len(num_batches)].run(trained_on, None, "AllUsed", num_batches, with_small_buckets(**options))
    alone = trained_on(range(len(num_batches)), "AllUsed", num_batches, None)
    assert_equal(weights(alone), list(map(weights, joined)))


def test_join_can_divide_by_all_ranks(ranks):
    def run():
        model = DistributedDataParallel(nn.Linear(1, 1, bias=False))
        with model.join(divide_by_active=False):
            for _ in range(1 + dist.get_rank()):
                model.zero_grad()
                model(torch.ones(1, 1)).sum().backward()
        return model.module.weight.grad.item()

    assert ranks[:2].run(run)[1] == 0.5  # the last step of rank 1, half of it rank 0's zero


def gradients_with(hook, wrap):
    model = build("mlp").float()
    wrapped = wrap(model)
    if hook is not None:
        wrapped.register_comm_hook(None, hook)
    for _ in range(2):
        model.zero_grad()
        backward(wrapped, torch.full((2, 8), 1.0 + dist.get_rank()))
    return gradients_of(model)


def test_the_hook_averages_in_fp16(ranks):
    exact = ranks[:3].run(gradients_with, None, with_small_buckets())[0]
    hooked = ranks[:3].run(gradients_with, comm_hooks.fp16_compress_hook, with_small_buckets())
    assert_equal(exact, hooked, rtol=2e-3)
    with pytest.raises(AssertionError):
        assert_equal(exact, hooked, rtol=1e-6)  # it did compress


def test_our_hooks_in_torch_and_torchs_in_ours(ranks):
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    reference = ranks[:2].run(gradients_with, fp16_compress_hook, torch_ddp)[0]
    ours = with_small_buckets()
    pairs = [(comm_hooks.fp16_compress_hook, torch_ddp), (fp16_compress_hook, ours)]
    for hook, wrap in [*pairs, (comm_hooks.fp16_compress_hook, ours)]:
        assert_equal(reference, ranks[:2].run(gradients_with, hook, wrap), rtol=1e-6)


@pytest.mark.cpu("a practice card holds dense tensors only")
def test_sparse_gradients_get_a_sentence(ranks):
    def mistake():
        model = DistributedDataParallel(nn.Embedding(4, 2, sparse=True))
        with pytest.raises(ValueError, match="sparse=False"):
            model(torch.tensor([1])).sum().backward()

    ranks[:2].run(mistake)


def test_mistakes_get_a_sentence(ranks):
    def mistakes():
        with pytest.raises(ValueError, match="no parameter with requires_grad=True"):
            DistributedDataParallel(nn.Linear(2, 2).requires_grad_(False))
        with pytest.raises(ValueError, match="a cap must be above 0"):
            DistributedDataParallel(nn.Linear(2, 2), bucket_cap_mb=0)
        for wrap in (BucketedDDP, DistributedDataParallel):
            with pytest.raises(ValueError, match=r"layers.0.weight \(4, 2\).*rank 1 has layers.0.weight \(3, 2\)"):
                wrap(MLP([2, 3 if dist.get_rank() == 1 else 4, 2]))

    ranks[:2].run(mistakes)
