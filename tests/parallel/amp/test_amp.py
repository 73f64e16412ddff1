"""Loss scaling is torch's, step by step; on several ranks the found-inf flag decides whether they stay together."""

import copy
import functools

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from helpers.devices import computing_device
from helpers.parallel import amp
from helpers.parallel.amp import GradScaler, MasterWeights, StaticScaler, autocast
from helpers.parallel.ddp import DistributedDataParallel
from helpers.workloads import GPT, MLP, GPTConfig, synthetic, synthetic_tokens, token_loss

INF = float("inf")


def torchs_scaler(**options):
    return torch.amp.GradScaler(computing_device().type, **options)


def torchs_autocast():
    return torch.autocast(computing_device().type, dtype=torch.float16)


def our_autocast():
    return autocast(torch.float16, device_type=computing_device().type)


def batch(step: int):
    return synthetic(8, 64, 10, seed=step)


def train(scaler, region, make_optimizer, *, steps: int, overflow_at=lambda step: False, clip: float | None = 0.5):
    """Scales, skipped steps and weights after each step of an MLP."""
    torch.manual_seed(0)
    model = MLP([64, 32, 10])
    optimizer = make_optimizer(model.parameters())
    scales, skipped, weights = [], [], []
    for step in range(steps):
        optimizer.zero_grad()
        x, y = batch(step)
        with region():
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        if overflow_at(step):
            model.layers[0].weight.grad[0, 0] = INF if step % 2 else float("nan")
        if clip is not None:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        before = model.layers[0].weight.detach().clone()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        skipped.append(torch.equal(before, model.layers[0].weight))
        weights.append([parameter.detach().clone() for parameter in model.parameters()])
    return scales, skipped, weights


def same_weights(a, b) -> bool:
    return all(torch.equal(x, y) for left, right in zip(a, b, strict=True) for x, y in zip(left, right, strict=True))


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=1e-2)


def momentum(parameters):
    return torch.optim.SGD(parameters, lr=1e-2, momentum=0.9)


def fused(parameters):
    """torch's scaler lets this one divide by the scale and skip by itself, inside its kernel."""
    return torch.optim.AdamW(parameters, lr=1e-2, fused=True)


# ---- one process against torch ----


@pytest.mark.parametrize("make_optimizer", [adamw, momentum, fused])
@pytest.mark.parametrize(
    "options",
    [
        dict(growth_interval=4),
        dict(growth_interval=3, growth_factor=1.7, backoff_factor=0.3, init_scale=1000.1),  # no powers of two
        dict(growth_interval=2, init_scale=2.0**30),  # overflows by itself, until the scale fits
    ],
    ids=["powers of two", "odd factors", "too large at first"],
)
def test_same_scales_same_skipped_steps_same_weights(options, make_optimizer):
    steps = dict(steps=50, overflow_at=lambda step: step % 11 == 3 or step in (20, 21, 22))
    scaler = GradScaler(**options)
    ours = train(scaler, our_autocast, make_optimizer, **steps)
    theirs = train(torchs_scaler(**options), torchs_autocast, make_optimizer, **steps)
    assert ours[:2] == theirs[:2]
    assert same_weights(ours[2], theirs[2])
    assert scaler.skipped == sum(ours[1]) >= 7
    assert len(set(ours[0])) > 3


def test_the_defaults_are_torchs_and_the_scale_doubles_after_2000_good_steps():
    ours, theirs = GradScaler(), torchs_scaler()
    assert ours.state_dict() == theirs.state_dict()
    weight = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    for step in range(2000):
        assert ours.get_scale() == 65536, step
        ours.scale(weight.sum()).backward()
        ours.step(optimizer)
        ours.update()
    assert ours.get_scale() == 131072


def test_without_unscale_step_unscales():
    ours = train(GradScaler(growth_interval=4), our_autocast, adamw, steps=12, clip=None)
    theirs = train(torchs_scaler(growth_interval=4), torchs_autocast, adamw, steps=12, clip=None)
    assert ours[0] == theirs[0]
    assert same_weights(ours[2], theirs[2])


def test_in_float32_a_scale_changes_nothing():
    """Powers of two move the exponent alone, so the weights are those without any scaler, bit for bit."""
    scaled = train(GradScaler(), lambda: autocast(torch.float16, enabled=False), adamw, steps=5)
    plain = train(GradScaler(enabled=False), lambda: autocast(torch.float16, enabled=False), adamw, steps=5)
    assert same_weights(scaled[2], plain[2])


def test_accumulation_unscales_once():
    def accumulated(scaler, region):
        torch.manual_seed(0)
        model = GPT(GPTConfig.tiny(num_layers=1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        for step in range(3):
            optimizer.zero_grad()
            for micro in range(4):
                tokens, targets = synthetic_tokens(2, 8, 68, seed=4 * step + micro)
                with region():
                    loss = token_loss(model(tokens), targets) / 4
                scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
        return [*(parameter.detach() for parameter in model.parameters()), norm]

    ours, theirs = accumulated(GradScaler(), our_autocast), accumulated(torchs_scaler(), torchs_autocast)
    assert same_weights([ours], [theirs])


def test_clipping_before_unscaling_clips_away_nearly_everything():
    def moved(order):
        weight = nn.Parameter(torch.zeros(1))
        optimizer, scaler = torch.optim.SGD([weight], lr=1.0), GradScaler()
        scaler.scale(weight.sum() * 0.1).backward()  # a gradient of 0.1, below the threshold of 1
        for action in order:
            {"unscale": lambda: scaler.unscale_(optimizer), "clip": lambda: nn.utils.clip_grad_norm_([weight], 1.0)}[
                action
            ]()
        scaler.step(optimizer)
        return -weight.item()

    assert moved(["unscale", "clip"]) == pytest.approx(0.1)
    assert moved(["clip", "unscale"]) == pytest.approx(1 / 65536, rel=1e-3)


def test_two_optimizers_and_one_overflow():
    def run(scaler):
        first, second = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
        optimizers = [torch.optim.SGD([parameter], lr=1.0) for parameter in (first, second)]
        scaler.scale((first + second).sum()).backward()
        second.grad[0] = INF
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()
        return first.tolist(), second.tolist(), scaler.get_scale()

    assert run(GradScaler()) == run(torchs_scaler()) == ([0, 0], [1, 1], 32768)


def test_small_gradients_survive_only_with_a_scale():
    def gradient(scaler):
        weight, x = nn.Parameter(torch.ones(1, 1)), torch.full((1, 1), 2.0**-14)
        with autocast(torch.float16):
            loss = (x @ weight).float() * 2.0**-14  # the gradient, 2**-28, is below half of fp16's smallest number
        scaler.scale(loss.sum()).backward()
        scaler.unscale_(torch.optim.SGD([weight], lr=1.0))
        return weight.grad.item()

    assert gradient(StaticScaler(1.0)) == 0
    assert gradient(GradScaler()) == 2.0**-28


def test_a_scale_that_would_leave_float32_stays():
    def last_scale(scaler):
        weight = nn.Parameter(torch.ones(1))
        optimizer = torch.optim.SGD([weight], lr=0.0)
        for _ in range(3):
            optimizer.zero_grad()
            scaler.scale(weight.sum() * 1e-10).backward()
            scaler.step(optimizer)
            scaler.update()
        return scaler.get_scale()

    options = dict(init_scale=2.0**126, growth_interval=1)
    assert last_scale(GradScaler(**options)) == last_scale(torchs_scaler(**options)) == 2.0**127


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_scaled_loss_has_torchs_type_and_value(dtype):
    loss = torch.tensor(3.0, dtype=dtype)
    ours, theirs = GradScaler().scale(loss), torchs_scaler().scale(loss)
    assert ours.dtype == theirs.dtype
    assert ours.item() == theirs.item() == 3 * 65536


def test_state_goes_to_torch_and_back():
    """Four stretches of one training run, each with the other's scaler; the growth counter moves too."""

    def run(makers):
        torch.manual_seed(0)
        model = MLP([64, 16, 10])
        optimizer, state, scales = adamw(model.parameters()), None, []
        for stretch, make in enumerate(makers):
            scaler = make(growth_interval=5)
            if state is not None:
                scaler.load_state_dict(state)
            for step in range(7 * stretch, 7 * stretch + 7):
                optimizer.zero_grad()
                x, y = batch(step)
                scaler.scale(F.cross_entropy(model(x), y)).backward()
                if step in (8, 17):
                    model.layers[0].bias.grad[0] = INF
                scaler.step(optimizer)
                scaler.update()
                scales.append(scaler.get_scale())
            state = copy.deepcopy(scaler.state_dict())
        return scales, state, [[parameter.detach() for parameter in model.parameters()]]

    mixed, alone = run([GradScaler, torchs_scaler, GradScaler, torchs_scaler]), run([torchs_scaler] * 4)
    assert mixed[:2] == alone[:2]
    assert same_weights(mixed[2], alone[2])


def test_scaler_by_hand_and_switched_off():
    scaler = GradScaler()
    scaler.update(new_scale=512.0)
    assert scaler.get_scale() == 512
    off = GradScaler(enabled=False)
    weight = nn.Parameter(torch.ones(1))
    loss = weight.sum()
    assert off.scale(loss) is loss
    loss.backward()
    optimizer = torch.optim.SGD([weight], lr=1.0)
    off.unscale_(optimizer), off.step(optimizer), off.update()
    assert weight.item() == 0
    assert (off.get_scale(), off.state_dict()) == (1.0, {})


def test_a_static_scale_stays_and_skips_all_the_same():
    scaler = StaticScaler(1024.0)
    _, skipped, _ = train(scaler, our_autocast, momentum, steps=12, overflow_at=lambda step: step == 5)
    assert skipped == [step == 5 for step in range(12)]
    assert scaler.get_scale() == 1024
    fresh = StaticScaler()
    fresh.load_state_dict({**scaler.state_dict(), "scale": 256.0})
    assert fresh.get_scale() == 256


# ---- with master weights ----


def test_fp16_weights_with_masters_unscale_in_float32():
    weight = nn.Parameter(torch.ones(1, 1).half())
    optimizer, scaler = MasterWeights([weight], torch.optim.SGD, lr=2.0**20), GradScaler()
    x = torch.full((1, 1), 2.0**-14).half()
    scaler.scale((x @ weight).float().sum() * 2.0**-14).backward()
    scaler.unscale_(optimizer)
    assert optimizer.masters[0].grad.item() == 2.0**-28  # 0 in float16
    assert weight.grad.item() == 2.0**-12  # still scaled
    scaler.step(optimizer)
    assert weight.item() == 1 - 2.0**-8


def test_an_overflow_leaves_masters_and_weights_and_the_next_step_is_clean():
    weight = nn.Parameter(torch.ones(2).half())
    optimizer, scaler = MasterWeights([weight], torch.optim.SGD, lr=0.5), GradScaler()
    for gradient, expected in ((INF, 1.0), (32768.0, 0.5)):
        optimizer.zero_grad()
        scaler.scale(weight.sum() * 0).backward()
        weight.grad.fill_(gradient)
        scaler.step(optimizer)
        scaler.update()
        assert weight.tolist() == [expected] * 2
        assert optimizer.masters[0].tolist() == [expected] * 2
    assert scaler.skipped == 1


# ---- bad input ----


def backward_once(scaler):
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler.scale(weight.sum()).backward()
    return weight, optimizer


def test_methods_out_of_order():
    scaler = GradScaler()
    _, optimizer = backward_once(scaler)
    scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match=r"unscale_\(\) for an optimizer that is unscaled already: the order is"):
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    with pytest.raises(RuntimeError, match=r"step\(\) for an optimizer that is stepped already"):
        scaler.step(optimizer)
    with pytest.raises(RuntimeError, match=r"unscale_\(\) for an optimizer that is stepped already"):
        scaler.unscale_(optimizer)
    scaler.update()
    with pytest.raises(RuntimeError, match=r"update\(\) before step\(\)"):
        scaler.update()


def test_no_gradients_or_no_scale():
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=1.0)
    with pytest.raises(RuntimeError, match=r"without scale\(loss\)"):
        GradScaler().step(optimizer)
    scaler = GradScaler()
    backward_once(scaler)
    with pytest.raises(RuntimeError, match="none of whose parameters has a gradient"):
        scaler.step(optimizer)


@pytest.mark.parametrize("bad", [float("nan"), INF])
def test_a_loss_that_is_not_finite_is_not_the_scales_fault(bad):
    scaler = GradScaler()
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler.scale((weight * bad).sum()).backward()
    with pytest.raises(RuntimeError, match="the loss itself was inf or NaN before it was scaled"):
        scaler.step(optimizer)
    assert weight.tolist() == [1, 1]
    scaler.update()  # whoever goes on does so as with torch
    assert scaler.get_scale() == 32768
    backward_once(scaler)  # and the next step starts with a clean flag
    optimizer.zero_grad()
    scaler.scale(weight.sum()).backward()
    weight.grad[0] = INF
    scaler.step(optimizer)
    assert scaler.skipped == 1


def test_fp16_gradients():
    weight = nn.Parameter(torch.ones(2).half())
    scaler = GradScaler()
    scaler.scale(weight.float().sum()).backward()
    with pytest.raises(ValueError, match=r"Attempting to unscale FP16 gradients\..*MasterWeights"):
        scaler.unscale_(torch.optim.SGD([weight], lr=1.0))


def test_constructors_and_states():
    for scale in (0.0, -1.0, INF, float("nan")):
        with pytest.raises(ValueError, match="a loss scale of"):
            GradScaler(scale)
    for options in (
        dict(growth_factor=1.0),
        dict(backoff_factor=1.0),
        dict(backoff_factor=0.0),
        dict(growth_interval=0),
    ):
        with pytest.raises(ValueError, match="expected a growth above 1"):
            GradScaler(**options)
    with pytest.raises(ValueError, match="enabled=False"):
        GradScaler().load_state_dict({})


def test_todays_spellings_exist():
    """Each old name is a key once, and where today's has the shape of a call to torch, torch has it."""
    for today in amp.OLD_SPELLINGS.values():
        for name in ("torch.autocast", "torch.amp.GradScaler", "torch.amp.custom_fwd"):
            if today.startswith(name):
                assert callable(functools.reduce(getattr, name.split(".")[1:], torch))
    assert 'torch.amp.GradScaler("cuda")' in amp.OLD_SPELLINGS.values()


# ---- on several ranks: under DDP an inf reaches everyone by itself ----


def loud_batch(step: int, rank: int):
    """Rank 1 gets features 10,000 times too large at steps 3 and 8: its gradients overflow in float16, its loss not."""
    x, y = batch(4 * step + rank)
    return (x * 1e4 if rank == 1 and step in (3, 8) else x), y


def train_ddp(wrap, make_scaler, region):
    torch.manual_seed(0)
    model = wrap(MLP([64, 32, 10]))
    optimizer, scaler = momentum(model.parameters()), make_scaler(growth_interval=4)
    scales, own_overflow = [], []
    for step in range(12):
        optimizer.zero_grad()
        x, y = loud_batch(step, dist.get_rank())
        with region():
            loss = F.cross_entropy(model(x), y)
        assert loss.isfinite()
        scaler.scale(loss).backward()
        own_overflow.append(not all(parameter.grad.isfinite().all() for parameter in model.parameters()))
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return scales, own_overflow, [parameter.detach().clone() for parameter in model.parameters()]


@pytest.mark.parametrize("world_size", [2, 4])
def test_under_ddp_the_all_reduce_spreads_the_inf_and_ranks_stay_together(ranks, world_size):
    ours = ranks[:world_size].run(train_ddp, DistributedDataParallel, GradScaler, our_autocast)
    theirs = ranks[:world_size].run(train_ddp, nn.parallel.DistributedDataParallel, torchs_scaler, torchs_autocast)
    for scales, overflow, weights in ours:
        assert scales == ours[0][0] == theirs[0][0]
        assert overflow == [step in (3, 8) for step in range(12)]  # on every rank, not on rank 1 alone
        assert same_weights([weights], [ours[0][2]])
    if world_size == 2:  # two numbers have one sum; of four, the order of adding may differ
        assert same_weights([ours[0][2]], [theirs[0][2]])


# ---- with sharded gradients only the owner sees it ----


def poisoned(step: int) -> bool:
    return step in (2, 6)


def train_owned(with_group: bool):
    """Each rank owns some parameters; an overflow in parameter 0 reaches only its owner, rank 0."""
    torch.manual_seed(0)
    model = MLP([64, 16, 16, 10]).double()
    parameters, world_size = list(model.parameters()), dist.get_world_size()
    optimizer = torch.optim.SGD(parameters[dist.get_rank() :: world_size], lr=0.1, momentum=0.9)
    scaler = GradScaler(growth_interval=3, group=dist.group.WORLD if with_group else None)
    scales = []
    for step in range(10):
        model.zero_grad()
        x, y = batch(4 * step + dist.get_rank())
        scaler.scale(F.cross_entropy(model(x.double()), y)).backward()
        if poisoned(step):
            parameters[0].grad[0, 0] = INF
        for i, parameter in enumerate(parameters):
            dist.reduce(parameter.grad, i % world_size)
            parameter.grad = parameter.grad / world_size if i % world_size == dist.get_rank() else None
        scaler.step(optimizer)
        scaler.update()
        for i, parameter in enumerate(parameters):
            dist.broadcast(parameter.data, i % world_size)
        scales.append(scaler.get_scale())
    return scales, [parameter.detach().clone() for parameter in model.parameters()]


def train_alone(world_size: int):
    """The same with torch's scaler in one process on the batches of all ranks."""
    torch.manual_seed(0)
    model = MLP([64, 16, 16, 10]).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler, scales = torchs_scaler(growth_interval=3), []
    for step in range(10):
        optimizer.zero_grad()
        batches = [batch(4 * step + rank) for rank in range(world_size)]
        x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
        scaler.scale(F.cross_entropy(model(x.double()), y)).backward()
        if poisoned(step):
            next(model.parameters()).grad[0, 0] = INF
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return scales, [parameter.detach() for parameter in model.parameters()]


def farthest(weights, reference) -> float:
    return max(((a - b).norm() / b.norm()).item() for a, b in zip(weights, reference, strict=True))


@pytest.mark.parametrize("world_size", [2, 4])
def test_with_sharded_gradients_ranks_drift_apart_unless_the_flag_is_reduced(ranks, world_size):
    expected_scales, expected = train_alone(world_size)
    drifted = ranks[:world_size].run(train_owned, with_group=False)
    assert drifted[0][0] != drifted[1][0]  # the owner halved its scale twice, the others never
    assert drifted[0][0][2] == 32768
    assert drifted[1][0][2] == 131072
    assert all(farthest(weights, expected) > 1e-2 for _, weights in drifted)
    cured = ranks[:world_size].run(train_owned, with_group=True)
    for scales, weights in cured:
        assert scales == expected_scales
        assert farthest(weights, expected) < 1e-10


def test_with_a_group_a_rank_may_have_no_gradient_and_no_loss(ranks):
    def stage():
        """A pipeline: only the last rank has a loss; here rank 0 has no gradient either."""
        weight = nn.Parameter(torch.ones(1))
        optimizer, scaler = torch.optim.SGD([weight], lr=1.0), GradScaler(group=dist.group.WORLD)
        if dist.get_rank() == 1:
            scaler.scale(weight.sum()).backward()
            weight.grad.fill_(INF)
        scaler.step(optimizer)
        scaler.update()
        return scaler.get_scale(), scaler.skipped

    assert ranks[:3].run(stage) == [(32768, 1)] * 3


def test_with_a_group_all_ranks_hear_of_a_bad_loss_or_of_missing_gradients(ranks):
    def messages():
        found = []
        for bad_rank in (1, None):
            weight = nn.Parameter(torch.ones(1))
            optimizer, scaler = torch.optim.SGD([weight], lr=1.0), GradScaler(group=dist.group.WORLD)
            if bad_rank is not None:
                factor = float("nan") if dist.get_rank() == bad_rank else 1.0
                scaler.scale((weight * factor).sum()).backward()
            with pytest.raises(RuntimeError) as caught:
                scaler.step(optimizer)
            found.append(str(caught.value))
        return found

    for loss, gradients in ranks[:2].run(messages):
        assert "the loss itself was inf or NaN" in loss
        assert "none of whose parameters has a gradient" in gradients
