"""Provides DataParallel, which works like `torch.nn.DataParallel`: one process, one thread per device, and a master.

Legend: N = devices, B = batch, P = bytes of all parameters, X = bytes of the batch, Y = bytes of the outputs.
A step, with device 0 as the master:
    1. scatter         splits the batch along dim 0                         master sends X (N-1)/N
    2. replicate       copies parameters and buffers in every step          master sends P (N-1)
    3. parallel_apply  runs one thread per replica; Python's lock lets only one at a time run Python code
    4. gather          joins the outputs on the master                      master receives Y (N-1)/N
    5. The master computes the loss. Backward copies in the other direction: it scatters the gradients of the outputs,
       Y (N-1)/N, and adds up those of the parameters on the master, P (N-1)
    6. The master runs the optimizer
So 2 P (N-1) + (X + 2 Y) (N-1)/N bytes cross the master's link, and none of it overlaps with compute.
This is a star, as copies run without NCCL; with NCCL, torch's broadcast and reduce use a ring instead.
`devices` are numbered from 0, and devices.copy(tensor, source, destination, what) copies from one to another and logs
the bytes; `what` says what the copy is for. Devices are real or simulated (shared/virtual_devices.py).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager

import torch
from torch import Tensor, nn

from helpers.devices import known_kinds
from helpers.parallel.shared.virtual_devices import Devices


class Send(torch.autograd.Function):
    """Copies a tensor to another device, and its gradient back. `send` is the function to call."""

    @staticmethod
    def forward(ctx, tensor: Tensor, devices: Devices, source: int, destination: int, what: str) -> Tensor:
        ctx.way_back = devices, destination, source, f"gradients of {what}"
        return devices.copy(tensor.detach(), source, destination, what)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        devices, source, destination, what = ctx.way_back
        return devices.copy(gradient, source, destination, what), None, None, None, None


def send(tensor: Tensor, devices: Devices, source: int, destination: int, what: str) -> Tensor:
    """Return the tensor on `destination`; it is the same object where it is there already."""
    return tensor if source == destination else Send.apply(tensor, devices, source, destination, what)


def scatter(inputs: Sequence, devices: Devices) -> list[tuple]:
    """Return one tuple of arguments for each device: tensors are split along dim 0, anything else goes to all devices.

    As in torch, `chunk` splits: 10 rows on 4 devices make 3, 3, 3, 1, and 2 rows make 2 chunks, so 2 devices work.
    Raises ValueError without a tensor to split, or with tensors of different lengths.
    """
    lengths = {len(value) for value in inputs if isinstance(value, Tensor) and value.dim()}
    if len(lengths) != 1:
        raise ValueError(
            f"scatter found batch sizes {sorted(lengths)} in the arguments: every tensor must have the same dim 0, "
            "and there must be at least one"
        )
    num_chunks = len(torch.arange(lengths.pop()).chunk(len(devices)))  # as many as `chunk` makes, perhaps fewer
    columns = [_spread(value, num_chunks, devices) for value in inputs]
    return list(zip(*columns, strict=True))


def _spread(value, num_chunks: int, devices: Devices) -> list:
    """Return what each device gets of one argument: a chunk that the master, device 0, sends, or the value itself."""
    if not (isinstance(value, Tensor) and value.dim()):
        return [value] * num_chunks
    return [send(chunk, devices, 0, i, "the batch") for i, chunk in enumerate(value.chunk(len(devices)))]


def replicate(module: nn.Module, devices: Devices, num_replicas: int) -> list[nn.Module]:
    """Return replicas of the module on the first `num_replicas` devices. Replica 0 has the master's own tensors.

    The parameters of other replicas are not leaves: their gradients flow back to the master's parameters, where
    autograd adds them up. Buffers are only copied, so what replicas other than the first write into them is lost after
    the step.
    Plain attributes are shared, not copied. Modules that cache their weights elsewhere (nn.LSTM) are not supported.
    """
    return [_replica(module, devices, index) for index in range(num_replicas)]


def _replica(module: nn.Module, devices: Devices, index: int) -> nn.Module:
    """Return a replica on device `index`: every module of the tree is copied, with tensors of that device."""
    # 0: the master
    weights = {p: send(p, devices, 0, index, "parameters") for p in module.parameters()}  # a tied one is sent once
    with torch.no_grad():
        buffers = {b: devices.copy(b, 0, index, "buffers") for b in module.buffers()}
    twins = {original: _hollow_copy(original) for original in module.modules()}
    for original, twin in twins.items():
        twin._modules = {name: twins.get(child) for name, child in original._modules.items()}
        twin._parameters = {name: weights.get(p) for name, p in original._parameters.items()}
        twin._buffers = {name: buffers.get(b) for name, b in original._buffers.items()}
    return twins[module]


def _hollow_copy(module: nn.Module) -> nn.Module:
    """Return a module with the same attributes, whose submodules, parameters and buffers the caller replaces."""
    twin = object.__new__(type(module))  # no __init__: that would make new weights
    twin.__dict__ = module.__dict__.copy()
    return twin


def parallel_apply(replicas: Sequence[nn.Module], inputs: Sequence[tuple], devices: Devices) -> list:
    """Return the output of each replica for its inputs, computed in one thread each.

    Where replicas raise, the exception of the first is raised here, with a note that names the replica.
    """
    outputs: list = [None] * len(replicas)
    same_modes = modes_of_this_thread()

    def work(index: int) -> None:
        try:
            with devices.use(index), same_modes():
                outputs[index] = replicas[index](*inputs[index])
        except Exception as error:  # raised again below, because a thread cannot raise into its caller
            error.add_note(f"in replica {index} of {len(replicas)}, in a thread of its own")
            outputs[index] = error

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(replicas))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for output in outputs:
        if isinstance(output, Exception):
            raise output
    return outputs


def modes_of_this_thread() -> Callable[[], AbstractContextManager]:
    """Return a context that gives another thread this thread's modes: no_grad, autocast, and autocast's dtype.

    All three are thread-local. torch's parallel_apply passes on whether autocast is enabled, but not its dtype.
    """
    grad = torch.is_grad_enabled()
    casts = [(kind, torch.get_autocast_dtype(kind)) for kind in known_kinds() if torch.is_autocast_enabled(kind)]

    @contextmanager
    def same_modes() -> Iterator[None]:
        with torch.set_grad_enabled(grad), ExitStack() as stack:
            for kind, dtype in casts:
                stack.enter_context(torch.autocast(kind, dtype=dtype))
            yield

    return same_modes


def gather(outputs: Sequence[Tensor], devices: Devices) -> Tensor:
    """Return the outputs joined on the master, (B, ...) as in one process; scalar outputs are joined to a vector.

    Raises ValueError where a replica returned something other than a tensor.
    """
    for output in outputs:
        if not isinstance(output, Tensor):
            raise ValueError(f"gather got a {type(output).__name__} from a replica: let forward return one tensor")
    arrived = [send(output, devices, i, 0, "outputs") for i, output in enumerate(outputs)]
    return torch.cat([output if output.dim() else output.view(1) for output in arrived])


class DataParallel(nn.Module):
    """Replicates a model on every device for one forward; parameters, loss and optimizer stay on the master.

    Forward runs scatter, replicate, parallel_apply and gather; backward makes the same copies in the other direction.
    It accepts positional arguments only. With one device it calls the module itself. Raises ValueError for a module
    whose parameters are not on the master.
    """

    def __init__(self, module: nn.Module, devices: Devices):
        super().__init__()
        master = devices.devices[0]
        for name, parameter in module.named_parameters():
            if parameter.device != master:
                raise ValueError(
                    f"{name} is on {parameter.device}, the master is {master}: call module.to('{master}') first"
                )
        self.module, self.devices = module, devices
        devices.place([*module.parameters(), *module.buffers()], 0)

    def forward(self, *inputs):
        if len(self.devices) == 1:
            return self.module(*inputs)
        inputs_of_replicas = scatter(inputs, self.devices)
        replicas = replicate(self.module, self.devices, len(inputs_of_replicas))
        return gather(parallel_apply(replicas, inputs_of_replicas, self.devices), self.devices)
