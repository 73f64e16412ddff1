"""Say which storages are parameters, gradients, buffers and optimizer state, by looking at who points to them."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from helpers.observe.memory_places import module_names
from helpers.observe.memory_storages import STEP_COUNTERS, Storages
from helpers.parallel.shared.freed import FreedWeight


def optimizers_in(optimizer: object) -> list:
    """An optimizer and those that it wraps, such as the one on the fp32 masters. ValueError if it is none."""
    if optimizer is None:
        return []
    if not hasattr(optimizer, "param_groups"):
        raise ValueError(
            f"record_memory got a {type(optimizer).__name__} as its optimizer; give what has `param_groups`, as every "
            "torch.optim.Optimizer does, or none"
        )
    inner = [value for value in vars(optimizer).values() if isinstance(value, Optimizer) and value is not optimizer]
    return [optimizer] + [found for wrapped in inner for found in optimizers_in(wrapped)]


class Labels:
    """Labels what the model and the optimizers point to: at once, as gradients come, and after each step."""

    def __init__(self, model: nn.Module, optimizers: list, storages: Storages) -> None:
        self._given, self._storages = optimizers, storages
        self._found: list[Optimizer] = []  # these stepped and were not given: their parameters may be another model's
        self.modules = module_names(model)
        self._names = {id(p): (f"{name}.{p_name}", name) for name, p_name, p in self._parameters()}

    def label_all(self) -> None:
        """Everything that is pointed to now."""
        for _, _, parameter in self._parameters():
            self._label(parameter, "parameters", parameter)
        for module, name in self.modules.items():
            for own, buffer in module._buffers.items():
                if buffer is not None:
                    self._storages.label(buffer, "buffers", f"{name}.{own}", name)
        for _, _, parameter in self._parameters():
            self.label_gradient(parameter)
        for optimizer in self._given:
            self._label_masters(optimizer)
        for optimizer in [*self._given, *self._found]:
            self._label_state(optimizer)

    def label_gradient(self, parameter: Tensor) -> None:
        """What `.grad` points to now; a hook after each accumulation. Weights may have been gathered for it."""
        self._label(parameter, "parameters", parameter)
        if parameter.grad is not None:
            self._label(parameter.grad, "gradients", parameter, "gradient of ")

    def label_weights_of(self, module: nn.Module) -> None:
        """Weights that a strategy gathered for this module's forward: other tensors than before, or other storages."""
        name = self.modules[module]
        for own, parameter in module._parameters.items():
            if parameter is not None:
                self._storages.label(parameter, "parameters", f"{name}.{own}", name)

    def hooks(self) -> Iterator:
        """Register what keeps the labels up to date; yields the handles to remove."""
        for _, _, parameter in self._parameters():
            if parameter.requires_grad and parameter.is_leaf:
                yield parameter.register_post_accumulate_grad_hook(self.label_gradient)
        yield register_optimizer_step_post_hook(self._stepped)

    def _parameters(self) -> Iterator[tuple[str, str, Tensor]]:
        """Module's path, own name, parameter: a tied one under its first name."""
        seen = set()
        for module, name in self.modules.items():
            for own, parameter in module._parameters.items():
                if parameter is not None and id(parameter) not in seen:
                    seen.add(id(parameter))
                    yield name, own, parameter

    def _stepped(self, optimizer: Optimizer, *_: object) -> None:
        if any(optimizer is known for known in self._given):
            self._label_masters(optimizer)
        elif not any(optimizer is known for known in self._found):
            self._found.append(optimizer)
        self._label_state(optimizer)

    def _label_masters(self, optimizer: object) -> None:
        """What it steps on and is not the model's own: that has its label already."""
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self._label(parameter, "optimizer", parameter)
                self.label_gradient(parameter)

    def _label_state(self, optimizer: object) -> None:
        for parameter, state in getattr(optimizer, "state", {}).items():
            for key, value in state.items() if isinstance(state, dict) else ():
                if isinstance(value, Tensor):
                    is_counter = key == "step" and value.numel() == 1
                    self._label(value, STEP_COUNTERS if is_counter else "optimizer", parameter, f"{key} of ")

    def _label(self, tensor: Tensor, kind: str, parameter: object, what: str = "") -> None:
        if isinstance(tensor, FreedWeight):
            return  # a shape without numbers: they are in a shard
        name, module = self._names.get(id(parameter), ("master weights", "the optimizer"))
        self._storages.label(tensor, kind, what + name, module)
