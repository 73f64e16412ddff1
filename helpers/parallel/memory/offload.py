"""A real GPU and its host's memory, joined by copies that run beside the computation.

Offload: what the GPU does not need now waits in the host's memory. Slower by what crosses, never different.

    offload_activations   what backward will need leaves during forward and comes back during backward
    OffloadedOptimizer    masters and moments live on the host, and the step is computed there (as in ZeRO-Offload, Ren
                          et al. 2021, "ZeRO-Offload: Democratizing Billion-Scale Model Training")
Both work between the two devices of
    Budget                a pretended GPU with a limit that raises, and its host: runs on every laptop
    PinnedDevices         a real GPU and pinned host memory, with asynchronous copies
and every byte that crosses stands in `devices.copies`.

Communication between ranks: none. Between GPU and host: activations once each way; with the optimizer, each step, every
gradient down and every weight up, 2 + 2 bytes a parameter in 16 bits.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from helpers.devices import is_accelerator, module_of
from helpers.parallel.shared.virtual_devices import GPU, HOST, Budget, Devices, OutOfBudget


class PinnedDevices(Devices):
    """Device GPU (0) and device HOST (1), whose copies lie in pinned memory and travel on a stream of their own.

    `copy` returns at once; `wait(tensor)` before its first use. Three things keep this right:
    - the copying stream waits for the stream that computed what leaves the GPU,
    - record_stream: the allocator gives memory to nobody while either stream still uses it,
    - the CPU itself waits before it reads what arrives on the host.
    Raises ValueError for a device without memory of its own.
    """

    def __init__(self, device: torch.device | str = "cuda"):
        if not is_accelerator(device):
            raise ValueError(f"PinnedDevices({str(device)!r}): expected a CUDA device; on a CPU, Budget pretends one")
        super().__init__([device, "cpu"])
        self._module = module_of(device)
        self.stream = self._module.Stream(self.devices[GPU])

    def wait(self, tensor: Tensor) -> None:
        if not is_accelerator(tensor.device):
            self.stream.synchronize()
            return
        computing = self._module.current_stream(self.devices[GPU])
        computing.wait_stream(self.stream)
        tensor.record_stream(computing)

    def _move(self, tensor: Tensor, destination: int) -> Tensor:
        if destination == HOST:
            self.stream.wait_stream(self._module.current_stream(self.devices[GPU]))
        elif not tensor.is_pinned():
            tensor = tensor.pin_memory()  # from pageable memory the copy would hold up the CPU
        place = dict(pin_memory=True) if destination == HOST else dict(device=self.devices[GPU])
        with self._module.stream(self.stream):
            moved = torch.empty(tensor.shape, dtype=tensor.dtype, **place)
            moved.copy_(tensor, non_blocking=True)
        if is_accelerator(tensor.device):
            tensor.record_stream(self.stream)
        return moved


__all__ = ["GPU", "HOST", "Budget", "OffloadedOptimizer", "OutOfBudget", "PinnedDevices", "offload_activations"]


@contextmanager
def offload_activations(
    devices: Devices, model: nn.Module, *, min_bytes: int = 1024, prefetch: int = 1
) -> Iterator[None]:
    """Move what autograd saves in here to the host; run backward outside, where the activations come back.

    model: its parameters and buffers stay, they are needed anyway. min_bytes: smaller tensors stay, too. prefetch: how
    many tensors are fetched before backward asks for them, so that on a GPU copying hides behind computing.
    A tensor that several operations save crosses once. With `checkpoint`, the inputs that it keeps cross.
    Raises ValueError for a negative min_bytes or prefetch.
    """
    if min_bytes < 0 or prefetch < 0:
        raise ValueError(f"offload_activations(min_bytes={min_bytes}, prefetch={prefetch}): expected 0 or more")
    parking = _Parking(devices, [*model.parameters(), *model.buffers()], min_bytes, prefetch)
    with torch.autograd.graph.saved_tensors_hooks(parking.pack, parking.unpack):
        yield


class _Parked:
    """A saved tensor on the host, until the last operation of the graph that needs it has run."""

    def __init__(self, devices: Devices, tensor: Tensor, place: int):
        self.devices, self.place = devices, place
        self.original = weakref.ref(tensor.untyped_storage())
        dims = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)  # as they lie in memory, outermost first
        self.back = sorted(range(tensor.dim()), key=dims.__getitem__)
        self.on_host = devices.copy(tensor.detach().permute(dims), GPU, HOST, "activations to the host")
        self.on_gpu: Tensor | None = None

    def fetch(self) -> None:
        """Start the way back."""
        if self.on_gpu is None:
            self.on_gpu = self.devices.copy(self.on_host, HOST, GPU, "activations back")

    def arrive(self) -> Tensor:
        self.fetch()
        self.devices.wait(self.on_gpu)
        return self.on_gpu.permute(self.back)  # other strides would mean other sums, rounded otherwise


class _Parking:
    """The two hooks. Who holds a _Parked is the graph alone: as backward goes on, they vanish by themselves."""

    def __init__(self, devices: Devices, stays: Iterable[Tensor], min_bytes: int, prefetch: int):
        self.devices, self.min_bytes, self.prefetch = devices, min_bytes, prefetch
        self.stays = {id(tensor.untyped_storage()) for tensor in stays}  # these storages outlive the graph
        self.known: weakref.WeakValueDictionary[tuple, _Parked] = weakref.WeakValueDictionary()
        self.order: list[weakref.ref[_Parked]] = []

    def pack(self, tensor: Tensor) -> Tensor | _Parked:
        storage = tensor.untyped_storage()
        if id(storage) in self.stays or tensor.numel() * tensor.element_size() < self.min_bytes:
            return tensor
        view = tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype, tensor._version
        parked = self.known.get((id(storage), *view))
        if parked is None or parked.original() is not storage:  # an id may be that of a tensor long gone
            parked = self.known[(id(storage), *view)] = _Parked(self.devices, tensor, len(self.order))
            self.order.append(weakref.ref(parked))
        return parked

    def unpack(self, packed: Tensor | _Parked) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        tensor = packed.arrive()
        for before in self.order[max(0, packed.place - self.prefetch) : packed.place]:
            if (parked := before()) is not None:  # backward needs these next
                parked.fetch()
        return tensor


class OffloadedOptimizer:
    """Any torch optimizer on the host: `OffloadedOptimizer(model.parameters(), torch.optim.AdamW, devices, lr=1e-3)`.

    The GPU keeps weights and gradients. The host keeps masters, in float32 at least, and the optimizer's state. step():
    gradients go down, the optimizer steps on the masters, new weights come up; equal to the bit to the same step on
    the GPU (for 16-bit weights, to `MasterWeights`).
    move="parameter": one parameter at a time, so the host holds one gradient; move="group": all gradients of a group,
    then its step, so that on a GPU the copies run one behind the other.
    Gradients stay on the GPU until zero_grad(). Clip the model's own gradients before step(), or those of the masters
    after collect_gradients(), which our GradScaler calls. `optimizer` is the one inside: give it to a learning-rate
    scheduler.
    Raises ValueError for no trainable parameter or an unknown `move`.
    """

    MOVES = ("parameter", "group")

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict],
        optimizer_class: type[torch.optim.Optimizer],
        devices: Devices,
        *,
        move: str = "parameter",
        **options,
    ):
        if move not in self.MOVES:
            raise ValueError(f"OffloadedOptimizer got move={move!r}; known are 'parameter' and 'group'")
        groups = list(params)
        groups = groups if groups and isinstance(groups[0], dict) else [{"params": groups}]
        self.devices, self.move = devices, move
        self.pairs: list[list[tuple[Tensor, Tensor]]] = []  # a list a group: (weight on the GPU, master on the host)
        for group in groups:
            self.pairs.append([(weight, self._master(weight)) for weight in group["params"] if weight.requires_grad])
        if not any(self.pairs):
            raise ValueError("OffloadedOptimizer got no trainable parameter: pass model.parameters()")
        masters = [[master for _, master in pairs] for pairs in self.pairs]
        inner = [{**group, "params": mine} for group, mine in zip(groups, masters, strict=True)]
        self.optimizer = optimizer_class(inner, **options)

    def _all_pairs(self) -> list[tuple[Tensor, Tensor]]:
        return [pair for pairs in self.pairs for pair in pairs]

    @property
    def param_groups(self) -> list[dict]:
        """Those of the optimizer inside: learning rates, and the masters as "params"."""
        return self.optimizer.param_groups

    def zero_grad(self, set_to_none: bool = True) -> None:
        for weight, master in self._all_pairs():
            master.grad = None
            if weight.grad is not None:
                weight.grad = None if set_to_none else weight.grad.zero_()

    def collect_gradients(self) -> None:
        """Bring all gradients down now, to unscale or clip the masters'. step() does it for what was not collected."""
        self._bring_down([pair for pair in self._all_pairs() if pair[0].grad is not None])

    @torch.no_grad()
    def step(self) -> None:
        collected = [pair for pair in self._all_pairs() if pair[1].grad is not None]
        for pairs in [collected] if collected else self._portions():
            if not collected:
                self._bring_down(pairs)
            self._step_on_host(pairs)
            self._send_up(pairs)

    def _portions(self) -> Iterator[list[tuple[Tensor, Tensor]]]:
        """The pairs that move together, of weights that have a gradient."""
        for pairs in self.pairs:
            with_gradient = [pair for pair in pairs if pair[0].grad is not None]
            yield from [with_gradient] if self.move == "group" else [[pair] for pair in with_gradient]

    def _bring_down(self, pairs: list[tuple[Tensor, Tensor]]) -> None:
        down = [self.devices.copy(weight.grad, GPU, HOST, "gradients to the host") for weight, _ in pairs]
        for (_, master), gradient in zip(pairs, down, strict=True):
            self.devices.wait(gradient)
            master.grad = gradient.to(master.dtype)

    def _step_on_host(self, pairs: list[tuple[Tensor, Tensor]]) -> None:
        """The optimizer inside passes over every master that has no gradient, so this steps `pairs` alone."""
        try:
            with self.devices.use(HOST):
                self.optimizer.step()
        finally:
            for _, master in pairs:
                master.grad = None

    def _send_up(self, pairs: list[tuple[Tensor, Tensor]]) -> None:
        for weight, master in pairs:
            new = self.devices.copy(master.detach().to(weight.dtype), HOST, GPU, "weights back")
            self.devices.wait(new)
            weight.copy_(new)

    def state_dict(self) -> dict:
        """The masters in the order of the parameters, and the state of the optimizer inside; all on the host."""
        return {
            "masters": [master.detach() for _, master in self._all_pairs()],
            "optimizer": self.optimizer.state_dict(),
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict) -> None:
        """Restore masters, state and weights. Raises ValueError if the masters do not fit these parameters."""
        pairs = self._all_pairs()
        if [saved.shape for saved in state["masters"]] != [master.shape for _, master in pairs]:
            raise ValueError(
                f"load_state_dict got {len(state['masters'])} masters for {len(pairs)} parameters, or other shapes: "
                "build the same model and pass its parameters in the same order"
            )
        self.devices.place([leaf for leaf in tree_leaves(state) if isinstance(leaf, Tensor)], HOST)
        for (_, master), saved in zip(pairs, state["masters"], strict=True):
            master.copy_(saved)
        with self.devices.use(HOST):
            self.optimizer.load_state_dict(state["optimizer"])
        self._send_up(pairs)

    def _master(self, weight: Tensor) -> Tensor:
        on_host = self.devices.copy(weight.detach(), GPU, HOST, "weights to the host, once")
        self.devices.wait(on_host)
        return on_host.to(torch.promote_types(weight.dtype, torch.float32)).requires_grad_()
