"""Stage 3 of ZeRO equals one process: losses and weights of five AdamW steps, on every rank; what it holds, sends."""

import gc
import time
import weakref
from contextlib import nullcontext
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

from helpers.devices import computing_device
from helpers.observe.comms import record_comms
from helpers.observe.equality import assert_equal
from helpers.observe.memory import record_memory, totals
from helpers.observe.memory_positions import Position
from helpers.observe.memory_storages import StorageTracker
from helpers.observe.training import Training
from helpers.parallel.memory import GPU, HOST, Budget, OutOfBudget
from helpers.parallel.shared.recompute import recompute_blocks
from helpers.parallel.zero import Zero3
from helpers.parallel.zero.freed_weights import FreedWeight
from helpers.parallel.zero.gathered_unit import GatheredUnit
from helpers.predict.traffic.zero import zero_traffic
from helpers.workloads import GPT, MLP, GPTConfig, token_loss
from tests.parallel.zero.zero3_rank import Zero3Rank

BATCH = 12
EPS = {torch.float64: 1e-8, torch.float32: 1e-3}  # of Adam: a small one makes rounding noise a full step in float32
KEY_BIAS = {"*.key.bias": 1e-3}  # its gradient is zero in theory, so Adam steps on rounding noise


class Odd(nn.Module):
    """A weight tied across two units, a unit that runs twice, a frozen unit, a frozen bias, a buffer, odd sizes."""

    def __init__(self):
        super().__init__()
        sizes = [(8, 7), (7, 7), (7, 7), (7, 7), (7, 5)]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in sizes)
        self.layers[2].weight = self.layers[1].weight
        self.layers[3].requires_grad_(False)
        self.layers[0].bias.requires_grad_(False)
        self.scale = nn.Parameter(torch.ones(5))
        self.register_buffer("shift", torch.full((5,), 0.5))

    def forward(self, x):
        first, one, two, frozen, last = self.layers
        x = torch.tanh(first(x))
        x = torch.tanh(two(torch.tanh(one(x))) + torch.tanh(frozen(one(x))))
        return last(x) * self.scale + self.shift


MODELS = {
    "mlp": lambda: MLP([8, 13, 9, 5]),
    "gpt": lambda: GPT(GPTConfig.tiny(context=8, num_layers=2, hidden=16)),
    "odd": Odd,
}


def build(kind, dtype=torch.float64):
    torch.manual_seed(0)
    return MODELS[kind]().to(dtype)


def batch_of(kind, step, dtype=torch.float64, rank=0, size=1):
    torch.manual_seed(1000 + step)
    if kind == "gpt":
        parts = torch.randint(0, 68, (2, BATCH, 8))
    else:
        parts = torch.randn(BATCH, 8, dtype=dtype), torch.randn(BATCH, 5, dtype=dtype)
    return [part.chunk(size)[rank] for part in parts]


def loss_of(output, y):
    return token_loss(output, y) if output.dim() == 3 else (output - y).square().mean()


def step_once(model, kind, step=0, dtype=torch.float64, scale=1.0):
    x, y = batch_of(kind, step, dtype, dist.get_rank(), dist.get_world_size())
    loss = loss_of(model(x), y) * scale
    loss.backward()
    return loss.detach()


def check(pool, kind, dtype=torch.float64, strategy=Zero3Rank, max_norm=None, **options):
    """The ranks start from different seeds: construction makes them equal."""
    training = Training(
        model=lambda: MODELS[kind]().to(dtype),
        batch=lambda step: batch_of(kind, step, dtype),
        loss=loss_of,
        options=dict(lr=1e-2, eps=EPS[dtype]),
        steps=5,
        max_norm=max_norm,
        state=nn.Module.state_dict,
        seeds_by_rank=True,
    )
    assert_equal(training.run(), pool.run(training.under(strategy, **options).run), atol=KEY_BIAS)


@pytest.mark.parametrize(
    ("kind", "dtype", "size"),
    [*(("odd", torch.float64, size) for size in (1, 2, 3, 4)), ("odd", torch.float32, 3), ("gpt", torch.float64, 4)],
    ids=str,
)
def test_equals_one_process(ranks, kind, dtype, size):
    check(ranks[:size], kind, dtype)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("odd", dict(prefetch=0)),
        ("odd", dict(prefetch=3, limit=4)),
        ("odd", dict(limit=1)),
        ("odd", dict(keep_parameters=True)),
        ("odd", dict(wrap=lambda module: False)),
        ("odd", dict(wrap=[nn.Linear])),
        ("gpt", dict(prefetch=3, limit=4)),
        ("gpt", dict(keep_parameters=True)),
    ],
)
def test_options_change_no_number(ranks, kind, options):
    check(ranks[:3], kind, **options)


def test_clipping_sees_all_shards(ranks):
    check(ranks[:3], "odd", max_norm=0.1)


def in_micro_batches(model, x, y, sync_each):
    total = torch.zeros((), dtype=torch.float64)
    for index, (a, b) in enumerate(zip(x.chunk(2), y.chunk(2), strict=True)):
        with nullcontext() if sync_each or index == 1 else model.no_sync():
            loss = loss_of(model(a), b) / 2
            loss.backward()
        total += loss.detach()
    return total


class InMicroBatches(Zero3Rank):
    def __init__(self, model, training, sync_each):
        super().__init__(model, training)
        self.forward_backward = partial(in_micro_batches, self.model, sync_each=sync_each)


@pytest.mark.parametrize("sync_each", [True, False])
def test_micro_batches_add_up(ranks, sync_each):
    check(ranks[:2], "odd", strategy=InMicroBatches, sync_each=sync_each)


def messages(function, *args):
    with record_comms() as recorder:
        function(*args)
    return recorder.log


def test_no_sync_saves_reduce_scatters_and_no_gather(ranks):
    def count():
        model = Zero3(build("mlp"))
        found = []
        for sync_each in (True, False):
            log = messages(in_micro_batches, model, *batch_of("mlp", 0), sync_each)
            held = sum(weight.grad is not None for unit in model.units for weight in unit.weights)
            found.append([sum(e.op == op for e in log.events) for op in ("all_gather", "reduce_scatter")] + [held])
        with model.no_sync():
            step_once(model, "mlp")
        whole = sum(w.grad.numel() for unit in model.units for w in unit.weights)
        return found, whole

    num_parameters = sum(p.numel() for p in build("mlp").parameters())
    assert ranks[:2].run(count) == [([[12, 6, 0], [12, 3, 0]], num_parameters)] * 2


@pytest.mark.parametrize("keep", [False, True])
def test_traffic_is_the_predicted_to_the_byte(ranks, keep):
    def log():
        model = Zero3(build("gpt", torch.float32), keep_parameters=keep)
        for step in range(2):
            step_once(model, "gpt", step, torch.float32)  # from the second step on, units are fetched ahead
        return messages(step_once, model, "gpt", 2, torch.float32), [unit.layout.numel for unit in model.units]

    for found, sizes in ranks[:3].run(log):
        expected = zero_traffic(sizes, stage=3, world_size=3, keep_parameters=keep)
        assert payload(found) == payload(expected)
        assert payload(found)["all_gather"][0] == (1 if keep else 2) * len(sizes)


def payload(log):
    """op -> (number, bytes) on its first rank."""
    log = log.for_rank(log.events[0].rank)
    return {op: (log.count(op), log.payload_bytes(op)) for op in log.ops()}


def test_prefetch_fetches_ahead_and_respects_the_limit(ranks):
    def most(prefetch, limit):
        model = Zero3(MLP([8] * 7), prefetch=prefetch, limit=limit)
        rows, seen, ahead, fetch = torch.ones(2, 8), [], [], GatheredUnit.fetch

        def spy(unit):
            ahead.append(any(other.full_vector is not None for other in model.units) and unit.full_vector is None)
            fetch(unit)
            seen.append(sum(other.full_vector is not None for other in model.units))

        for step in range(2):
            GatheredUnit.fetch = spy if step else fetch
            try:
                model(rows).sum().backward()
            finally:
                GatheredUnit.fetch = fetch
        return max(seen), sum(ahead)

    assert ranks[:1].run(most, 0, 2) == [(1, 0)]
    assert ranks[:1].run(most, 1, 1) == [(1, 0)]
    assert ranks[:1].run(most, 1, 2) == [(2, 10)]  # all but the first of each pass
    assert ranks[:1].run(most, 3, 3) == [(3, 10)]


@pytest.mark.parametrize("world_size", [2, 3])
def test_a_rank_holds_its_shards_to_the_byte(ranks, world_size):
    def held():
        model = Zero3(build("mlp", torch.float32))
        optimizer = torch.optim.AdamW(model.parameters())
        step_once(model, "mlp", dtype=torch.float32)
        optimizer.step()
        optimizer.zero_grad()
        with record_memory(model, optimizer) as recorder:
            step_once(model, "mlp", dtype=torch.float32)
            recorder.mark("after backward")
        found = recorder.at("after backward")
        return found.parameters, found.gradients, found.optimizer

    sizes = [8 * 13 + 13, 13 * 9 + 9, 9 * 5 + 5]
    shards = 4 * sum(-(-size // world_size) for size in sizes)
    for rank, (parameters, gradients, optimizer) in enumerate(ranks[:world_size].run(held)):
        padding = 4 * sum(max(0, (rank + 1) * -(-s // world_size) - s) for s in sizes)
        assert (parameters, gradients, optimizer) == (shards, shards, 2 * (shards - padding))  # none on padding


# ---- whole or freed ----


def test_a_freed_weight_says_so(ranks):
    class Thief(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])

        def forward(self, x, steal=True):
            x = self.layers[0](x)
            return x @ self.layers[1].weight if steal else self.layers[1](x)

    def touch():
        model = Zero3(Thief())
        weight = model.module.layers[1].weight
        assert isinstance(weight, FreedWeight) and weight.shape == (4, 4) and "layers.1.weight" in repr(weight)
        for use in (lambda: model(torch.ones(1, 4)), lambda: weight + 1, lambda: torch.cat([weight]), lambda: weight.T,
                    lambda: weight.data, model.state_dict):  # fmt: skip
            with pytest.raises(RuntimeError, match=r"layers\.[01]\.(weight|bias) is freed.*model\.full_state\(\)"):
                use()
        model(torch.ones(1, 4), steal=False).sum().backward()  # and the next pass works
        return [piece.grad is not None for piece in model.parameters()]

    assert ranks[:2].run(touch) == [[True] * 4] * 2


def test_weights_that_change_between_forward_and_backward_are_noticed(ranks):
    def gradients(changed_between):
        model = Zero3(build("mlp"))
        x, y = batch_of("mlp", 0)
        loss = loss_of(model(x), y)
        with torch.no_grad():
            for piece in model.parameters():
                piece.add_(1)
        if changed_between:
            with pytest.raises(RuntimeError, match="changed between forward and backward"):
                loss.backward()
            model.zero_grad()
        step_once(model, "mlp")  # a backward that raised leaves nothing behind
        return gradients_of(model)

    assert_pairs_equal(ranks[:2].run(gradients, False), ranks[:2].run(gradients, True))


def test_an_activation_that_changes_in_place_is_noticed(ranks):
    class InPlace(MLP):
        def forward(self, x):
            x = self.layers[0](x).exp()
            return self.layers[1](x) + x.add_(1)

    def change():
        with pytest.raises(RuntimeError, match="changed by an inplace operation"):
            Zero3(InPlace([4, 4, 4]))(torch.ones(1, 4)).sum().backward()

    ranks[:1].run(change)


def test_a_forward_without_backward_keeps_nothing_alive(ranks):
    def forget():
        model = Zero3(MLP([4, 4, 4]))
        gc.disable()
        try:
            model(torch.ones(1, 4))
            alive = weakref.ref(model)
            del model
            return alive() is None
        finally:
            gc.enable()

    assert ranks[:1].run(forget) == [True]


def assert_pairs_equal(expected, found):
    """Rank by rank: shards differ between ranks."""
    for right, mine in zip(expected, found, strict=True):
        assert_equal(right, mine)


def gradients_of(model):
    return {name: piece.grad.clone() for name, piece in model.named_parameters() if piece.grad is not None}


def test_a_weight_without_a_gradient_is_named(ranks):
    class Forgetful(MLP):
        def forward(self, x):
            return self.layers[0](x)

    def forget():
        model = Zero3(Forgetful([4, 4, 4]))
        with pytest.raises(
            RuntimeError, match=r"2 weights got no gradient.*layers\.1\.bias.*before the model is wrapped"
        ):
            model(torch.ones(1, 4)).sum().backward()

    ranks[:2].run(forget)


def test_forward_without_backward_leaves_nothing_whole(ranks):
    def evaluate():
        model = Zero3(build("odd"), keep_parameters=True)
        x, y = batch_of("odd", 0)
        for context in (torch.no_grad, torch.inference_mode):
            with context():
                model(x)
            assert all(unit.full_vector is None for unit in model.units)
        model(x)  # nobody calls backward; then the weights change
        with torch.no_grad():
            for piece in model.parameters():
                piece.mul_(2)
        plain = build("odd")
        plain.load_state_dict(model.full_state())
        return {"output": model(x).detach()}, {"output": plain(x).detach()}

    for mine, right in ranks[:2].run(evaluate):
        assert_equal(right, mine)


def test_two_forwards_and_one_backward(ranks):
    def gradients(apart):
        model = Zero3(build("odd"))
        losses = []
        for step in range(2):
            x, y = batch_of("odd", step)
            losses.append(loss_of(model(x), y))
            if apart:
                losses.pop().backward()
        if losses:
            sum(losses).backward()
        return gradients_of(model)

    assert_pairs_equal(ranks[:3].run(gradients, True), ranks[:3].run(gradients, False))


class Checkpointed(MLP):
    run = staticmethod(lambda layer, x: layer(x))

    def forward(self, x):
        x = torch.tanh(self.layers[0](x))
        for layer in self.layers[1:]:
            x = torch.tanh(self.run(layer, x))
        return x


@pytest.mark.parametrize("how", ["reentrant", "not reentrant", "inside a unit"])
def test_recomputation_changes_no_gradient_and_gathers_nothing_more(ranks, how):
    def train(recompute):
        kind = "gpt" if how == "inside a unit" else "mlp"
        torch.manual_seed(0)
        plain = build(kind) if kind == "gpt" else Checkpointed([8, 13, 9, 5]).double()
        if recompute and kind == "mlp":
            plain.run = partial(checkpoint, use_reentrant=how == "reentrant")
        with recompute_blocks(plain) if recompute and kind == "gpt" else nullcontext():
            model = Zero3(plain)
            log = messages(step_once, model, kind)
        return gradients_of(model), payload(log)

    for (mine, sent), (right, expected) in zip(ranks[:2].run(train, True), ranks[:2].run(train, False), strict=True):
        assert_equal(right, mine, atol={"*.key.bias": 1e-12})
        assert sent == expected


# ---- mixed precision ----


def test_mixed_precision_gathers_16_bits_and_keeps_32(ranks):
    def mixed():
        model = Zero3(build("gpt", torch.float32), param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        log = messages(step_once, model, "gpt", 0, torch.float32)
        kinds = {piece.dtype for piece in model.parameters()} | {piece.grad.dtype for piece in model.parameters()}
        exact = Zero3(build("gpt", torch.float32))
        step_once(exact, "gpt", 0, torch.float32)
        narrow = Zero3(build("gpt", torch.float32), param_dtype=torch.bfloat16)  # reduces in 16 bits, too
        in_16_bits = messages(step_once, narrow, "gpt", 0, torch.float32)
        return payload(log), payload(in_16_bits), kinds, gradients_of(model), gradients_of(exact)

    for sent, in_16_bits, kinds, mine, right in ranks[:2].run(mixed):
        assert 2 * in_16_bits["reduce_scatter"][1] == sent["reduce_scatter"][1]
        assert kinds == {torch.float32}
        assert (
            2 * sent["all_gather"][1] == sent["reduce_scatter"][1]
        )  # two gathers of a half of 16 bits, one of 32 whole
        assert_equal(right, mine, atol={"*": 0.02})
        assert any(not torch.equal(right[name], mine[name]) for name in right)


# ---- construction, states ----


def held_bytes(storages):
    """Bytes of real tensors, event after event."""
    return [total for _, _, total in totals(storages.events)]


@pytest.mark.parametrize("how", ["wrapped", "built"])
def test_construction_frees_the_whole_model_or_never_has_it(ranks, how):
    """Bytes of real tensors: afterwards the shards; meanwhile, if built, a few whole layers besides."""

    def held():
        with torch.no_grad(), StorageTracker(computing_device(), lambda: Position("other", "construction")) as storages:
            make = lambda: MLP([64] * 17)  # noqa: E731
            model = Zero3(make()) if how == "wrapped" else Zero3.build(make)
            sums, give_up = held_bytes(storages), time.monotonic() + 5
            while sums[-1] > most and time.monotonic() < give_up:  # the thread of a message may still hold its tensor
                sums = held_bytes(storages)
        return max(sums), sums[-1], len(model.units)

    layer = 4 * (64 * 64 + 64)
    most = 16 * layer / 4 + 16 * 16
    for peak, after, num_units in ranks.run(held):
        assert num_units == 16 and after <= most
        if how == "built":
            assert peak < 16 * layer / 4 + 4 * layer
        else:
            assert peak >= 16 * layer


@pytest.mark.parametrize(("kind", "size"), [("gpt", 3), ("mlp", 4)])
def test_built_on_the_meta_device_it_has_the_constructors_values(ranks, kind, size):
    def both():
        torch.manual_seed(3)
        built = Zero3.build(MODELS[kind]).full_state()
        torch.manual_seed(3)
        return built, Zero3(MODELS[kind]()).full_state()

    for built, right in ranks[:size].run(both):
        assert built.keys() == right.keys()
        assert all(torch.equal(built[name], right[name]) for name in right)


def test_a_full_state_is_that_of_the_plain_model(ranks):
    def both():
        return build("odd").state_dict(), Zero3(build("odd")).full_state()

    for right, gathered in ranks[:3].run(both):
        assert_equal(right, gathered)


def test_bad_options_get_a_sentence(ranks):
    def wrap():
        for options in (dict(prefetch=-1), dict(limit=0)):
            with pytest.raises(ValueError, match="expected prefetch >= 0 and limit >= 1"):
                Zero3(build("mlp"), **options)
        with pytest.raises(ValueError, match="no parameter with requires_grad=True"):
            Zero3(build("mlp").requires_grad_(False))
        with torch.device("meta"):
            without_values = build("mlp")
        with pytest.raises(ValueError, match=r"use Zero3\.build"):
            Zero3(without_values)

    ranks[:1].run(wrap)


# ---- offload ----


def two_steps_within(num_bytes, offload):
    """Weights after two steps, and what crossed; None where the pretended GPU was too small."""
    torch.manual_seed(0)
    budget = Budget(num_bytes)
    with budget:
        try:
            model = Zero3(MLP([32] * 9), offload=budget if offload else None)
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
            budget.reset()
            for _ in range(2):
                optimizer.zero_grad()
                model(torch.ones(4, 32)).square().sum().backward()
                optimizer.step()
            crossed, on_host = budget.bytes_by_purpose(), budget.bytes_on(HOST)
            return model.full_state(), crossed, on_host, budget.peak(GPU)
        except OutOfBudget:
            return None


def test_what_does_not_fit_fits_with_shards_and_optimizer_on_the_host(ranks):
    num_parameters = 8 * (32 * 32 + 32)
    shard = 4 * num_parameters // 2
    expected = ranks[:2].run(two_steps_within, 10**9, False)
    budget = 2 * shard + 4 * 4 * (32 * 32 + 32)  # no room for four shards: weights, gradients and two moments
    assert ranks[:2].run(two_steps_within, budget, False) == [None, None]
    found = ranks[:2].run(two_steps_within, budget, True)
    for (state, crossed, on_host, peak), (right, *_) in zip(found, expected, strict=True):
        assert_equal(right, state, rtol=0)
        assert crossed == {"shards to the device": 2 * 2 * shard, "gradients to the host": 2 * shard}
        assert on_host >= 4 * shard and peak <= budget


def test_the_work_for_a_unit_does_not_grow_with_the_model(ranks):
    """A step goes through the list of all units equally often, however many there are."""

    class CountedList(list):
        times = 0

        def __iter__(self):
            self.times += 1
            return super().__iter__()

        def __reversed__(self):
            self.times += 1
            return super().__reversed__()

    def passes(num_units):
        frozen = nn.Linear(6, 6).requires_grad_(False)  # has no gradient that would say when to free it
        model = Zero3(nn.Sequential(frozen, *(nn.Linear(6, 6) for _ in range(num_units - 1))))
        model.units = CountedList(model.units)
        model(torch.ones(2, 6, requires_grad=True)).sum().backward()
        return model.units.times

    few, many = (ranks[:2].run(passes, num_units) for num_units in (4, 12))
    assert few == many
