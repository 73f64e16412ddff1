"""Runs chapter 04: number formats, autocast, loss scaling and master weights, on one process and on ranks.

The notebook of chapter 04 calls these functions. A name that ends in `_scene` returns a `Scene`, which is a picture
that a notebook shows; one that ends in `_lines` returns lines of text to print. A function whose docstring begins with
"On a rank" runs in each process of a pool: `ranks.run(f)` calls f on every rank and returns the list of results.
`characters().batch(step, rows, length)` returns tokens and targets of a small text corpus, the same for the same step.
`autocast`, `GradScaler` and `DistributedDataParallel` are this course's own, and work like those of PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from functools import cache, partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector
from torch.utils._python_dispatch import TorchDispatchMode

from helpers.chapters.amp_formats import in_words
from helpers.chapters.amp_training import ScaledStep, scaled_steps, train_float64, zero_by_hand
from helpers.draw import Part, curves_scene, magnitudes_scene, parts_scene
from helpers.draw.chapters.amp import power_text
from helpers.draw.scene import Scene
from helpers.observe.equality import assert_equal
from helpers.observe.magnitudes import record_magnitudes
from helpers.observe.training import KEY_BIAS_ROUNDING
from helpers.parallel.amp import (
    GradScaler,
    MiniAutocast,
    MiniGradScaler,
    MiniMasterWeights,
    StaticScaler,
    amp_step,
    autocast,
)
from helpers.parallel.ddp import DistributedDataParallel
from helpers.predict.memory import model_states
from helpers.predict.precision import surviving
from helpers.ranks import Ranks
from helpers.records import Magnitudes
from helpers.specs import Plan
from helpers.workloads import GPT, GPTConfig, characters, token_loss, train_alone

SMALL = GPTConfig.tiny(hidden=64)  # the model whose underflow is counted
fp16 = partial(autocast, torch.float16)  # `with fp16():` runs a forward under autocast


# ---- underflow ----


@cache
def trained_gpt() -> GPT:
    """A small GPT after 100 steps of AdamW."""
    torch.manual_seed(0)
    gpt = GPT(SMALL)
    optimizer = torch.optim.AdamW(gpt.parameters(), lr=3e-3)
    *_, loss = train_alone(gpt, optimizer, (characters().batch(step, 16, SMALL.context) for step in range(100)))
    assert loss < 2.5  # it has learned: one that guesses among 68 characters has ln 68 = 4.2
    return gpt


# A `Magnitudes` counts how often each power of two occurs among values, zeros, and values that are not finite.
def gradient_magnitudes(scale: float, in_fp16: bool) -> Magnitudes:
    """The gradients of activations in one backward of `trained_gpt`, whose loss is multiplied by `scale`."""
    gpt = trained_gpt()
    gpt.zero_grad()
    tokens, targets = characters().batch(1000, 64, SMALL.context)  # step 1000 is not among those it was trained on
    with record_magnitudes(gpt) as recorder:
        with autocast(torch.float16, enabled=in_fp16):
            loss = token_loss(gpt(tokens), targets)
        (loss * scale).backward()
    return recorder.magnitudes["gradients of activations"]


def underflow_scene() -> tuple[Scene, list[str], str]:
    """Draw gradients of activations in fp16, with lines on two loss scales, and find the choice of 04.underflow-zero.

    The choice says how many of the unscaled gradients of the run in fp16 become zero.
    """
    exact, zeros, lines = gradient_magnitudes(1.0, in_fp16=False), {}, []
    for power in (0, 16):
        predicted = surviving(exact, "fp16", 2.0**power).zero  # the share of these values that fp16 would round to 0
        counted = gradient_magnitudes(2.0**power, in_fp16=True)
        zeros[power] = (counted.zeros - exact.zeros) / exact.total
        # The run in fp16 rounds before the last step, too, so the shares differ, by less than 0.2 % of all gradients.
        assert counted.not_finite == 0 and abs(zeros[power] - predicted) < 0.002
        shares = [f"{share:.0%}" if share >= 0.01 else "below 1%" for share in (predicted, zeros[power])]
        lines.append(f"loss scale 2**{power:<3} predicted zero {shares[0]:>8}   counted {shares[1]:>8}")
    assert 0.005 < zeros[0] < 0.1 and zeros[16] < zeros[0] / 10  # scaling brings back over nine of ten
    scene = magnitudes_scene(exact, "fp16", title="This model's gradients of activations, unscaled, in fp16")
    return scene, lines, in_words(zeros[0], {0.2: "a few percent", 0.7: "about half", 1.0: "nearly all"})


# ---- loss scalers ----


def scalers_scene() -> tuple[Scene, list[str], int]:
    """Draw the scales of a dynamic and three static scalers; a line on each; the dynamic one's skips, for 04.skips."""
    scalers = {"dynamic": GradScaler(2.0**20, growth_interval=5)}
    scalers |= {f"static {name}": StaticScaler(2.0**power) for name, power in (("1", 0), ("2¹⁰", 10), ("2³⁰", 30))}
    # A dynamic scaler halves its scale where a gradient overflows, and doubles it after five good steps.
    start = {name: scaler.get_scale() for name, scaler in scalers.items()}
    runs = {name: list(scaled_steps(scaler, fp16)) for name, scaler in scalers.items()}
    lines = [
        f"{name}: skipped {scalers[name].skipped} of 12, loss {run[0].loss:.2f} to {run[-1].loss:.2f}"
        for name, run in runs.items()
    ]
    assert [scaler.skipped for scaler in scalers.values()][1:] == [0, 0, 12]  # those of the static ones
    return _staircase(runs, start), lines, scalers["dynamic"].skipped


def _staircase(runs: dict[str, list[ScaledStep]], start: dict[str, float]) -> Scene:
    """The scale that each step used, and a mark on each step that did not change the weights.

    start: the scale before the first step, by the name of the scaler.
    """
    torch.manual_seed(0)
    initial = parameters_to_vector(GPT(GPTConfig.tiny()).parameters()).detach()
    stairs, dots = {}, {}
    for name, run in runs.items():
        powers = [math.log2(scale) for scale in [start[name], *(step.scale for step in run[:-1])]]
        weights = [initial, *(step.weights for step in run)]
        # A step is a horizontal piece from x = step to x = step + 1; the mark is in its middle.
        stairs[name] = [(x, power) for step, power in enumerate(powers) for x in (step, step + 1)]
        dots[name] = [(i + 0.5, power) for i, power in enumerate(powers) if torch.equal(weights[i], weights[i + 1])]
    title = "The loss scale, step by step. A mark is a step that was skipped."
    return curves_scene(stairs, dots=dots, title=title, x="step", y="log2 of the loss scale", dashed=[*runs][1::2])


def loss_after(optimizer_class: type, lr: float, clip_first: bool, steps: int = 40) -> float:
    """The loss after some steps in fp32. clip_first: the mistake of clipping gradients that are still scaled."""
    options = dict(lr=lr, steps=steps, batch=16, unscale_first=not clip_first)
    *_, last = scaled_steps(GradScaler(), nullcontext, optimizer_class, **options)
    return last.loss


# ---- autocast ----


class CastCounter(TorchDispatchMode):
    """Counts how often a tensor is copied to another dtype."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten._to_copy.default
        return func(*args, **(kwargs or {}))


def weight_cache_lines() -> Iterator[str]:
    """How often autocast casts a weight with and without its cache, and whether the cache notices a changed weight."""
    layer, x = nn.Linear(4, 4, bias=False), torch.ones(1, 4)
    for uses_cache in (True, False):
        with CastCounter() as casts, autocast(torch.bfloat16, cache=uses_cache):
            y = x.bfloat16()
            for _ in range(10):
                y = layer(y)
        num_casts = casts.count - 1  # without the cast of x
        yield f"casts for ten uses of one weight, cache={uses_cache}: {num_casts}"
    with autocast(torch.bfloat16):
        before = layer(x)
        nn.init.zeros_(layer.weight)  # a step inside the region
        yield f"after a step inside the region the old weight is still used: {torch.equal(layer(x), before)}"


def compare_with_torch_lines() -> Iterator[str]:
    """Twelve steps of `amp_step` and of the same step with PyTorch's parts: AssertionError where they are not equal."""
    start, interval = 2.0**19, 3
    ours = MiniGradScaler(start, interval)
    torch_scaler = torch.amp.GradScaler("cpu", init_scale=start, growth_interval=interval)
    factors, weights = _twelve_steps(ours, MiniAutocast, lambda: ours.factor)
    torch_region = partial(torch.autocast, "cpu")
    torch_factors, torch_weights = _twelve_steps(torch_scaler, torch_region, torch_scaler.get_scale)
    assert factors == torch_factors and torch.equal(weights, torch_weights)
    before = [start, *factors]
    skipped = [step for step in range(12) if before[step] > before[step + 1]]  # a skipped step lowers the factor
    yield f"both scalers start at {power_text(math.log2(start))} and double their scale after {interval} good steps"
    yield f"12 steps, {len(weights):,} weights: scales and weights are equal to the last bit"
    yield f"both skip the steps {', '.join(map(str, skipped))} and end at {power_text(math.log2(factors[-1]))}"


def _twelve_steps(scaler, region: Callable, factor: Callable) -> tuple[list[float], Tensor]:
    """The scaler's factor after each step of a small GPT in fp16, and the weights at the end, flattened."""
    torch.manual_seed(0)
    model, factors = GPT(GPTConfig.tiny()), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(12):
        batch = characters().batch(step, 8, 32)
        amp_step(model, token_loss, optimizer, scaler, [batch], 1.0, autocast=region)
        factors.append(factor())
    return factors, parameters_to_vector(model.parameters()).detach()


def saved_scaler_lines() -> Iterator[str]:
    """What a scaler saves with a checkpoint: PyTorch's scaler continues from the state of this course's."""
    scaler, torch_scaler = GradScaler(2.0**17), torch.amp.GradScaler("cpu")
    torch_scaler.load_state_dict(scaler.state_dict())
    assert torch_scaler.state_dict() == scaler.state_dict()
    yield f"saved with a checkpoint: {scaler.state_dict()}"


def bytes_saved_for_backward(region) -> int:
    """Bytes that the forward of `trained_gpt` saves for backward, without parameters, each storage once.

    region: the context in which it runs, such as autocast.
    """
    gpt, saved = trained_gpt(), {}  # saved: address of a storage -> its bytes, and a tensor of it
    parameters = {parameter.data_ptr() for parameter in gpt.parameters()}

    def pack(tensor: Tensor) -> Tensor:
        if tensor.data_ptr() not in parameters:  # the tensor is kept alive, so that no other gets its address
            saved[tensor.data_ptr()] = tensor.untyped_storage().nbytes(), tensor
        return tensor

    tokens, targets = characters().batch(0, 64, 32)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), region:
        token_loss(gpt(tokens), targets)
    return sum(size for size, _ in saved.values())


def kept_share_in_words(share: float) -> str:
    """Say which share is kept, as a choice of 04.activations."""
    return in_words(share, {0.4: "a quarter", 0.6: "half", 0.8: "about two thirds", math.inf: "as much"})


# ---- master weights ----


def share_of_moved_norms(make_optimizer: Callable, lr: float = 3e-4, steps: int = 20) -> float:
    """The share of the normalization layers' weights, in bf16 and all 1 at first, that training changes.

    make_optimizer(parameters, lr) makes the optimizer. Without fp32 master weights a small update of 1 is rounded away.
    """
    torch.manual_seed(0)
    model = GPT(GPTConfig.tiny()).bfloat16()
    start = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimizer = make_optimizer(model.parameters(), lr)
    for step in range(steps):
        tokens, targets = characters().batch(step, 8, 32)
        model.zero_grad()
        token_loss(model(tokens).float(), targets).backward()
        optimizer.step()
    now = dict(model.named_parameters())
    norms = torch.cat([now[name] != start[name] for name in start if name.endswith("norm.weight")])
    return norms.float().mean().item()


def share_in_words(share: float) -> str:
    """Say which share it is, as a choice of 04.no-master."""
    return {0: "none", 1: "all"}.get(share, "about half")


def mixed_precision_bytes() -> tuple[dict[str, float], dict[str, float]]:
    """Bytes of the model states with master weights, predicted and measured, by kind: "parameters, bytes" and so on."""
    model = GPT(GPTConfig.tiny()).bfloat16()
    optimizer = MiniMasterWeights(model.parameters(), torch.optim.AdamW, lr=1e-4)  # keeps an fp32 copy of each weight
    tokens, targets = characters().batch(0, 8, 32)
    token_loss(model(tokens).float(), targets).backward()
    optimizer.step()
    moments = [m for state in optimizer.optimizer.state.values() for name, m in state.items() if name != "step"]
    measured = {
        "parameters": sum(parameter.nbytes for parameter in model.parameters()),
        "gradients": sum(parameter.grad.nbytes for parameter in model.parameters()),
        "optimizer": sum(tensor.nbytes for tensor in (*optimizer.masters, *moments)),
    }
    measured["total"] = sum(measured.values())
    states = model_states(model.config.num_parameters, Plan(precision="mixed"))  # the prediction
    assert measured["total"] == 16 * model.config.num_parameters == states.total  # 2 + 2 + 3 x 4 bytes per parameter
    predicted = {kind: getattr(states, kind) for kind in measured}
    return tuple({f"{kind}, bytes": size for kind, size in sizes.items()} for sizes in (predicted, measured))


# ---- on ranks ----

# One rank in a picture: its parts from left to right, and the text behind them.
Lane = tuple[list[tuple[str, bool]], str]  # (text, whether it is wrong) of each part, and what stands at the end


def _lanes(title: str, lanes: Iterable[Lane]) -> Scene:
    """One lane per rank. What is wrong, or inf, has another colour: a kind of span only gives its colour here."""
    rows, ends = {}, {}
    for rank, (parts, end) in enumerate(lanes):
        kinds = ["communication" if is_wrong else "backward" for _, is_wrong in parts]
        rows[f"rank {rank}"] = [Part(text=t, kind=kind, size=1) for (t, _), kind in zip(parts, kinds, strict=True)]
        ends[f"rank {rank}"] = end
    return parts_scene(rows, title=title, ends=ends, legend={"backward": "sound", "communication": "inf, or wrong"})


def three_steps(unscale_first: bool = False) -> tuple[float, int, float]:
    """On a rank: three steps, in the second of which rank 1 overflows.

    Returns log2 of the loss scale, the number of skipped steps, and one weight. unscale_first: the rank uses no DDP.
    """
    torch.manual_seed(0)
    layer = nn.Linear(8, 1, bias=False)
    model = layer if unscale_first else DistributedDataParallel(layer)
    optimizer, scaler = torch.optim.SGD(layer.parameters(), lr=0.1), GradScaler(2.0**15)
    for step in range(3):
        optimizer.zero_grad()
        x = torch.full((1, 8), 4.0 if (dist.get_rank(), step) == (1, 1) else 0.125)  # 4 x 2**15 is above 65504
        with autocast(torch.float16):
            loss = model(x).sum()
        scaler.scale(loss).backward()  # DDP: the all-reduce happens in here
        if unscale_first:
            scaler.unscale_(optimizer)
            dist.all_reduce(layer.weight.grad, op=dist.ReduceOp.AVG)
        scaler.step(optimizer)
        scaler.update()
    return math.log2(scaler.get_scale()), scaler.skipped, layer.weight[0, 0].item()


def overflow_scene(title: str, by_rank: list[tuple[float, int, float]]) -> Scene:
    """One lane per rank of what `three_steps` returned: the batch is known, the rest is measured."""
    lanes = []
    for rank, (_, skipped, weight) in enumerate(by_rank):
        batch = (f"gradients of its batch: {'inf' if rank == 1 else 'finite'}", rank == 1)
        flag = (f"its scaler sees: {'inf' if skipped else 'finite'}", bool(skipped))
        after = (f"weight after: {weight:.3f}", not math.isfinite(weight))
        lanes.append(([batch, flag, after], "skips" if skipped else "steps"))
    return _lanes(title, lanes)


def what_others_do(by_rank: list[tuple[float, int, float]]) -> str:
    """Say what the ranks without an overflow did in `three_steps`, as a choice of 04.overflow."""
    all_skip = all(skipped == 1 for _, skipped, _ in by_rank)
    return "they skip it as well" if all_skip else "they step, and the ranks drift apart"


def sharded_overflow_scene(ranks: Ranks) -> tuple[Scene, str]:
    """Draw the step after an overflow in one shard, one lane per rank, and find the choice of 04.sharded.

    AssertionError where a group does not cure it.
    """
    drifting, cured = ranks.run(zero_by_hand), ranks.run(lambda: zero_by_hand(dist.group.WORLD))
    assert cured == [(14.0, 1, 1.0)] * 4, "with the flag reduced every rank skips once, and sees the true gradient"
    # Only rank 3 has halved its scale, so the mean of the four scales is 7/8 of the others' and 7/4 of its own.
    assert [factor for _, _, factor in drifting] == [0.875, 0.875, 0.875, 1.75]
    lanes = []
    for scale, skipped, factor in drifting:
        parts = [(f"loss scale {power_text(scale)}", bool(skipped))]  # such as 2¹⁴
        parts.append((f"sees {factor:g} of the true gradient", factor != 1))
        lanes.append((parts, "skipped one" if skipped else "skipped none"))
    is_wrong = any(factor != 1 for _, _, factor in drifting)
    outcome = "wrong gradients, no error" if is_wrong else "all is right again"
    return _lanes("The step after an overflow in rank 3's shard", lanes), outcome


def equal_to_one_process(ranks: Ranks) -> str:
    """The verdict on four ranks with two micro-batches, the core's scaler and clipping, against one process without."""
    alone = train_float64(lambda gpt: gpt, GradScaler(enabled=False))
    by_rank = ranks.run(lambda: train_float64(DistributedDataParallel, MiniGradScaler(), 2, dist.get_rank(), 4))
    return assert_equal(alone, by_rank, atol=KEY_BIAS_ROUNDING)  # the attention keys' bias has rounding noise only
