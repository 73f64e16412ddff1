"""Provides offload: what the GPU does not need now is stored in the host's memory. It is slower, with equal results.

    offload_activations   moves what backward will need to the host during forward, and back during backward
    OffloadedOptimizer    stores masters (the float32 copies of the weights that the optimizer updates) and moments on
                          the host, and runs the step there (as in ZeRO-Offload, Ren et al. 2021, "ZeRO-Offload:
                          Democratizing Billion-Scale Model Training")
Both copy between the two devices of
    Budget                a simulated GPU with a memory limit, and its host: runs on every laptop
    PinnedDevices         a real GPU and pinned host memory, with asynchronous copies,
and every copied byte is recorded in `devices.copies`.

GPU = 0 and HOST = 1 are the numbers of the two devices. `devices.copy(tensor, source, destination, what)` copies and
records; `what` says what the copy is for. `devices.wait(tensor)` returns when that copy is complete.

Nothing is sent between ranks. Between GPU and host, activations are copied once each way. With the optimizer, each step
copies every gradient to the host and every weight back: 2 + 2 bytes per parameter in 16 bits.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from helpers.devices import is_accelerator, module_of
from helpers.parallel.shared.virtual_devices import GPU, HOST, Devices


class PinnedDevices(Devices):
    """A real GPU (device 0) and its host (device 1). Copies use pinned memory and their own stream.

    `copy` returns at once, so call `wait(tensor)` before the first use. Three things make this correct:
    - the copying stream waits for the stream that computed what leaves the GPU,
    - record_stream keeps the allocator from reusing memory while either stream still uses it,
    - the CPU itself waits before it reads what arrives on the host.
    Raises ValueError for a device that is not an accelerator.
    """

    def __init__(self, device: torch.device | str = "cuda"):
        if not is_accelerator(device):
            raise ValueError(f"PinnedDevices({str(device)!r}): expected a CUDA device; on a CPU, Budget emulates one")
        super().__init__([device, "cpu"])
        self._module = module_of(device)  # torch.cuda, or the module of another kind of accelerator
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
            tensor = tensor.pin_memory()  # from pageable memory the copy would block the CPU
        target = dict(pin_memory=True) if destination == HOST else dict(device=self.devices[GPU])
        with self._module.stream(self.stream):
            moved = torch.empty(tensor.shape, dtype=tensor.dtype, **target)
            moved.copy_(tensor, non_blocking=True)
        if is_accelerator(tensor.device):
            tensor.record_stream(self.stream)
        return moved


@contextmanager
def offload_activations(
    devices: Devices, model: nn.Module, *, min_bytes: int = 1024, prefetch: int = 1
) -> Iterator[None]:
    """Move what autograd saves in the `with` to the host; backward, outside it, copies the activations back.

    model: its parameters and buffers stay on the GPU, which needs them anyway. min_bytes: smaller tensors stay, too.
    prefetch: how many tensors are copied back before backward asks for them, so that on a GPU copies overlap with
    compute. A tensor that several operations save is copied once. With `checkpoint`, the inputs that it stores move.
    Raises ValueError for a negative min_bytes or prefetch.
    """
    if min_bytes < 0 or prefetch < 0:
        raise ValueError(f"offload_activations(min_bytes={min_bytes}, prefetch={prefetch}): expected 0 or more")
    hooks = _OffloadHooks(devices, [*model.parameters(), *model.buffers()], min_bytes, prefetch)
    with torch.autograd.graph.saved_tensors_hooks(hooks.pack, hooks.unpack):
        yield


class _Offloaded:
    """A saved tensor on the host, until the last operation of the graph that needs it has run.

    index: its number in the order in which forward saved tensors; backward needs them in the reverse order.
    """

    def __init__(self, devices: Devices, tensor: Tensor, index: int):
        self.devices, self.index = devices, index
        self.original = weakref.ref(tensor.untyped_storage())
        # a contiguous copy of the permuted tensor keeps the layout in memory; original_order undoes the permutation
        dims = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)  # in memory order, outermost first
        self.original_order = [dims.index(dim) for dim in range(tensor.dim())]
        self.on_host = devices.copy(tensor.detach().permute(dims), GPU, HOST, "activations to the host")
        self.on_gpu: Tensor | None = None

    def fetch(self) -> None:
        """Start the copy back to the GPU."""
        if self.on_gpu is None:
            self.on_gpu = self.devices.copy(self.on_host, HOST, GPU, "activations back")

    def get(self) -> Tensor:
        """Return the tensor on the GPU, with its original strides, because other strides would round sums otherwise."""
        self.fetch()
        self.devices.wait(self.on_gpu)
        return self.on_gpu.permute(self.original_order)


class _OffloadHooks:
    """The hooks for saved tensors. Only the graph refers to an _Offloaded, so backward frees it when it is done."""

    def __init__(self, devices: Devices, on_gpu: Iterable[Tensor], min_bytes: int, prefetch: int):
        self.devices, self.min_bytes, self.prefetch = devices, min_bytes, prefetch
        # storages that stay on the GPU; they outlive the graph, so no id is used a second time
        self.staying = {id(tensor.untyped_storage()) for tensor in on_gpu}
        # by storage and view (offset, shape, strides, dtype, version), so that a tensor is copied once
        self.offloaded: weakref.WeakValueDictionary[tuple, _Offloaded] = weakref.WeakValueDictionary()
        self.order: list[weakref.ref[_Offloaded]] = []  # in the order of forward

    def pack(self, tensor: Tensor) -> Tensor | _Offloaded:
        storage = tensor.untyped_storage()
        if id(storage) in self.staying or tensor.numel() * tensor.element_size() < self.min_bytes:
            return tensor
        view = tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype, tensor._version
        offloaded = self.offloaded.get((id(storage), *view))
        if offloaded is None or offloaded.original() is not storage:  # the id may be that of a freed storage
            offloaded = self.offloaded[(id(storage), *view)] = _Offloaded(self.devices, tensor, len(self.order))
            self.order.append(weakref.ref(offloaded))
        return offloaded

    def unpack(self, packed: Tensor | _Offloaded) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        tensor = packed.get()
        for reference in self.order[max(0, packed.index - self.prefetch) : packed.index]:
            if (offloaded := reference()) is not None:  # backward needs these next
                offloaded.fetch()
        return tensor


class OffloadedOptimizer:
    """Any torch optimizer on the host: `OffloadedOptimizer(model.parameters(), torch.optim.AdamW, devices, lr=1e-3)`.

    The GPU stores weights and gradients; the host stores masters, in float32 at least, and the optimizer's state.
    step() copies gradients to the host, updates the masters there, and copies new weights to the GPU. The result equals
    that of the same step on the GPU to the bit (for 16-bit weights, that of amp's `MasterWeights`).
    move="parameter" moves one parameter at a time, so the host stores one gradient. move="group" moves all gradients of
    a group and then runs its step, so that on a GPU the copies follow each other without gaps.
    Gradients stay on the GPU until zero_grad(). Clip the model's own gradients before step(), or those of the masters
    after collect_gradients(), which this course's GradScaler calls. `optimizer` is the torch optimizer inside: give it
    to a learning-rate scheduler. Raises ValueError for no trainable parameter or an unknown `move`.
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
        self.pairs: list[list[tuple[Tensor, Tensor]]] = []  # for each group: (weight on the GPU, master on the host)
        for group in groups:
            self.pairs.append([(weight, self._master(weight)) for weight in group["params"] if weight.requires_grad])
        if not any(self.pairs):
            raise ValueError("OffloadedOptimizer got no trainable parameter: pass model.parameters()")
        masters = [[master for _, master in pairs] for pairs in self.pairs]
        groups = [{**group, "params": tensors} for group, tensors in zip(groups, masters, strict=True)]
        self.optimizer = optimizer_class(groups, **options)

    def _all_pairs(self) -> list[tuple[Tensor, Tensor]]:
        """Return (weight on the GPU, master on the host) of all groups."""
        return [pair for pairs in self.pairs for pair in pairs]

    @property
    def param_groups(self) -> list[dict]:
        """Return those of the optimizer inside: learning rates, and the masters as "params"."""
        return self.optimizer.param_groups

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients of weights and masters."""
        for weight, master in self._all_pairs():
            master.grad = None
            if weight.grad is not None:
                weight.grad = None if set_to_none else weight.grad.zero_()

    def collect_gradients(self) -> None:
        """Copy all gradients to the host now, to unscale or clip those of the masters. step() calls it otherwise."""
        self._gradients_to_host([pair for pair in self._all_pairs() if pair[0].grad is not None])  # pair[0]: the weight

    @torch.no_grad()
    def step(self) -> None:
        """Update the masters on the host, and copy the new weights to the GPU."""
        # pairs whose gradients `collect_gradients` has copied already: they are updated all together
        collected = [(weight, master) for weight, master in self._all_pairs() if master.grad is not None]
        for pairs in [collected] if collected else self._portions():
            if not collected:
                self._gradients_to_host(pairs)
            self._step_on_host(pairs)
            self._weights_to_gpu(pairs)

    def _portions(self) -> Iterator[list[tuple[Tensor, Tensor]]]:
        """Yield the pairs that move together, of weights that have a gradient."""
        for pairs in self.pairs:
            with_gradient = [pair for pair in pairs if pair[0].grad is not None]
            yield from [with_gradient] if self.move == "group" else [[pair] for pair in with_gradient]

    def _gradients_to_host(self, pairs: list[tuple[Tensor, Tensor]]) -> None:
        gradients = [self.devices.copy(weight.grad, GPU, HOST, "gradients to the host") for weight, _ in pairs]
        for (_, master), gradient in zip(pairs, gradients, strict=True):
            self.devices.wait(gradient)
            master.grad = gradient.to(master.dtype)

    def _step_on_host(self, pairs: list[tuple[Tensor, Tensor]]) -> None:
        """Update the masters of `pairs` alone: the optimizer inside skips every master without a gradient."""
        try:
            with self.devices.use(HOST):
                self.optimizer.step()
        finally:
            for _, master in pairs:
                master.grad = None

    def _weights_to_gpu(self, pairs: list[tuple[Tensor, Tensor]]) -> None:
        for weight, master in pairs:
            new = self.devices.copy(master.detach().to(weight.dtype), HOST, GPU, "weights back")
            self.devices.wait(new)
            weight.copy_(new)

    def state_dict(self) -> dict:
        """Return the masters in the order of the parameters, and the state of the optimizer inside; all on the host."""
        masters = [master.detach() for _, master in self._all_pairs()]
        return {"masters": masters, "optimizer": self.optimizer.state_dict()}

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
        self._weights_to_gpu(pairs)

    def _master(self, weight: Tensor) -> Tensor:
        """Return a copy of a weight on the host, in float32 at least, which the optimizer inside will update."""
        on_host = self.devices.copy(weight.detach(), GPU, HOST, "weights to the host, once")
        self.devices.wait(on_host)
        return on_host.to(torch.promote_types(weight.dtype, torch.float32)).requires_grad_()
