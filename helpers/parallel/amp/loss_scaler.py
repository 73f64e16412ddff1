"""Provides loss scaling, so that small fp16 gradients do not become zero: GradScaler as in torch.amp, and StaticScaler.

    GradScaler      multiplies the loss by a scale and divides the gradients by it; adapts the scale, and skips a step
                    whose gradients overflowed
    StaticScaler    the same with a constant scale
The order of a step: scale(loss).backward(), unscale_(optimizer), clip, step(optimizer), update(). Clipping before
unscale_ would compare the threshold with gradients that are 65536 times too large.

Legend: N = ranks. Under DDP nothing is sent: its all-reduce adds up gradients, and inf + x is inf, so every rank finds
the same overflow. Where ranks have different gradients (ZeRO, TP, PP), only one rank would skip the step. With group=
the flags (12 bytes) are therefore all-reduced with MAX at each unscale_.
After Micikevicius et al. 2018, "Mixed Precision Training", arXiv:1710.03740, section 3, and torch.amp.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

OLD_SPELLINGS = {  # for readers of older code: its calls, and what to write today
    "torch.cuda.amp.autocast()": 'torch.autocast("cuda", dtype=torch.float16)',
    "torch.cpu.amp.autocast()": 'torch.autocast("cpu", dtype=torch.bfloat16)',
    "torch.cuda.amp.GradScaler()": 'torch.amp.GradScaler("cuda")',
    "torch.cuda.amp.custom_fwd": 'torch.amp.custom_fwd(device_type="cuda")',
    'amp.initialize(model, optimizer, opt_level="O1")': 'with torch.autocast("cuda", dtype=torch.float16): ...',
    'amp.initialize(model, optimizer, opt_level="O2")': "model.half() with MasterWeights, or torch.autocast",
    "with amp.scale_loss(loss, optimizer) as scaled: scaled.backward()": "scaler.scale(loss).backward()",
    "amp.master_params(optimizer)": "scaler.unscale_(optimizer), then clip model.parameters()",
    "apex.parallel.DistributedDataParallel": "torch.nn.parallel.DistributedDataParallel",
}
READY, UNSCALED, STEPPED = "ready", "unscaled", "stepped"  # the stages of an optimizer in one step


@dataclass
class _Progress:
    """The state of one optimizer in this step."""

    stage: str = READY
    flags: Tensor | None = None  # (3,) float32: found inf, has gradients, bad loss; set when gradients are unscaled


class GradScaler:
    """Dynamic loss scaling, with the names, defaults and order of torch.amp.GradScaler.

    The scale doubles after growth_interval good steps in a row. It halves when a gradient is inf or NaN, and that step
    is skipped. It therefore stays near the largest scale that does not overflow.
    group: reduce the flags over these ranks, which is needed where gradients are sharded. Then every rank must call
    unscale_ or step in each step, even a rank without a loss or gradients.
    enabled=False: scale() returns the loss, step() runs the optimizer, and the other methods do nothing. `skipped`
    counts the skipped steps.
    It differs from torch in one thing. Where gradients overflow and the loss itself was inf or NaN before scaling,
    step() raises RuntimeError, because no scale can help. torch skips for ever, while its scale falls to 0.
    Raises ValueError for a scale that is not positive and finite, growth_factor <= 1, backoff_factor outside (0, 1) or
    growth_interval < 1.
    """

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
        group: dist.ProcessGroup | None = None,
    ):
        _check_factors(growth_factor, backoff_factor, growth_interval)
        self._scale, self._good_steps = _checked(init_scale), 0
        self.growth_factor, self.backoff_factor, self.growth_interval = growth_factor, backoff_factor, growth_interval
        self.enabled, self.group, self.skipped = enabled, group, 0
        self._progress: dict[int, _Progress] = {}  # by id of an optimizer
        self._scaled = False  # whether scale() was ever called
        self._bad_loss: Tensor | None = None  # whether a loss was inf or NaN; on its device, so the CPU need not wait

    def scale(self, loss: Tensor) -> Tensor:
        """Return loss x scale. A 16-bit loss without dimensions becomes float32, in which 65536 x loss fits."""
        if not self.enabled:
            return loss
        bad = ~loss.detach().isfinite().all()
        self._bad_loss = bad if self._bad_loss is None else self._bad_loss | bad.to(self._bad_loss.device)
        self._scaled = True
        return loss * torch.full((), self._scale, device=loss.device)

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide the optimizer's gradients by the scale, in place, and look for inf and NaN. Call it before clipping.

        Raises RuntimeError if it is called twice or after step() without update(), or if scale() was never called, and
        ValueError for float16 gradients.
        """
        if not self.enabled:
            return
        progress = self._progress.setdefault(id(optimizer), _Progress())
        if progress.stage != READY:
            raise RuntimeError(f"unscale_() for an optimizer that is {progress.stage} already: {_ORDER}")
        if not self._scaled and self.group is None:  # with a group, a rank without a loss takes part too
            raise RuntimeError(f"unscale_() or step() without scale(loss): gradients are not scaled yet; {_ORDER}")
        progress.flags = self._look_and_unscale(optimizer)
        progress.stage = UNSCALED
        if self.group is not None:
            dist.all_reduce(progress.flags, op=dist.ReduceOp.MAX, group=self.group)  # (3,)

    def step(self, optimizer: torch.optim.Optimizer, *args, **kwargs) -> object:
        """Run `optimizer.step()`, unless a gradient is inf or NaN. It unscales the gradients first unless you have.

        Raises RuntimeError if it is called twice without update(), if no parameter has a gradient, and if the loss
        itself was inf or NaN.
        """
        if not self.enabled:
            return optimizer.step(*args, **kwargs)
        progress = self._progress.setdefault(id(optimizer), _Progress())
        if progress.stage == STEPPED:
            raise RuntimeError(f"step() for an optimizer that is stepped already: {_ORDER}")
        if progress.stage == READY:
            self.unscale_(optimizer)
        found_inf, has_gradients, bad_loss = progress.flags.tolist()  # here the processor waits for the GPU
        if not has_gradients:
            raise RuntimeError(f"step() with an optimizer none of whose parameters has a gradient: {_ORDER}")
        if found_inf and bad_loss:
            raise RuntimeError(_bad_loss_message(self._scale))
        progress.stage = STEPPED
        self.skipped += bool(found_inf)
        return None if found_inf else optimizer.step(*args, **kwargs)

    def update(self, new_scale: float | None = None) -> None:
        """End the step: adapt the scale to what all optimizers found, or set it to `new_scale`.

        Raises RuntimeError if no optimizer was unscaled or stepped before.
        """
        if not self.enabled:
            return
        # flags[0]: whether a gradient was inf or NaN
        found = [progress.flags[0] for progress in self._progress.values() if progress.flags is not None]
        if new_scale is not None:
            self._scale = _checked(new_scale)
        elif not found:
            raise RuntimeError(f"update() before step(): no gradient was checked; {_ORDER}")
        else:
            self._adapt(any(bool(flag) for flag in found))
        self._progress, self._bad_loss = {}, None

    def _adapt(self, found_inf: bool) -> None:
        self._good_steps = 0 if found_inf else self._good_steps + 1
        if found_inf:
            self._scale = _to_float32(self._scale * self.backoff_factor)
        elif self._good_steps == self.growth_interval:
            larger = _to_float32(self._scale * self.growth_factor)
            self._scale, self._good_steps = (larger if math.isfinite(larger) else self._scale), 0

    def _look_and_unscale(self, optimizer: torch.optim.Optimizer) -> Tensor:
        """Unscale, and return (3,) float32: found inf, has gradients, bad loss.

        A gradient contains inf or NaN exactly if its smallest or largest value is one.
        """
        if hasattr(optimizer, "collect_gradients"):  # MasterWeights: to float32 first, or small gradients become 0 here
            optimizer.collect_gradients()
        device, gradients = _gradients(optimizer)
        found = torch.zeros((), dtype=torch.bool, device=device)
        if gradients:
            extremes = [extreme.to(device) for gradient in gradients for extreme in gradient.aminmax()]
            found = ~torch.stack(extremes).isfinite().all()
            torch._foreach_mul_(gradients, _to_float32(1 / self._scale))
        bad_loss = found.new_zeros(()) if self._bad_loss is None else self._bad_loss.to(device)
        return torch.stack([found, found.new_full((), bool(gradients)), bad_loss]).float()  # (3,)

    def get_scale(self) -> float:
        """Return the present scale; 1.0 if not enabled."""
        return self._scale if self.enabled else 1.0

    def state_dict(self) -> dict[str, float]:
        """Return torch's five entries, or {} if not enabled. Call it after update(); torch's scaler can load them."""
        if not self.enabled:
            return {}
        settings = {name: getattr(self, name) for name in _SETTINGS}
        return {"scale": self._scale, **settings, "_growth_tracker": self._good_steps}  # torch's name for good steps

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Restore a state of this scaler or of torch's. Raises ValueError for missing entries."""
        if not self.enabled:
            return
        if missing := sorted(self.state_dict().keys() - state.keys()):
            raise ValueError(
                f"load_state_dict got no {', '.join(missing)}: was it saved by a scaler with enabled=False?"
            )
        self._scale, self._good_steps = _checked(state["scale"]), state["_growth_tracker"]
        for name in _SETTINGS:
            setattr(self, name, state[name])


class StaticScaler(GradScaler):
    """Loss scaling with a constant scale: update() does not change it, but a step that overflows is still skipped.

    Too large a scale skips every step, so watch `skipped`. Loading a state sets the scale, which then stays constant.
    """

    def __init__(self, scale: float = 1024.0, enabled: bool = True, group: dist.ProcessGroup | None = None):
        super().__init__(scale, enabled=enabled, group=group)

    def _adapt(self, found_inf: bool) -> None:
        pass


_SETTINGS = ("growth_factor", "backoff_factor", "growth_interval")  # attributes that a state has under torch's names
# the end of the errors about a wrong order of calls
_ORDER = "the order is scale(loss).backward(), unscale_(optimizer) if you clip, step(optimizer), update()"


def _gradients(optimizer: torch.optim.Optimizer) -> tuple[torch.device, list[Tensor]]:
    """Return the device of the optimizer's first parameter, and all gradients. Raises ValueError for float16 ones."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if any(gradient.dtype == torch.float16 for gradient in gradients):
        raise ValueError(
            "Attempting to unscale FP16 gradients. Divided by the scale in float16, small ones would be 0 again: keep "
            "float32 parameters and use autocast, or give the float16 parameters to MasterWeights"
        )
    # of a sparse gradient only the stored elements count, since all others are zero
    values = [gradient._values() if gradient.is_sparse else gradient for gradient in gradients]
    return parameters[0].device, [value for value in values if value.numel()]


def _bad_loss_message(scale: float) -> str:
    return (
        "the loss itself was inf or NaN before it was scaled, so no loss scale can help (it is still "
        f"{scale:g}): look at the data, at float16 activations above 65504, at log(0) or 0 / 0 in the forward pass"
    )


def _to_float32(value: float) -> float:
    """Round like torch's scaler, which stores its scale in a float32 tensor."""
    return torch.tensor(value, dtype=torch.float32).item()


def _checked(scale: float) -> float:
    """Return the scale in float32 precision. Raises ValueError where it is not positive and finite."""
    if not (scale > 0 and math.isfinite(scale)):
        raise ValueError(f"a loss scale of {scale}: give a positive finite number, best a power of two such as 65536")
    return _to_float32(scale)


def _check_factors(growth: float, backoff: float, interval: int) -> None:
    if not (growth > 1 and 0 < backoff < 1 and interval >= 1):
        raise ValueError(
            f"GradScaler(growth_factor={growth}, backoff_factor={backoff}, growth_interval={interval}): expected a "
            "growth above 1, a backoff between 0 and 1, an interval of 1 or more steps; StaticScaler keeps its scale"
        )
