"""Runs chapter 04: number formats, autocast, loss scaling and master weights, on one process and on ranks.

The notebook of chapter 04 calls these functions. A name that ends in `_scene` returns a `Scene`, which is a picture
that a notebook shows; one that ends in `_lines` returns lines of text to print. A function whose docstring begins with
"On a rank" runs in each process of a pool: `ranks.run(f)` calls f on every rank and returns the list of results.
`characters().batch(step, rows, length)` returns tokens and targets of a small text corpus, the same for the same step.
`autocast`, `GradScaler` and `DistributedDataParallel` are this course's own, and work like those of PyTorch.
"""

from __future__ import annotations

import math
import timeit
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from functools import cache, partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector
from torch.utils._python_dispatch import TorchDispatchMode

from helpers.chapters.amp_training import ScaledStep, scaled_steps, train_float64, zero_by_hand
from helpers.draw import Part, lines_scene, magnitudes_scene, parts_scene
from helpers.draw.number_formats import power_text
from helpers.draw.scene import Scene
from helpers.observe.equality import assert_equal
from helpers.observe.magnitudes import record_magnitudes
from helpers.observe.training import KEY_BIAS_ROUNDING
from helpers.parallel.amp import GradScaler, MasterWeights, StaticScaler, autocast
from helpers.parallel.ddp import DistributedDataParallel
from helpers.parallel.shared.autocast import FLOAT32, LOWER
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
    """The gradients of activations in fp16, lines with the share that becomes zero at two loss scales, and a word.

    The word says what most of the unscaled gradients of the run in fp16 are: "normal", "subnormal" or "zero".
    """
    exact, zeros, lines, kinds = gradient_magnitudes(1.0, in_fp16=False), {}, [], {}
    for power in (0, 16):
        predicted = surviving(exact, "fp16", 2.0**power).zero  # the share of these values that fp16 would round to 0
        counted = gradient_magnitudes(2.0**power, in_fp16=True)
        zeros[power] = (counted.zeros - exact.zeros) / exact.total
        assert counted.not_finite == 0 and abs(zeros[power] - predicted) < 0.002
        shares = [f"{share:.0%}" if share >= 0.01 else "below 1%" for share in (predicted, zeros[power])]
        lines.append(f"loss scale 2**{power:<3} predicted zero {shares[0]:>8}   counted {shares[1]:>8}")
        other, rest = surviving(counted, "fp16"), 1 - zeros[power]  # `surviving` shares out what is not zero
        kinds[power] = {"normal": rest * other.normal, "subnormal": rest * other.subnormal, "zero": zeros[power]}
    assert 0.005 < zeros[0] < 0.1 and zeros[16] < zeros[0] / 10  # scaling brings back over nine of ten
    scene = magnitudes_scene(exact, "fp16", title="This model's gradients of activations, unscaled, in fp16")
    return scene, lines, max(kinds[0], key=kinds[0].get)


# ---- loss scalers ----


def scalers_scene() -> tuple[Scene, list[str], int]:
    """A dynamic and three static scalers: their scales by step, a line on each, and how often the dynamic one skips."""
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
    return lines_scene(stairs, dots, title=title, x_name="step", y_name="log2 of the loss scale")


def loss_after(optimizer_class: type, lr: float, clip_first: bool, steps: int = 40) -> float:
    """The loss after some steps in fp32. clip_first: the mistake of clipping gradients that are still scaled."""
    options = dict(lr=lr, steps=steps, batch=16, unscale_first=not clip_first)
    *_, last = scaled_steps(GradScaler(), nullcontext, optimizer_class, **options)
    return last.loss


# ---- autocast ----


def autocast_list_lines() -> Iterator[str]:
    """Which operations autocast on CUDA runs in 16 bits and which in fp32, in groups with a reason.

    LOWER and FLOAT32 map a device to its groups: `names` of operations, separated by spaces, and `why`, the reason.
    """
    for title, table in (("down to 16 bits", LOWER["cuda"]), ("up to fp32", FLOAT32["cuda"])):
        yield title
        for group in table:
            names = group.names.split()
            more = f", and {len(names) - 3} more" if len(names) > 3 else ""
            yield f"  {', '.join(names[:3])}{more}\n      {group.why}"


def autocast_dtype_lines() -> Iterator[str]:
    """The dtype of some results under our autocast with CUDA's table and with the CPU's, which PyTorch confirms."""
    calls = {
        "x @ w": lambda x, w: x @ w,
        "F.gelu(x @ w)": lambda x, w: F.gelu(x @ w),
        "F.softmax(x @ w, -1)": lambda x, w: F.softmax(x @ w, -1),
        "F.layer_norm(x @ w, (4,))": lambda x, w: F.layer_norm(x @ w, (4,)),
        "(x @ w).sum()": lambda x, w: (x @ w).sum(),
        "F.mse_loss(x @ w, x)": lambda x, w: F.mse_loss(x @ w, x),
        "x @ w + x": lambda x, w: x @ w + x,
    }
    x, w = torch.ones(4, 4), torch.ones(4, 4)
    for name, call in calls.items():
        with autocast(torch.float16, table="cuda"):
            on_cuda = call(x, w).dtype
        with autocast(torch.float16):
            on_cpu = call(x, w).dtype
        with torch.autocast("cpu", torch.float16):
            assert call(x, w).dtype == on_cpu
        yield f"{name:<28}{dtype_name(on_cuda):<10} on CPU {dtype_name(on_cpu)}"


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


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
        yield f"ten uses of one weight, cache={uses_cache}: {num_casts} casts of it"
    with autocast(torch.bfloat16):
        before = layer(x)
        nn.init.zeros_(layer.weight)  # a step inside the region
        yield f"after a step inside the region the old weight is still used: {torch.equal(layer(x), before)}"


def compare_with_torch_lines() -> Iterator[str]:
    """Twelve steps with our autocast and scaler and with PyTorch's: AssertionError where they are not equal."""
    options = dict(init_scale=2.0**19, growth_interval=3)
    our_scaler, torch_scaler = GradScaler(**options), torch.amp.GradScaler("cpu", **options)
    ours = list(scaled_steps(our_scaler, fp16))
    by_torch = list(scaled_steps(torch_scaler, partial(torch.autocast, "cpu", dtype=torch.float16)))
    for step, (one, other) in enumerate(zip(ours, by_torch, strict=True)):
        same_numbers = (one.loss, one.scale) == (other.loss, other.scale)
        assert same_numbers and torch.equal(one.weights, other.weights), f"they part at step {step}"
    scales = [options["init_scale"], *(step.scale for step in ours)]
    skipped = [step for step in range(12) if scales[step] > scales[step + 1]]  # a skipped step lowers the scale
    yield f"12 steps, {len(ours[-1].weights):,} weights: losses, scales and weights are equal to the last bit"
    yield f"skipped, both: steps {skipped}; log2 of the last scale: {math.log2(scales[-1]):.0f}"
    torch_scaler.load_state_dict(our_scaler.state_dict())  # a checkpoint of ours, continued by torch's
    assert torch_scaler.state_dict() == our_scaler.state_dict()
    yield f"saved with a checkpoint: {our_scaler.state_dict()}"


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
        optimizer.zero_grad()
        token_loss(model(tokens).float(), targets).backward()
        optimizer.step()
    now = dict(model.named_parameters())
    norms = torch.cat([now[name] != start[name] for name in start if name.endswith("norm.weight")])
    return norms.float().mean().item()


def mixed_precision_bytes() -> tuple[dict[str, float], dict[str, float]]:
    """Bytes of the model states with master weights, predicted and measured, by kind: "parameters, bytes" and so on."""
    model = GPT(GPTConfig.tiny()).bfloat16()
    optimizer = MasterWeights(model.parameters(), torch.optim.AdamW, lr=1e-4)  # keeps an fp32 copy of each weight
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

    Returns log2 of the loss scale, the number of skipped steps, and one weight. unscale_first: without DDP, a rank
    unscales its own gradients and all-reduces them afterwards, so only rank 1 sees its overflow.
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
        if unscale_first:  # "I reduce the gradients myself, when they are unscaled"
            scaler.unscale_(optimizer)
            dist.all_reduce(layer.weight.grad, op=dist.ReduceOp.AVG)
        scaler.step(optimizer)
        scaler.update()
    return math.log2(scaler.get_scale()), scaler.skipped, layer.weight[0, 0].item()


def overflow_scene(title: str, by_rank: list[tuple[float, int, float]]) -> Scene:
    """One lane per rank of what `three_steps` returned: the batch is known, the rest is measured."""
    lanes = []
    for rank, (_, skipped, weight) in enumerate(by_rank):
        batch = (f"its batch: {'inf' if rank == 1 else 'finite'}", rank == 1)
        flag = (f"its scaler sees: {'inf' if skipped else 'finite'}", bool(skipped))
        after = (f"weight after: {weight:.3f}", not math.isfinite(weight))
        lanes.append(([batch, flag, after], "skips" if skipped else "steps"))
    return _lanes(title, lanes)


def sharded_overflow_scene(ranks: Ranks) -> tuple[Scene, str]:
    """One lane per rank, the step after an overflow in one shard, and what it does, as an answer of the notebook.

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
    """The verdict on four ranks with two micro-batches, a scaler and clipping, against one process without a scaler."""
    alone = train_float64(lambda gpt: gpt, GradScaler(enabled=False))
    by_rank = ranks.run(lambda: train_float64(DistributedDataParallel, GradScaler(), 2, dist.get_rank(), 4))
    return assert_equal(alone, by_rank, atol=KEY_BIAS_ROUNDING)  # the attention keys' bias has rounding noise only


def tf32(x: Tensor) -> Tensor:
    """Round to the 10 mantissa bits of TF32: add half a step, then set the 13 lower bits of fp32 to zero."""
    return ((x.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


def product_error_lines() -> Iterator[str]:
    """The relative error of a matrix product by the format of its inputs."""
    names = {"fp16": "float16", "bf16": "bfloat16", "fp8 E4M3": "float8_e4m3fn", "fp8 E5M2": "float8_e5m2"}
    rounding = {"fp32": lambda x: x, "tf32": tf32}
    rounding |= {name: lambda x, dtype=dtype: x.to(getattr(torch, dtype)).float() for name, dtype in names.items()}
    torch.manual_seed(0)
    a, b = torch.randn(256, 256), torch.randn(256, 256)
    exact, error = a.double() @ b.double(), {}
    for name, rounded in rounding.items():
        product = (rounded(a) @ rounded(b)).double()  # inputs are rounded, sums are fp32
        error[name] = ((product - exact).norm() / exact.norm()).item()
        yield f"{name:<9} relative error of a product of 256 x 256: 2**{math.log2(error[name]):.0f}"
    assert math.isclose(error["tf32"], error["fp16"], rel_tol=0.01)  # as long as nothing leaves fp16's range
    # bf16 has 3 mantissa bits fewer than TF32, which is a factor of 8.
    assert 6 < error["bf16"] / error["tf32"] < 10 and error["fp8 E4M3"] < error["fp8 E5M2"]


def fp8_lines() -> Iterator[str]:
    """What the two fp8 formats make of small gradients, without and with a factor per tensor, and of a large number."""
    torch.manual_seed(0)
    gradient = 1e-4 * torch.randn(100_000)  # like a gradient: far below 1
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        finfo = torch.finfo(dtype)
        factor = finfo.max / gradient.abs().max()
        plain, values = gradient.to(dtype).float(), (gradient * factor).to(dtype).float()
        is_normal = (gradient * factor).abs() >= finfo.smallest_normal
        worst = ((values / factor - gradient).abs() / gradient.abs())[is_normal].max().item()
        assert worst <= finfo.eps / 2 * (1 + 1e-6)  # half a step, of 3 or of 2 bits
        yield (
            f"{dtype_name(dtype):<14} largest {finfo.max:>7,.0f}   unscaled {(plain == 0).float().mean():4.0%} zero, "
            f"with a factor {(values == 0).float().mean():.1%}   error up to {worst:.1%}"
        )
        yield f"{'':<14} 1e6 becomes {torch.tensor(1e6).to(dtype).float().item():g}"


def product_speed_lines() -> Iterator[str]:
    """How long products in 16 bits take, compared with fp32, on this machine's CPU and GPU."""
    sizes = {"cpu": 256} | ({"cuda": 8192} if torch.cuda.is_available() else {})
    for device, size in sizes.items():
        base = _milliseconds(torch.float32, device, size)
        for dtype in (torch.bfloat16, torch.float16):
            ratio, name = _milliseconds(dtype, device, size) / base, dtype_name(dtype)
            yield f"{device}, {size} x {size}: {name} takes {ratio:.3g} times as long as float32 ({base:.3g} ms)"


def _milliseconds(dtype: torch.dtype, device: str, size: int) -> float:
    """The fastest of five products of two square matrices of this size."""
    a = torch.ones(size, size, device=device, dtype=dtype)
    return 1e3 * min(timeit.repeat(lambda: (a @ a).sum().item(), number=1, repeat=5))
