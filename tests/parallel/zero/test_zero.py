"""Stages 1 and 2 of ZeRO equal one process: losses and weights of five AdamW steps, on every rank."""

from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

from helpers.observe.comms import record_comms
from helpers.observe.equality import assert_equal
from helpers.observe.memory import record_memory
from helpers.observe.training import DataParallelRanks, OneProcess, Training
from helpers.parallel.amp import GradScaler
from helpers.parallel.amp.master_weights import MasterWeights
from helpers.parallel.zero import Zero1, Zero2
from helpers.predict.memory.states import model_states
from helpers.predict.traffic.zero import zero_traffic
from helpers.specs import Plan
from helpers.workloads import GPT, MLP, GPTConfig, token_loss

BATCH = 12
EPS = {torch.float64: 1e-8, torch.float32: 1e-3}  # of Adam: a small one makes rounding noise a full step in float32
KEY_BIAS = {"*.key.bias": 1e-3}  # its gradient is zero in theory, so Adam steps on rounding noise
WAYS = {
    "stage 1": partial(Zero1, bucket_bytes=3000),
    "stage 1, all_reduce": partial(Zero1, reduce="all_reduce"),
    "stage 2": partial(Zero2, bucket_bytes=3000),
}


class TwoHeads(nn.Module):
    """Tied, frozen and never used parameters, and a part that only some ranks or steps use; odd sizes."""

    def __init__(self):
        super().__init__()
        self.first, self.tied, self.again = nn.Linear(8, 7), nn.Linear(7, 7), nn.Linear(7, 7)
        self.again.weight = self.tied.weight
        self.frozen = nn.Linear(7, 7).requires_grad_(False)
        self.extra, self.never = nn.Linear(7, 5), nn.Linear(7, 5)
        self.last = nn.Linear(7, 5)

    def forward(self, x, use_extra=True):
        x = torch.tanh(self.first(x))
        x = torch.tanh(self.again(torch.tanh(self.tied(x))) + self.frozen(x))
        return self.last(x) + (self.extra(x) if use_extra else 0)


class Recomputed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(8, 9), nn.Linear(9, 9), nn.Linear(9, 5)
        self.reentrant = reentrant

    def forward(self, x):
        x = torch.tanh(self.first(x))
        x = checkpoint(lambda x: torch.tanh(self.inner(x)), x, use_reentrant=self.reentrant)
        return self.last(x)


MODELS = {
    "mlp": lambda: MLP([8, 13, 9, 5]),
    "TinyGPT": lambda: GPT(GPTConfig.tiny(context=8, num_layers=1, hidden=16)),
    "TwoHeads": TwoHeads,
    "reentrant": lambda: Recomputed(True),
    "not reentrant": lambda: Recomputed(False),
}


def build(kind, dtype=torch.float64):
    torch.manual_seed(0)
    return MODELS[kind]().to(dtype)


def batch_of(kind, step, dtype=torch.float64, share=BATCH, rank=0):
    torch.manual_seed(1000 + step)
    if kind == "TinyGPT":
        parts = torch.randint(0, 68, (2, BATCH, 8))
    else:
        parts = torch.randn(BATCH, 8, dtype=dtype), torch.randn(BATCH, 5, dtype=dtype)
    return [part[rank * share : (rank + 1) * share] for part in parts]


def here(way):
    """This rank and how many there are; one process is all of them."""
    return (0, 1) if way is None else (dist.get_rank(), dist.get_world_size())


def loss_of(output, y):
    return token_loss(output, y) if output.dim() == 3 else (output - y).square().mean()


def weights_of(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def groups_of(model):
    """Three groups: matrices with decay, biases without, the last layer's parameters at another rate; one frozen."""
    named = list(model.named_parameters())
    last = [p for name, p in named if name.startswith(("layers.2", "last"))]
    rest = [p for _, p in named if not any(p is other for other in last)]
    return [
        {"params": [p for p in rest if p.dim() > 1], "weight_decay": 0.3},
        {"params": [p for p in rest if p.dim() < 2], "weight_decay": 0.0},
        {"params": last, "lr": 2e-2, "betas": (0.8, 0.9)},
    ]


def make_optimizer(way, model, optimizer_class, *, grouped=False, **options):
    """The optimizer of one process for way=None."""
    if way is None:
        return optimizer_class(groups_of(model) if grouped else model.parameters(), **options)
    if way == "stage 2":
        return WAYS[way](model, optimizer_class, params=groups_of(model) if grouped else None, **options)
    return WAYS[way](groups_of(model) if grouped else model.named_parameters(), optimizer_class, **options)


class Alone(OneProcess):
    def __init__(self, model, training, grouped=False):
        optimizer = make_optimizer(None, model, training.optimizer, grouped=grouped, **training.options)
        super().__init__(model, training, optimizer=optimizer)


class Stage(DataParallelRanks):
    """A rank. All start from different seeds: construction makes them equal."""

    def __init__(self, model, training, way, grouped=False):
        optimizer = make_optimizer(way, model, training.optimizer, grouped=grouped, **training.options)
        super().__init__(model, training, optimizer=optimizer)

    def clip(self, max_norm):
        return self.optimizer.clip_grad_norm_(max_norm)


def check(pool, way, kind="mlp", dtype=torch.float64, alone=Alone, stage=Stage, how=None, **options):
    """Losses, norms and weights after the last step. how: of the training; options: of the optimizer."""
    training = Training(
        model=lambda: MODELS[kind]().to(dtype),
        batch=lambda step: batch_of(kind, step, dtype),
        loss=loss_of,
        state=weights_of,
        seeds_by_rank=True,
        **{"steps": 5, "options": options, **(how or {})},
    )
    assert_equal(training.under(alone).run(), pool.run(training.under(stage, way=way).run), atol=KEY_BIAS)


SIZES = [("mlp", torch.float64, size) for size in (1, 2, 3, 4)]


@pytest.mark.parametrize(
    ("kind", "dtype", "size"), [*SIZES, ("mlp", torch.float32, 3), ("TinyGPT", torch.float64, 3)], ids=str
)
@pytest.mark.parametrize("way", WAYS)
def test_steps_of_adamw_equal_one_process(ranks, way, kind, dtype, size):
    check(ranks[:size], way, kind, dtype, lr=1e-3, weight_decay=0.1, eps=EPS[dtype])


@pytest.mark.parametrize("way", WAYS)
def test_parameter_groups_keep_their_options(ranks, way):
    check(ranks[:3], way, alone=partial(Alone, grouped=True), stage=partial(Stage, grouped=True), lr=1e-3)


ELEMENTWISE = {
    "SGD": dict(lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "Adam": dict(amsgrad=True, foreach=True),
    "AdamW": dict(fused=True),
    "RMSprop": dict(centered=True, momentum=0.5),
    "Adagrad": {},
    "NAdam": {},
    "Rprop": {},
}


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_any_elementwise_optimizer(ranks, name):
    """The first step of some divides by the gradient's size: lr and data are such that no noise decides a sign."""
    for way in ("stage 1", "stage 2"):
        check(ranks[:3], way, how=dict(optimizer=getattr(torch.optim, name), steps=4), **ELEMENTWISE[name])


# ---- unused, uneven, clipped, accumulated ----


def some_unused(way):
    """Even ranks use `extra`, in even steps only; nobody uses `never`: AdamW leaves it alone, decay included."""
    rank, size = here(way)
    model = build("TwoHeads")
    options = {} if way is None else {"find_unused_parameters": True}
    optimizer = make_optimizer(way, model, torch.optim.AdamW, lr=1e-2, weight_decay=0.5, **options)
    for step in range(4):
        optimizer.zero_grad()
        for part in range(4) if way is None else [rank]:  # one process plays all four ranks
            x, y = batch_of("TwoHeads", step, torch.float64, 3, part)
            loss = loss_of(model(x, use_extra=step % 2 == 0 and part % 2 == 0), y)
            (loss / (4 if way is None else 1)).backward()
        optimizer.step()
    inner = optimizer if way is None else optimizer.optimizer
    counters = sorted({int(state["step"]) for state in inner.state.values()})
    return weights_of(model), counters


@pytest.mark.parametrize("way", WAYS)
def test_unused_frozen_and_tied_parameters(ranks, way):
    expected, counters = some_unused(None)
    results = ranks.run(some_unused, way)
    assert_equal(expected, [weights for weights, _ in results])
    assert counters == [2, 4] and set().union(*(c for _, c in results)) == {2, 4}


@pytest.mark.parametrize("way", WAYS)
def test_a_missing_gradient_is_named(ranks, way):
    def without_permission():
        model = build("TwoHeads")
        optimizer = make_optimizer(way, model, torch.optim.SGD, lr=0.1)
        x, y = batch_of("TwoHeads", 0)
        loss_of(model(x), y).backward()
        said = f"on rank {dist.get_rank()} 2 of 11 parameters have no gradient: never.weight, never.bias."
        with pytest.raises(RuntimeError, match=f"{said}.*find_unused_parameters=True"):
            optimizer.step()

    ranks[:2].run(without_permission)


class WithScheduler:
    """It takes the optimizer inside."""

    def step(self, *batch):
        if not hasattr(self, "scheduler"):
            inside = getattr(self.optimizer, "optimizer", self.optimizer)
            self.scheduler = torch.optim.lr_scheduler.StepLR(inside, 1, gamma=0.5)
        loss, norm = super().step(*batch)
        assert norm > 0.05
        self.scheduler.step()
        return loss, norm


class ScheduledAlone(WithScheduler, Alone):
    pass


class ScheduledStage(WithScheduler, Stage):
    pass


@pytest.mark.parametrize("way", WAYS)
def test_clipping_by_the_norm_of_the_whole_model_under_a_scheduler(ranks, way):
    how = dict(optimizer=torch.optim.SGD, max_norm=0.05, steps=4)
    check(ranks[:3], way, alone=ScheduledAlone, stage=ScheduledStage, how=how, lr=0.1, momentum=0.9)


class InMicroBatches(Stage):
    """silent: the first one under no_sync."""

    def __init__(self, model, training, way, silent):
        super().__init__(model, training, way)
        self.silent = silent

    def forward_backward(self, inputs, targets):
        losses = []
        for x, y in zip(inputs.chunk(2), targets.chunk(2), strict=True):
            with self.optimizer.no_sync() if self.silent and not losses else nullcontext():
                losses.append(loss_of(self.model(x), y) / 2)
                losses[-1].backward()
        return torch.stack(losses).sum().detach()


@pytest.mark.parametrize("way, silent", [*((way, True) for way in WAYS), ("stage 2", False)])
def test_micro_batches_add_up(ranks, way, silent):
    check(ranks[:3], way, stage=partial(InMicroBatches, silent=silent), lr=1e-3)


def test_a_step_right_after_no_sync_is_refused(ranks):
    def never_reduced():
        model = build("mlp")
        optimizer = Zero2(model, torch.optim.SGD, lr=0.1)
        with optimizer.no_sync():
            model(torch.ones(2, 8, dtype=torch.float64)).sum().backward()
        with pytest.raises(RuntimeError, match=r"the last micro-batch of a step outside no_sync\(\)"):
            optimizer.step()

    ranks[:2].run(never_reduced)


@pytest.mark.parametrize(
    "action, text",
    [
        ("step", r"has used these gradients: call zero_grad\(\)"),
        ("backward", "came after Zero1 had reduced the gradients"),
        ("micro-batch", "Run every micro-batch of a step but the last"),
        ("set", "layers.0.weight was set after Zero1 had reduced"),
    ],
)
def test_stage_1_refuses_gradients_that_it_has_sent(ranks, action, text):
    """The reduce-scatter was in place: what is left is neither a sum nor a mean."""

    def spent():
        model = build("mlp")
        optimizer = Zero1(model.named_parameters(), torch.optim.SGD, lr=0.1)
        x = torch.ones(2, 8, dtype=torch.float64)
        model(x).sum().backward()
        if action == "set":
            model.layers[0].weight.grad = torch.ones_like(model.layers[0].weight)
        elif action != "micro-batch":
            optimizer.step()
        with pytest.raises(RuntimeError, match=text):
            optimizer.step() if action in ("step", "set") else model(x).sum().backward()
        optimizer.zero_grad()  # what is under way lands, and is not logged in the next test

    ranks[:2].run(spent)


def sent_in_backward(hidden):
    """Messages before and after step() began, of three layers in three buckets."""
    model = MLP([8, 16, 16, 8])
    optimizer = Zero1(model.named_parameters(), torch.optim.SGD, bucket_bytes=4 * (8 * 16 + 8), lr=0.1)
    with record_comms() as recorder, optimizer.no_sync() if hidden else nullcontext():
        model(torch.ones(2, 8)).sum().backward()
    with record_comms() as rest:
        optimizer.step()
    return [event.op for event in recorder.log.events], sorted(event.op for event in rest.log.events)


def test_stage_1_sends_each_bucket_while_backward_goes_on(ranks):
    """All of them: the last bucket is full when backward ends. Under no_sync step() sends them."""
    for found in ranks[:2].run(sent_in_backward, False):
        assert found == (["reduce_scatter"] * 3, ["all_gather"] * 3)
    for found in ranks[:2].run(sent_in_backward, True):
        assert found == ([], ["all_gather"] * 3 + ["reduce_scatter"] * 3)


class StepsTwice:
    """In stage 2, and in torch, a step may use the same gradients again, and backward adds to them."""

    def step(self, *batch):
        loss = self.forward_backward(*batch)
        self.optimizer.step()
        self.optimizer.step()
        return loss, None


class TwiceAlone(StepsTwice, Alone):
    pass


class TwiceStage(StepsTwice, Stage):
    pass


def test_stage_2_without_zero_grad_does_what_torch_does(ranks):
    how = dict(optimizer=torch.optim.SGD, steps=2)
    check(ranks[:3], "stage 2", alone=TwiceAlone, stage=TwiceStage, how=how, lr=0.1)


# ---- recomputation, scaling, a backward that failed ----


@pytest.mark.parametrize("kind", ["reentrant", "not reentrant"])
@pytest.mark.parametrize("way", ["stage 1", "stage 2"])
def test_recomputation_of_either_kind(ranks, way, kind):
    check(ranks[:2], way, kind, lr=1e-3)


def scaled(way):
    """float16 overflow on one rank alone: all skip that step."""
    rank, size = here(way)
    model = build("mlp", torch.float32)
    optimizer = make_optimizer(way, model, torch.optim.SGD, lr=0.1)
    group = None if way is None else optimizer.group
    scaler = GradScaler(init_scale=1024.0, group=group)
    for step in range(4):
        x, y = batch_of("mlp", step, torch.float32, BATCH // size, rank)
        optimizer.zero_grad()
        loss = scaler.scale(loss_of(model(x), y))
        overflows = step == 1 and rank == size - 1
        handle = model.layers[0].weight.register_hook(lambda own, too=overflows: own + torch.inf if too else own)
        loss.backward()
        handle.remove()
        scaler.step(optimizer)
        scaler.update()
    return weights_of(model), scaler.skipped, scaler.get_scale()


def test_every_rank_skips_where_one_shard_overflowed(ranks):
    expected = scaled(None)
    for found in ranks[:3].run(scaled, "stage 1"):
        assert found[1:] == expected[1:] == (1, 512.0)
        assert_equal(expected[0], found[0])


def failed(fail):
    """A hook of the user's raises in the middle of a backward on every rank; the next step is a normal one."""
    model = build("mlp")
    optimizer = Zero2(model, torch.optim.SGD, bucket_bytes=300, lr=0.1)
    x, y = batch_of("mlp", 0, torch.float64, 6, dist.get_rank())
    if fail:
        handle = model.layers[0].weight.register_hook(lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            loss_of(model(x), y).backward()
        handle.remove()
    optimizer.zero_grad()
    loss_of(model(x), y).backward()
    optimizer.step()
    return weights_of(model)


def test_a_backward_that_raised_leaves_nothing_behind(ranks):
    assert_equal(ranks[:2].run(failed, False)[0], ranks[:2].run(failed, True))


# ---- messages and bytes ----


def logged(way, microbatches, silent=False, bucket_bytes=2000):
    model = build("TinyGPT", torch.float32)
    options = {} if way == "stage 1, all_reduce" else {"bucket_bytes": bucket_bytes}
    optimizer = make_optimizer(way, model, torch.optim.AdamW, lr=1e-3, **options)
    with record_comms() as recorder:
        for micro in range(microbatches):
            x, y = batch_of("TinyGPT", micro, torch.float32, 3, dist.get_rank())
            with optimizer.no_sync() if silent and micro < microbatches - 1 else nullcontext():
                loss_of(model(x), y).backward()
        optimizer.step()
    sizes = [p.numel() for p in model.parameters()]
    return [(e.op, e.payload_bytes) for e in recorder.log.events], sizes, optimizer.padding, len(optimizer.vectors)


def predicted(way, sizes, size, microbatches):
    stage, reduce = (2 if way == "stage 2" else 1), "all_reduce" if "all_reduce" in way else "reduce_scatter"
    options = {} if reduce == "all_reduce" else {"bucket_bytes": 2000}
    log = zero_traffic(sizes, stage=stage, world_size=size, num_microbatches=microbatches, reduce=reduce, **options)
    return [(e.op, e.payload_bytes) for e in log.for_rank(0).events]


ONCE = [(way, 1, False) for way in WAYS] + [(way, 3, True) for way in WAYS]


@pytest.mark.parametrize(("way", "microbatches", "silent"), [*ONCE, ("stage 2", 3, False)])
def test_payload_is_as_predicted_to_the_byte(ranks, way, microbatches, silent):
    """Under no_sync the micro-batches send what one would."""
    for events, sizes, padding, num_vectors in ranks[:3].run(logged, way, microbatches, silent):
        assert sorted(events) == sorted(predicted(way, sizes, 3, 1 if silent else microbatches))
        assert num_vectors == 1 or way != "stage 1, all_reduce"
        gathered = sum(payload for op, payload in events if op == "all_gather")
        assert gathered * 3 == 4 * (sum(sizes) + padding)


def measured(way, widths, precision):
    torch.manual_seed(0)
    model = MLP(widths).to(torch.float32 if precision == "fp32" else torch.bfloat16)
    optimizer_class = torch.optim.AdamW
    if precision == "mixed":
        optimizer_class = partial(MasterWeights, optimizer_class=torch.optim.AdamW)
    optimizer = {"1": Zero1, "2": Zero2}[way](model.parameters() if way == "1" else model, optimizer_class, lr=1e-3)
    with record_memory(model, optimizer) as recorder:
        for step in range(2):
            optimizer.zero_grad()
            loss = model(torch.ones(4, widths[0], dtype=model.layers[0].weight.dtype)).square().mean()
            loss.backward()
            recorder.mark(f"after backward {step}")
            del loss
            optimizer.step()
            recorder.mark(f"after step {step}")
    names = ("after backward 1", "after step 1")
    found = [recorder.at(name) for name in names]
    if way == "2" and precision == "mixed":  # the meter sees the masters' gradients, which step() makes and drops
        gradients = sum(bucket.sum.nbytes for bucket in optimizer.buckets)
        found = [replace(breakdown, gradients=breakdown.gradients + gradients) for breakdown in found]
    return found, sum(p.numel() for p in model.parameters()), optimizer.padding


@pytest.mark.parametrize("precision", ["fp32", "mixed"])
@pytest.mark.parametrize("way", ["1", "2"])
@pytest.mark.parametrize("size", [1, 3])
def test_bytes_a_rank_are_model_states_to_the_byte(ranks, way, precision, size):
    """300 parameters, which 1 and 3 divide."""
    for found, num_params, padding in ranks[:size].run(measured, way, [11, 12, 12], precision):
        expected = model_states(num_params, Plan(dp=size, zero=int(way), precision=precision))
        assert padding == 0
        for breakdown in found:
            for kind in ("parameters", "gradients", "optimizer"):
                assert getattr(breakdown, kind) == getattr(expected, kind), (kind, breakdown.instant)


@pytest.mark.parametrize("way", ["1", "2"])
def test_bytes_where_padding_is_needed(ranks, way):
    """287 parameters on 4 ranks: 72 each, one of padding. It costs whole vectors 4 bytes, optimizer state nothing."""
    results = ranks.run(measured, way, [11, 12, 11], "fp32")
    expected = model_states(287, Plan(dp=4, zero=int(way), precision="fp32"))
    for rank, (found, num_params, padding) in enumerate(results):
        assert (num_params, padding) == (287, 1)
        for breakdown in found:
            assert breakdown.parameters == expected.parameters + 4
            assert breakdown.gradients == expected.gradients + (4 if way == "1" else 0)
            assert breakdown.optimizer == expected.optimizer - (8 if rank == 3 else 0)


# ---- what it is given ----


SGD = partial(torch.optim.SGD, lr=0.1)
BAD = {
    "known are 'reduce_scatter' and 'all_reduce'": lambda model: Zero1(model.parameters(), SGD, reduce="gather"),
    "layers.0.weight is layers.0.weight once more": lambda model: Zero1(2 * [*model.named_parameters()], SGD),
    "none of them trainable": lambda model: Zero2(model.requires_grad_(False), SGD),
    "Adafactor is not elementwise": lambda model: Zero2(model, torch.optim.Adafactor),
    "a cap must be above 0": lambda model: Zero2(model, SGD, bucket_bytes=0),
    r"where rank 0 has layers.0.weight \(4, 8\)": lambda _: Zero1(
        MLP([8, 4 + dist.get_rank()]).named_parameters(), SGD
    ),
}


@pytest.mark.parametrize("text", BAD)
def test_bad_input_gets_a_sentence_and_leaves_the_model_as_it_was(ranks, text):
    def refused(make):
        model = build("mlp")
        before = [p.data_ptr() for p in model.parameters()]
        with pytest.raises(ValueError, match=text):
            make(model)
        assert [p.data_ptr() for p in model.parameters()] == before

    ranks[:2].run(refused, BAD[text])
