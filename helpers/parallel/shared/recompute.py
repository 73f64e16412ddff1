"""Recomputation: keep what went into a piece of the model, and run the piece again when backward needs its inside.

    checkpoint              one function: inputs kept, inside forgotten, run a second time in backward
    checkpoint_sequential   a chain of layers in num_segments pieces: Chen et al. 2016, "Training Deep Nets with
                            Sublinear Memory Cost": sqrt(layers) pieces keep the least
    recompute_blocks        the blocks of a GPT, from outside, and a way back

A step does the forward pass twice: with 2 parts of backward to 1 of forward that is up to a third more work. What is
recomputed must come out the same, so the state of the random numbers is kept for dropout, and the state of autocast
for the dtypes.
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
    """`function(*args, **kwargs)`, of which only the tensors that go in are kept until backward runs it once more.

    Arguments and result may be tensors, anything else, and tuples, lists or dicts of both. Parameters that `function`
    uses get their gradients, whether or not an argument needs one. Checkpoints inside `function` work.
    preserve_rng_state=False saves 5 kB and the time to copy them; only for a function without dropout.

    Forward: `function` without a graph. Backward: `function` with a graph, then backward through it (reentrant: hooks
    of a parameter that two checkpoints share fire once for each).
    Raises ValueError where `function` returns no tensor, and RuntimeError under `torch.autograd.grad` or
    `backward(inputs=...)`, whose choice of tensors the inner backward cannot know.
    """
    if not torch.is_grad_enabled():
        return function(*args, **kwargs)
    inputs, shape = tree_flatten((args, kwargs))
    call = _Call(function, shape, inputs, preserve_rng_state)
    needs_grad = torch.empty(0, requires_grad=True)  # else a block whose inputs need none would lose its weights'
    outputs = _Checkpoint.apply(call, needs_grad, *inputs)
    return tree_unflatten(list(outputs), call.output_shape)


class _Call:
    """What is to be run, and the surroundings in which it must be run again."""

    def __init__(self, function: Callable, input_shape, inputs: Sequence, preserve_rng_state: bool):
        self.function, self.input_shape = function, input_shape
        found = {given.device for given in inputs if isinstance(given, Tensor) and is_accelerator(given.device)}
        self.random = _RandomState(sorted(found, key=str)) if preserve_rng_state else None
        self.autocast = _AutocastState(["cpu", *sorted({device.type for device in found})])

    def __call__(self, inputs: Sequence) -> list:
        args, kwargs = tree_unflatten(list(inputs), self.input_shape)
        outputs, self.output_shape = tree_flatten(self.function(*args, **kwargs))
        if not any(isinstance(output, Tensor) for output in outputs):
            raise ValueError(
                f"checkpoint ran {_name(self.function)}, which returned no tensor, so backward could never reach it: "
                "return the result, or call the function without checkpoint"
            )
        return outputs

    def again(self, inputs: Sequence) -> list:
        """A second run, with a graph, that comes out as the first."""
        with ExitStack() as surroundings:
            if self.random is not None:
                surroundings.enter_context(self.random.restored())
            surroundings.enter_context(self.autocast.restored())
            surroundings.enter_context(torch.enable_grad())
            return self(inputs)


class _RandomState:
    """Where the generators of the CPU (5,056 bytes) and of some GPUs stand now."""

    def __init__(self, devices: Sequence[torch.device]):
        self.states = random_states(devices)

    @contextmanager
    def restored(self) -> Iterator[None]:
        """In here random numbers come as they came then; afterwards as if nothing had happened."""
        with fork_random(*self.states):
            set_random_states(self.states)
            yield


class _AutocastState:
    """What autocast, torch's and ours, does now: backward mostly runs outside its `with`."""

    def __init__(self, devices: Sequence[str]):
        self.regions = {device: innermost(device) for device in devices}
        cache = torch.is_autocast_cache_enabled()
        self.settings = [
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
        with ExitStack() as stack:
            for settings in self.settings:
                stack.enter_context(torch.autocast(**settings))
            for device, region in self.regions.items():
                if region is not None or innermost(device) is not None:
                    stack.enter_context(self._opened_again(device, region))
            yield

    @staticmethod
    def _opened_again(device: str, region: autocast | None) -> autocast:
        """The same region, or none where there was none."""
        if region is None:
            return autocast(torch.bfloat16, device_type=device, enabled=False)
        return autocast(
            region.dtype, device_type=device, enabled=region.enabled, cache=region.cache, table=region.table
        )


class _Checkpoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, call: _Call, needs_grad: Tensor, *inputs):
        ctx.call, ctx.others = call, [None if isinstance(given, Tensor) else given for given in inputs]
        ctx.places = [place for place, given in enumerate(inputs) if isinstance(given, Tensor)]
        ctx.save_for_backward(*(inputs[place] for place in ctx.places))
        ctx.set_materialize_grads(False)  # an output that nobody used has no gradient, not one of zeros
        return tuple(call(inputs))  # autograd runs this without a graph

    @staticmethod
    @once_differentiable
    def backward(ctx, *gradients):
        if not torch.autograd._is_checkpoint_valid():
            raise RuntimeError(
                "checkpoint cannot run under torch.autograd.grad or backward(inputs=...): its inner backward adds to "
                ".grad of every parameter it meets. Call loss.backward(), or run this part without checkpoint"
            )
        inputs = list(ctx.others)
        for place, kept in zip(ctx.places, ctx.saved_tensors, strict=True):
            inputs[place] = kept.detach().requires_grad_(kept.requires_grad)  # the inner graph ends here
        torch.autograd.backward(*_edges_with_gradients(ctx.call.again(inputs), gradients))
        return None, None, *(given.grad if isinstance(given, Tensor) else None for given in inputs)


def _edges_with_gradients(outputs: Sequence, gradients: Sequence[Tensor | None]) -> tuple[list, list]:
    """Where the inner backward starts. Places in the graph, not tensors: the outputs themselves are free to go."""
    pairs = [
        (get_gradient_edge(output), gradient)
        for output, gradient in zip(outputs, gradients, strict=True)
        if gradient is not None and isinstance(output, Tensor) and output.requires_grad
    ]
    return [edge for edge, _ in pairs], [gradient for _, gradient in pairs]


def checkpoint_sequential(layers: Iterable[Callable], num_segments: int, x: Tensor, **options) -> Tensor:
    """Run `layers` one after the other, in `num_segments` checkpoints of nearly equal length.

    The last segment is no checkpoint: backward would run it again at once, while its inside is still there.
    options: those of `checkpoint`. Raises ValueError for fewer than 1 segment or more segments than layers.
    """
    layers = list(layers)
    if not 1 <= num_segments <= len(layers):
        raise ValueError(
            f"checkpoint_sequential got num_segments={num_segments} for {len(layers)} layers: give 1 to {len(layers)}; "
            f"about the square root, {max(1, round(len(layers) ** 0.5))}, keeps the least"
        )
    bounds = [len(layers) * part // num_segments for part in range(num_segments + 1)]
    *segments, last = (partial(_run, layers[a:b]) for a, b in zip(bounds[:-1], bounds[1:], strict=True))
    for segment in segments:
        x = checkpoint(segment, x, **options)
    return last(x)


def _run(layers: Sequence[Callable], x: Tensor) -> Tensor:
    for layer in layers:
        x = layer(x)
    return x


def recompute_blocks(model: nn.Module, every: int = 1, mode: str = "full") -> Recomputed:
    """Let `model.blocks` recompute from now on, in training and evaluation, without a change to the model's own file.

    mode="full": `every` blocks in a row are one checkpoint, so one input is kept for each such piece. Korthikanti et
    al. 2022, section 5, with every=1: 2 s b h bytes a layer in 16 bits.
    mode="selective": each block recomputes only its attention between the projections, `attention.attend`. With
    materialized attention this removes the 5 a s / h term (their equation 6) and costs a few percent of a step.
    Returns a handle: its `remove()`, or the end of a `with`, brings the old blocks back.
    Names, hooks and the state dict stay as they are. In mode "full" with every > 1 the hooks of a piece's first block
    see the whole piece, and the other blocks pass their input on.
    Raises ValueError for a model without blocks, an `every` below 1 or above the number of blocks, an unknown mode,
    every > 1 in mode "selective"; and RuntimeError where the blocks recompute already.
    """
    blocks = _blocks_of(model)
    _check_choice(blocks, every, mode)
    if mode == "selective":
        attentions = [block.attention for block in blocks]
        return Recomputed((attention, "attend", partial(checkpoint, attention.attend)) for attention in attentions)
    forwards = [block.forward for block in blocks]
    pieces = range(0, len(blocks), every)
    heads = {start: partial(checkpoint, partial(_run, forwards[start : start + every])) for start in pieces}
    return Recomputed((block, "forward", heads.get(place, _pass_on)) for place, block in enumerate(blocks))


class Recomputed:
    """The handle of `recompute_blocks`: `remove()` or the end of a `with` undoes it; a second `remove()` does nothing.

    changes: module, name of its method, what is called instead.
    """

    def __init__(self, changes: Iterable[tuple[nn.Module, str, Callable]]):
        self._changed = []
        for owner, name, instead in changes:
            setattr(owner, name, instead)
            self._changed.append((owner, name))

    def remove(self) -> None:
        while self._changed:
            delattr(*self._changed.pop())  # the class's own method shows again

    def __enter__(self) -> Recomputed:
        return self

    def __exit__(self, *error) -> None:
        self.remove()


def _pass_on(x: Tensor) -> Tensor:
    return x


def _blocks_of(model: nn.Module) -> list[nn.Module]:
    blocks = list(getattr(model, "blocks", ()))
    if not blocks:
        raise ValueError(
            f"recompute_blocks got a {type(model).__name__} without `blocks`: give a GPT itself, not its wrapper "
            "(model.module), or use checkpoint in your own forward"
        )
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
