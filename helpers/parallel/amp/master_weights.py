"""Provides master weights: the model computes in 16 bits, and the optimizer updates float32 copies of the weights.

    MasterWeights      any torch optimizer on float32 masters of 16-bit parameters
    stochastic_round   float32 to bfloat16, up or down at random: the alternative that needs no masters

An update of 0.0001 to a bfloat16 weight of 1 is rounded away each time. A float32 master keeps it, and the 16-bit
weight follows once the updates have added up. Bytes per parameter with Adam: 2 (weight) + 2 (gradient) + 12 (master and
two moments), as in the ZeRO paper (Rajbhandari et al. 2020, arXiv:1910.02054, section 3.1).
After Micikevicius et al. 2018, "Mixed Precision Training", section 3.1.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from helpers.parallel.shared.placement import place

HALF = (torch.bfloat16, torch.float16)


class MasterWeights:
    """Any torch optimizer, run on float32 masters of 16-bit parameters: `MasterWeights(params, AdamW, lr=1e-3)`.

    params: tensors or torch's parameter groups. Frozen parameters are left out, and float32 ones are their own master.
    step() converts the gradients to float32, runs the optimizer on the masters, and rounds the masters to 16 bits.
    Between unscale_ (or collect_gradients) and step, clip `masters`: clipping the model's own gradients has no effect
    there. `optimizer` is the torch optimizer inside: give it to a learning-rate scheduler.
    The 16-bit gradients stay until zero_grad(), as with every optimizer; the float32 ones (4 bytes more) exist from
    unscale_ to the end of step. Gradients of several backward passes are accumulated in 16 bits.
    Raises ValueError for float64 or integer parameters, and where no parameter has 16 bits.
    """

    def __init__(
        self, params: Iterable[Tensor] | Iterable[dict], optimizer_class: type[torch.optim.Optimizer], **options
    ):
        groups = list(params)
        groups = groups if groups and isinstance(groups[0], dict) else [{"params": groups}]
        self.pairs: list[tuple[Tensor, Tensor]] = []  # (16-bit parameter, its master)
        groups = [{**group, "params": [self._master(p) for p in _trainable(group)]} for group in groups]
        if not self.pairs:
            raise ValueError(
                "MasterWeights got no trainable parameter in 16 bits: convert the model first, "
                "model.to(torch.bfloat16), or use the optimizer itself"
            )
        self.optimizer = optimizer_class(groups, **options)

    @property
    def param_groups(self) -> list[dict]:
        """Return those of the optimizer inside: learning rates, and the masters as "params"."""
        return self.optimizer.param_groups

    @property
    def masters(self) -> list[Tensor]:
        """Return the float32 tensors that the optimizer updates."""
        return [master for group in self.param_groups for master in group["params"]]

    def collect_gradients(self) -> None:
        """Copy each 16-bit gradient to its master in float32. step() calls it unless you have."""
        for parameter, master in self.pairs:
            master.grad = None if parameter.grad is None else parameter.grad.float()

    def step(self) -> None:
        """Update the masters, and round them to the 16-bit parameters."""
        if all(master.grad is None for _, master in self.pairs):
            self.collect_gradients()
        self.optimizer.step()
        self._round()
        for _, master in self.pairs:
            master.grad = None

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients of parameters and masters."""
        for parameter, master in self.pairs:
            master.grad = None
            if parameter.grad is not None:
                parameter.grad = None if set_to_none else parameter.grad.zero_()
        self.optimizer.zero_grad(set_to_none)  # float32 parameters that are their own master

    def state_dict(self) -> dict:
        """Return the masters in the order of the parameters, and the state of the optimizer inside."""
        return {"masters": [master.detach() for _, master in self.pairs], "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict) -> None:
        """Restore masters and optimizer, and round the masters to the parameters; training then continues bit for bit.

        Raises ValueError if the masters do not fit these parameters.
        """
        saved, masters = state["masters"], [master for _, master in self.pairs]
        if [tensor.shape for tensor in saved] != [tensor.shape for tensor in masters]:
            raise ValueError(
                f"load_state_dict got {len(saved)} masters for {len(masters)} 16-bit parameters, or other shapes: "
                "build the same model and pass its parameters in the same order"
            )
        with torch.no_grad():
            torch._foreach_copy_(masters, saved)
        self.optimizer.load_state_dict(state["optimizer"])
        self._round()

    @torch.no_grad()
    def _round(self) -> None:
        """Set each 16-bit parameter to its master, rounded to nearest."""
        parameters, masters = map(list, zip(*self.pairs, strict=True))
        torch._foreach_copy_(parameters, masters)

    def _master(self, parameter: Tensor) -> Tensor:
        """Return a parameter's master and record the pair; it lies on the same ranks as the parameter (`place`)."""
        if parameter.dtype == torch.float32:
            return parameter
        if parameter.dtype not in HALF:
            raise ValueError(
                f"MasterWeights got a parameter of {parameter.dtype}: expected torch.bfloat16 or torch.float16, or "
                "torch.float32, which needs no master"
            )
        master = place(parameter.detach().float().requires_grad_(), like=parameter)
        self.pairs.append((parameter, master))
        return master


def _trainable(group: dict) -> list[Tensor]:
    """Return the parameters of a group that require a gradient; torch allows a single tensor in place of a list."""
    params = [group["params"]] if isinstance(group["params"], Tensor) else group["params"]
    return [parameter for parameter in params if parameter.requires_grad]


def stochastic_round(
    tensor: Tensor, dtype: torch.dtype = torch.bfloat16, generator: torch.Generator | None = None
) -> Tensor:
    """Round float32 to bfloat16, up or down at random, so that the mean of many roundings is the number itself.

    A number a quarter of the way between its neighbours is rounded up in one case of four. Round-to-nearest would
    always go down, and a thousand small updates of a weight would all be lost. inf and NaN stay what they are.
    A bfloat16 is the upper half of a float32, so the code adds 16 random bits to the lower half and drops it.
    Gupta et al. 2015, "Deep Learning with Limited Numerical Precision", arXiv:1502.02551, section 3.
    Raises ValueError for another target or an input that is not float32.
    """
    if tensor.dtype != torch.float32 or dtype != torch.bfloat16:
        raise ValueError(
            f"stochastic_round({tensor.dtype} to {dtype}): only torch.float32 to torch.bfloat16 is done here, "
            "because a bfloat16 is the upper half of a float32; call tensor.float() first"
        )
    tensor = tensor.detach().contiguous()
    bits = tensor.view(torch.int32)
    noise = torch.randint(1 << 16, bits.shape, dtype=torch.int32, device=bits.device, generator=generator)
    rounded = ((bits + noise) & -(1 << 16)).view(torch.float32)  # the mask keeps the upper 16 bits
    return torch.where(tensor.isfinite(), rounded, tensor).to(dtype)
