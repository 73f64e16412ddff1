"""Provides the core of mixed precision on one screen: autocast, master weights, a gradient scaler, a training step.

    MiniAutocast        a region in which matrix products run in 16 bits and sensitive operations in float32
    MiniMasterWeights   any torch optimizer on float32 copies of 16-bit parameters
    MiniGradScaler      dynamic loss scaling, with the four calls of torch.amp.GradScaler
    amp_step            one step of training: forward, then the five calls in their order
Under autocast, parameters, gradients and optimizer states are float32 (Micikevicius et al. 2018, arXiv:1710.03740).
The complete versions, with torch's errors and checkpoints: loss_scaler.py, master_weights.py, shared/autocast.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode


class MiniAutocast(TorchFunctionMode):
    """A region in which a table chooses the precision of each torch function: `with MiniAutocast(torch.bfloat16):`.

    The casts are recorded by autograd like any operation, so backward casts the gradient of a weight back to float32.
    """

    LOWER = {"linear", "matmul", "bmm", "conv2d", "scaled_dot_product_attention"}  # matrix products
    FLOAT32 = {"exp", "log", "pow", "sum", "softmax", "log_softmax"}  # large results, and sums of many elements
    FLOAT32 |= {"layer_norm", "rms_norm", "mse_loss", "cross_entropy"}  # norms and losses

    def __init__(self, dtype: torch.dtype):
        super().__init__()
        self.dtype = dtype

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name, kwargs = func.__name__.strip("_"), kwargs or {}  # `x @ w` calls __matmul__
        if name in self.LOWER:
            dtype = self.dtype
        elif name in self.FLOAT32:
            dtype = torch.float32
        else:  # runs in the dtype that it is given; bfloat16 + float32 is float32
            return func(*args, **kwargs)
        return func(*[cast(one, dtype) for one in args], **{key: cast(one, dtype) for key, one in kwargs.items()})


def cast(value: object, dtype: torch.dtype) -> object:
    """Return a floating-point tensor in this dtype, and anything else unchanged."""
    return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value


class MiniMasterWeights:
    """Runs a torch optimizer on float32 masters of 16-bit parameters: `MiniMasterWeights(params, AdamW, lr=1e-3)`."""

    def __init__(self, params: Iterable[nn.Parameter], optimizer_class: type[torch.optim.Optimizer], **options):
        self.params = list(params)
        self.masters = [param.detach().float() for param in self.params]
        self.optimizer = optimizer_class(self.masters, **options)

    @torch.no_grad()
    def step(self) -> None:
        for param, master in zip(self.params, self.masters, strict=True):
            master.grad = param.grad.float()
        self.optimizer.step()  # float32 adds up updates that 16 bits would round away
        for param, master in zip(self.params, self.masters, strict=True):
            param.copy_(master)  # rounds to 16 bits
            master.grad = None


class MiniGradScaler:
    """Multiplies the loss by a factor, divides the gradients by it, and searches for the largest factor that fits.

    group: the ranks that combine what they found. device: where a rank without gradients keeps what it found.
    """

    def __init__(self, init_scale=2.0**16, growth_interval=2000, group: dist.ProcessGroup | None = None, device="cpu"):
        self.factor, self.growth_interval, self.group, self.device = init_scale, growth_interval, group, device
        self.good_steps, self.found_inf = 0, None  # found_inf is None until the gradients are unscaled

    def scale(self, loss: Tensor) -> Tensor:
        return loss * self.factor

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        device = gradients[0].device if gradients else self.device
        for gradient in gradients:
            gradient /= self.factor
        self.found_inf = torch.tensor(float(not all(g.isfinite().all() for g in gradients)), device=device)
        if self.group is not None:
            dist.all_reduce(self.found_inf, op=dist.ReduceOp.MAX, group=self.group)  # one element

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        if self.found_inf is None:
            self.unscale_(optimizer)
        if not self.found_inf:
            optimizer.step()

    def update(self) -> None:
        self.good_steps = 0 if self.found_inf else self.good_steps + 1
        if self.found_inf:
            self.factor /= 2
        elif self.good_steps == self.growth_interval:
            self.factor, self.good_steps = self.factor * 2, 0
        self.found_inf = None


def amp_step(
    model: nn.Module, loss_function: Callable, optimizer: torch.optim.Optimizer, scaler: MiniGradScaler,
    micro_batches: list[tuple[Tensor, Tensor]], max_norm: float, dtype=torch.float16, autocast=MiniAutocast,
) -> None:  # fmt: skip
    """Train on the mean of the losses. autocast may also be torch's, as `partial(torch.autocast, "cuda")`."""
    optimizer.zero_grad()
    for x, y in micro_batches:
        with autocast(dtype):  # forward and loss are inside, and backward is outside
            loss = loss_function(model(x), y) / len(micro_batches)
        scaler.scale(loss).backward()  # gradients add up, each multiplied by the factor
    scaler.unscale_(optimizer)  # once, after the last micro-batch
    nn.utils.clip_grad_norm_(model.parameters(), max_norm)  # max_norm is meant for true gradients
    scaler.step(optimizer)  # or skip, if a gradient is inf or NaN
    scaler.update()  # the factor of the next step
