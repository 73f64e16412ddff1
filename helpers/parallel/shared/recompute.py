"""Provides recomputation (activation checkpointing): store the inputs of a segment, and run it again in backward.

    checkpoint              one function, whose activations are freed and computed again in backward
    checkpoint_sequential   a chain of layers in num_segments segments; sqrt(layers) segments store the least (Chen et
                            al. 2016, "Training Deep Nets with Sublinear Memory Cost")
    recompute_blocks        the blocks of a GPT, switched on from outside the model's file, and off again

A step runs the forward pass twice. Backward costs about twice as much as forward, so this is up to a third more work.
The second run must give the same values. Therefore the state of the random generators is stored for dropout, and the
state of autocast for the dtypes. The memory chapter, pipelines and the Trainer use it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.autograd.graph import get_gradient_edge
from torch.utils._pytree import tree_flatten, tree_unflatten

from helpers.devices import fork_random, is_accelerator, random_states, set_random_states
from helpers.parallel.shared.autocast import autocast, innermost


def checkpoint(function: Callable, *args, preserve_rng_state: bool = True, **kwargs):
    """Return `function(*args, **kwargs)`, storing only its input tensors until backward runs it again.

    Arguments and result may be tensors, anything else, and tuples, lists or dicts of both. Parameters that `function`
    uses get their gradients, whether or not an argument needs one. Checkpoints inside `function` work.
    preserve_rng_state=False saves 5 kB and the time to copy them; use it only for a function without dropout.

    Forward runs `function` without a graph. Backward runs it with a graph, and then a backward through it (reentrant:
    hooks of a parameter that two checkpoints share fire once for each).
    Raises ValueError where `function` returns no tensor, and RuntimeError under `torch.autograd.grad` or
    `backward(inputs=...)`, whose choice of tensors the inner backward cannot know.
    """
    if not torch.is_grad_enabled():
        return function(*args, **kwargs)
    inputs, structure = tree_flatten((args, kwargs))
    call = _Call(function, structure, inputs, preserve_rng_state)
    # autograd would skip a function none of whose inputs needs a gradient, although its parameters do
    needs_grad = torch.empty(0, requires_grad=True)
    outputs = _Checkpoint.apply(call, needs_grad, *inputs)
    return tree_unflatten(list(outputs), call.output_structure)


class _Call:
    """A function call, with the states of random generators and autocast in which it must run again.

    inputs: the leaves of (args, kwargs), which are nested; input_structure: how they are nested, from tree_flatten.
    """

    def __init__(self, function: Callable, input_structure, inputs: Sequence, preserve_rng_state: bool):
        self.function, self.input_structure = function, input_structure
        gpus = {value.device for value in inputs if isinstance(value, Tensor) and is_accelerator(value.device)}
        # the states of the random generators of the CPU (5,056 bytes) and of the GPUs among the inputs
        self.random = random_states(sorted(gpus, key=str)) if preserve_rng_state else None
        self.autocast = _AutocastState(["cpu", *sorted({device.type for device in gpus})])

    def __call__(self, inputs: Sequence) -> list:
        args, kwargs = tree_unflatten(list(inputs), self.input_structure)
        outputs, self.output_structure = tree_flatten(self.function(*args, **kwargs))
        if not any(isinstance(output, Tensor) for output in outputs):
            raise ValueError(
                f"checkpoint ran {_name(self.function)}, which returned no tensor, so backward could never reach it: "
                "return the result, or call the function without checkpoint"
            )
        return outputs

    def again(self, inputs: Sequence) -> list:
        """Run the function a second time, with a graph and with the same result."""
        with ExitStack() as stack:
            if self.random is not None:
                stack.enter_context(_restored_random(self.random))
            stack.enter_context(self.autocast.restored())
            stack.enter_context(torch.enable_grad())
            return self(inputs)


@contextmanager
def _restored_random(states: dict[torch.device, Tensor]) -> Iterator[None]:
    """Draw the same random numbers again inside the `with`; afterwards the generators continue where they were."""
    with fork_random(*states):
        set_random_states(states)
        yield


class _AutocastState:
    """The present state of torch's autocast and this course's, because backward mostly runs outside the region."""

    def __init__(self, devices: Sequence[str]):  # device types, such as "cpu"
        # of this course's autocast: the innermost open region by device type, None where none is open
        self.regions = {device: innermost(device) for device in devices}
        cache = torch.is_autocast_cache_enabled()
        self.settings = [  # of torch's autocast
            dict(
                device_type=device,
                enabled=torch.is_autocast_enabled(device),
                dtype=torch.get_autocast_dtype(device),
                cache_enabled=cache,
            )
            for device in devices
        ]

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Enter the same autocast regions again."""
        with ExitStack() as stack:
            for settings in self.settings:
                stack.enter_context(torch.autocast(**settings))
            for device, region in self.regions.items():
                # where no region was open then, but one is open now, a region that is switched off hides it
                if region is not None or innermost(device) is not None:
                    stack.enter_context(self._opened_again(device, region))
            yield

    @staticmethod
    def _opened_again(device: str, region: autocast | None) -> autocast:
        """Return a region like `region`; where there was none, return one that is switched off."""
        if region is None:
            return autocast(torch.bfloat16, device_type=device, enabled=False)
        options = dict(enabled=region.enabled, cache=region.cache, table=region.table)
        return autocast(region.dtype, device_type=device, **options)


class _Checkpoint(torch.autograd.Function):
    """Forward runs the call without a graph; backward runs it with one, and then a backward through that graph.

    needs_grad: an empty tensor that requires a gradient, so that autograd runs backward at all.
    """

    @staticmethod
    def forward(ctx, call: _Call, needs_grad: Tensor, *inputs):
        ctx.call, ctx.other_inputs = call, [None if isinstance(value, Tensor) else value for value in inputs]
        ctx.tensor_indices = [index for index, value in enumerate(inputs) if isinstance(value, Tensor)]
        ctx.save_for_backward(*(inputs[index] for index in ctx.tensor_indices))
        ctx.set_materialize_grads(False)  # an unused output has no gradient, instead of one of zeros
        return tuple(call(inputs))  # autograd runs this without a graph

    @staticmethod
    @once_differentiable
    def backward(ctx, *gradients):
        if not torch.autograd._is_checkpoint_valid():
            raise RuntimeError(
                "checkpoint cannot run under torch.autograd.grad or backward(inputs=...): its inner backward adds to "
                ".grad of every parameter it meets. Call loss.backward(), or run this part without checkpoint"
            )
        inputs = list(ctx.other_inputs)
        for index, saved in zip(ctx.tensor_indices, ctx.saved_tensors, strict=True):
            inputs[index] = saved.detach().requires_grad_(saved.requires_grad)  # the inner graph ends here
        torch.autograd.backward(*_edges_with_gradients(ctx.call.again(inputs), gradients))
        return None, None, *(value.grad if isinstance(value, Tensor) else None for value in inputs)


def _edges_with_gradients(outputs: Sequence, gradients: Sequence[Tensor | None]) -> tuple[list, list]:
    """Return where the inner backward starts, with the gradients of the outputs that have one.

    The starts are edges of the autograd graph instead of tensors, so that the outputs themselves can be freed.
    """
    pairs = [
        (get_gradient_edge(output), gradient)
        for output, gradient in zip(outputs, gradients, strict=True)
        if gradient is not None and isinstance(output, Tensor) and output.requires_grad
    ]
    return [edge for edge, _ in pairs], [gradient for _, gradient in pairs]


def checkpoint_sequential(layers: Iterable[Callable], num_segments: int, x: Tensor, **options) -> Tensor:
    """Run `layers` one after the other, in `num_segments` segments of nearly equal length, each a checkpoint.

    The last segment is not checkpointed, because backward would run it again at once.
    options: those of `checkpoint`. Raises ValueError for fewer than 1 segment or more segments than layers.
    """
    layers = list(layers)
    if not 1 <= num_segments <= len(layers):
        raise ValueError(
            f"checkpoint_sequential got num_segments={num_segments} for {len(layers)} layers: give 1 to {len(layers)}; "
            f"about the square root, {max(1, round(len(layers) ** 0.5))}, keeps the least"
        )
    bounds = [len(layers) * part // num_segments for part in range(num_segments + 1)]  # of the segments, as indices
    *segments, last = (partial(_run, layers[a:b]) for a, b in zip(bounds[:-1], bounds[1:], strict=True))
    for segment in segments:
        x = checkpoint(segment, x, **options)
    return last(x)


def _run(layers: Sequence[Callable], x: Tensor) -> Tensor:
    for layer in layers:
        x = layer(x)
    return x


def recompute_blocks(model: nn.Module, every: int = 1, mode: str = "full") -> Recomputed:
    """Make `model.blocks` recompute from now on, in training and evaluation, without a change to the model's own file.

    mode="full": `every` consecutive blocks are one checkpoint, which stores one input: with every=1, 2 s b h bytes per
    layer in 16 bits for s tokens, b samples and hidden size h (Korthikanti et al. 2022, section 5).
    mode="selective": each block recomputes only its attention between the projections, `attention.attend`. With
    materialized attention (the matrix of all scores is in memory) this removes the 5 a s / h term of a heads (their
    equation 6) and costs a few percent of a step.
    Returns a handle: its `remove()`, or the end of a `with`, restores the blocks.
    Names, hooks and the state dict do not change. In mode "full" with every > 1 the hooks of a segment's first block
    see the whole segment, and the other blocks only return their input.
    Raises ValueError for a model without blocks, an `every` below 1 or above the number of blocks, an unknown mode,
    every > 1 in mode "selective"; and RuntimeError where the blocks recompute already.
    """
    blocks = _blocks_of(model)
    _check_choice(blocks, every, mode)
    if mode == "selective":
        attentions = [block.attention for block in blocks]
        return Recomputed((attention, "attend", partial(checkpoint, attention.attend)) for attention in attentions)
    forwards = [block.forward for block in blocks]
    starts = range(0, len(blocks), every)
    segments = {start: partial(checkpoint, partial(_run, forwards[start : start + every])) for start in starts}
    return Recomputed((block, "forward", segments.get(index, _identity)) for index, block in enumerate(blocks))


class Recomputed:
    """The handle of `recompute_blocks`: `remove()` or the end of a `with` undoes it; a second `remove()` does nothing.

    changes: (module, name of its method, replacement).
    """

    def __init__(self, changes: Iterable[tuple[nn.Module, str, Callable]]):
        self._changed = []
        for module, name, replacement in changes:
            setattr(module, name, replacement)
            self._changed.append((module, name))

    def remove(self) -> None:
        """Restore the methods of the blocks."""
        while self._changed:
            delattr(*self._changed.pop())  # without this attribute, the method of the class is called again

    def __enter__(self) -> Recomputed:
        return self

    def __exit__(self, *error) -> None:
        self.remove()


def _identity(x: Tensor) -> Tensor:
    return x


def _blocks_of(model: nn.Module) -> list[nn.Module]:
    """Return `model.blocks`. Raises ValueError where there are none, RuntimeError where they recompute already."""
    blocks = list(getattr(model, "blocks", ()))
    if not blocks:
        raise ValueError(
            f"recompute_blocks got a {type(model).__name__} without `blocks`: give a GPT itself, not its wrapper "
            "(model.module), or use checkpoint in your own forward"
        )
    # a method that recomputes is a partial in the module's own attributes, where the class's method is not
    parts = [*blocks, *(block.attention for block in blocks if hasattr(block, "attention"))]
    if any(isinstance(vars(part).get(name), partial) for part in parts for name in ("forward", "attend")):
        raise RuntimeError("the blocks of this model recompute already: call remove() on the first handle before")
    return blocks


def _check_choice(blocks: Sequence[nn.Module], every: int, mode: str) -> None:
    if mode not in ("full", "selective"):
        raise ValueError(f"recompute_blocks got mode={mode!r}; known are 'full' and 'selective'")
    if not 1 <= every <= len(blocks):
        raise ValueError(f"recompute_blocks got every={every} for {len(blocks)} blocks: give 1 to {len(blocks)}")
    if mode == "selective" and every > 1:
        raise ValueError(f"recompute_blocks got every={every} with mode='selective', which works inside each block: 1")


def _name(function: Callable) -> str:
    return getattr(function, "__qualname__", type(function).__name__)
