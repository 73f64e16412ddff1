"""Provides autocast, written from scratch: a region in which each torch function chooses 16 bits or float32.

Matrix products run in 16 bits. Operations that need precision or range run in float32, and weights stay in float32.
A TorchFunctionMode sees every call to torch before it runs, looks the function's name up in a table, and casts its
inputs. The casts are ordinary autograd operations, so backward casts each gradient back to float32.
After Micikevicius et al. 2018, "Mixed Precision Training", arXiv:1710.03740, and torch.autocast.

The tables (helpers/devices/autocast_tables.py) list names of functions for each kind of device: LOWER run in 16 bits,
FLOAT32 in float32, PROMOTE in the widest dtype of their inputs, and BANNED raise an error.

A Python mode cannot see calls inside C++, such as the products inside einsum. Functions that make such calls are
therefore listed by their own name, too (the group COMPOSED in the tables, which runs in 16 bits). nn.GRU, recurrent
cells, F.bilinear and F.pad with mode="reflect" are not listed, and run on CPU in their inputs' dtype.
When torch.utils.checkpoint runs a forward again in backward, it does not enter this region again: with
use_reentrant=False pass it `context_fn=lambda: (nullcontext(), autocast(...))`. helpers.parallel.shared.recompute does
it by itself.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from contextlib import ContextDecorator
from types import FunctionType

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from helpers.devices import autocast_tables as tables
from helpers.devices import known_kinds, table_of
from helpers.devices.autocast_tables import BANNED, FLOAT32, LOWER, PROMOTE

LOW_DTYPES = (torch.bfloat16, torch.float16)
# torch's functions that are written in Python begin with `if has_torch_function(...)`, which is true while a mode is
# open: then they pass it the call (handle_torch_function) instead of running their body. These are that test's names
OVERRIDABLE = {"has_torch_function", "has_torch_function_unary", "has_torch_function_variadic"}
# a table ("cpu", "cuda") -> function of torch -> the rule that was found for it: what a region does with its calls
RULES: dict[str, dict[Callable, Callable]] = {kind: {} for kind in LOWER}


class _Thread(threading.local):
    """The open regions by device type, and 16-bit copies of weights; each thread has its own, as in torch."""

    def __init__(self):
        self.regions: defaultdict[str, list[autocast]] = defaultdict(list)
        # by id of a weight and dtype: the weight, which is kept so that no other tensor gets its id, and its copy
        self.copies: dict[tuple[int, torch.dtype], tuple[Tensor, Tensor]] = {}


_THREAD = _Thread()


def innermost(device_type: str = "cpu") -> autocast | None:
    """Return the innermost open region, or None. recompute.py asks, so that it can open the same again in backward."""
    regions = _THREAD.regions[device_type]
    return regions[-1] if regions else None


class autocast(TorchFunctionMode, ContextDecorator):
    """A region in which torch's functions choose their precision: `with autocast(torch.bfloat16): loss = ...`.

    Put forward and loss inside, backward and the optimizer outside. Regions may be nested: the innermost decides, and
    `enabled=False` switches autocast off (cast inputs from outside yourself, `x.float()`). It is also a decorator.

    dtype: torch.bfloat16 or torch.float16. device_type: "cpu", "cuda" or "card" (this course's simulated GPU, which
    follows CUDA's table). Tensors of other devices and float64 are not cast, nor are calls with `out=`, in-place calls,
    and float32 operations with an explicit `dtype=`.
    cache: cast a float32 weight once, not at each use. The casts are dropped where the outermost region ends, so the
    next region sees what the optimizer wrote; as in torch, an optimizer step inside a region is not seen.
    table: the device whose table is used, by default its own: table="cuda" shows on a CPU what happens on a GPU.
    Raises ValueError for another dtype, device type or table.
    """

    def __init__(
        self,
        dtype: torch.dtype,
        *,
        device_type: str = "cpu",
        enabled: bool = True,
        cache: bool = True,
        table: str | None = None,
    ):
        super().__init__()
        self.table = table or table_of(device_type)
        _check(dtype, device_type, self.table)
        self.dtype, self.device_type, self.enabled, self.cache = dtype, device_type, enabled, cache
        self._rules = RULES[self.table]
        self._stack = _THREAD.regions[device_type]  # the open regions of this device type, the innermost last

    def __enter__(self) -> autocast:  # perhaps in another thread than __init__, which has regions of its own
        self._stack = _THREAD.regions[self.device_type]
        self._stack.append(self)
        return super().__enter__()

    def __exit__(self, *error) -> None:
        super().__exit__(*error)
        self._stack.pop()
        if not any(_THREAD.regions.values()):
            _THREAD.copies.clear()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        rule = self._rules.get(func) or _decide(self.table, func)
        if rule is _unchanged or not self.enabled or self._stack[-1] is not self:  # or an inner region has decided
            return func(*args, **kwargs)
        return rule(self, func, args, kwargs)

    def cast(self, value: object, dtype: torch.dtype) -> object:
        """Cast a tensor of this device, or each in a list or tuple, to `dtype`; return anything else unchanged."""
        if isinstance(value, Tensor):
            if value.dtype is dtype or not self.may_cast(value):
                return value
            return self._copy(value) if dtype is self.dtype else value.to(dtype)
        if type(value) in (list, tuple):
            return type(value)(self.cast(one, dtype) for one in value)
        return value

    def may_cast(self, tensor: Tensor) -> bool:
        """Return whether it is a floating-point tensor of this device. float64, chosen on purpose, is never cast."""
        has_castable_dtype = tensor.is_floating_point() and tensor.dtype is not torch.float64
        return has_castable_dtype and tensor.device.type == self.device_type

    def _copy(self, tensor: Tensor) -> Tensor:
        """Return the tensor in 16 bits. A weight always gets the same copy, so its gradient is also cast back once."""
        if not (self.cache and tensor.requires_grad and tensor.is_leaf and tensor.dtype is torch.float32):
            return tensor.to(self.dtype)
        key = id(tensor), self.dtype
        if key in _THREAD.copies:
            return _THREAD.copies[key][1]
        copy = tensor.to(self.dtype)
        if copy.requires_grad:  # a copy made under no_grad would later keep the gradient from its weight
            _THREAD.copies[key] = tensor, copy
        return copy

    def inside(self, body: Callable, args: tuple, kwargs: dict) -> object:
        """Run a Python function's body with this mode on, so that the mode sees what the body calls."""
        super().__enter__()  # torch switches a mode off while it handles a call; the region itself is open already
        try:
            return body(*args, **kwargs)
        finally:
            super().__exit__(None, None, None)


# ---- rules: what a region does with one call ----


def _unchanged(region: autocast, func: Callable, args: tuple, kwargs: dict) -> object:
    return func(*args, **kwargs)


def _lower(region: autocast, func: Callable, args: tuple, kwargs: dict) -> object:
    """Run in 16 bits."""
    return _run_in(region.dtype, region, func, args, kwargs)


def _float32(region: autocast, func: Callable, args: tuple, kwargs: dict) -> object:
    """Run in float32, unless the call chooses a dtype itself, as x.sum(dtype=...)."""
    if kwargs.get("dtype") is not None or any(isinstance(value, torch.dtype) for value in args):
        return func(*args, **kwargs)
    return _run_in(torch.float32, region, func, args, kwargs)


def _cross_entropy(region: autocast, func: Callable, args: tuple, kwargs: dict) -> object:
    """Compute cross entropy as CUDA does: log_softmax is rounded to the logits' dtype, and then nll_loss is float32.

    CUDA's table lists these two functions, and not cross entropy itself.
    """
    logits, target, weight, reduction, ignored, smoothing = args  # of torch._C._nn.cross_entropy_loss
    if smoothing or target.is_floating_point() or logits.dtype not in LOW_DTYPES or not region.may_cast(logits):
        return _float32(region, func, args, kwargs)
    # classes are dimension 1, or 0 where the logits are those of a single example
    log_probabilities = logits.log_softmax(min(1, logits.dim() - 1)).float()
    return torch._C._nn.nll_loss_nd(log_probabilities, target, region.cast(weight, torch.float32), reduction, ignored)


def _promote(region: autocast, func: Callable, args: tuple, kwargs: dict) -> object:
    """Run in 16 bits where all tensors have 16 bits already, else in float32."""
    dtypes = {tensor.dtype for tensor in _tensors((*args, *kwargs.values())) if region.may_cast(tensor)}
    widest = region.dtype if dtypes <= {region.dtype} else torch.float32
    return _run_in(widest, region, func, args, kwargs)


def _run_in(dtype: torch.dtype, region: autocast, func: Callable, args: tuple, kwargs: dict) -> object:
    """Cast the arguments and call the function. A call with `out=` is not changed."""
    if kwargs.get("out") is not None:
        return func(*args, **kwargs)
    kwargs = {name: region.cast(value, dtype) for name, value in kwargs.items()} if kwargs else kwargs
    return func(*[region.cast(value, dtype) for value in args], **kwargs)


def _tensors(values: tuple) -> list[Tensor]:
    """Return the tensors among `values`, and those in its lists and tuples."""
    flat = [one for value in values for one in (value if type(value) in (list, tuple) else (value,))]
    return [one for one in flat if isinstance(one, Tensor)]


def _refuse(reason: str) -> Callable:
    """Return the rule for a banned function: it raises RuntimeError with the reason."""

    def refuse(region: autocast, func: Callable, args: tuple, kwargs: dict):
        raise RuntimeError(reason)

    return refuse


def _look_inside(func: FunctionType) -> Callable:
    """Return the rule for functions written in Python, such as F.normalize: run their body with the mode on.

    Their first lines ask `has_torch_function(...)` and would call the mode again without end, so the rule runs the same
    code with a `has_torch_function` that returns False.
    """
    answering_no = dict.fromkeys(OVERRIDABLE & func.__globals__.keys(), lambda *_: False)
    new_globals = {**func.__globals__, **answering_no}
    body = FunctionType(func.__code__, new_globals, func.__name__, func.__defaults__, func.__closure__)
    body.__kwdefaults__ = func.__kwdefaults__
    return lambda region, func, args, kwargs: region.inside(body, args, kwargs)


# ---- which rule ----


def _decide(table: str, func: Callable) -> Callable:
    """Find the rule for a function and remember it, so that names are compared once and not at each call."""
    rule = RULES[table][func] = _rule_for(table, func)
    return rule


def _rule_for(table: str, func: Callable) -> Callable:
    """Find the rule by the function's name; an operator such as __matmul__ is listed as matmul."""
    name = getattr(func, "__name__", "")
    name = name.strip("_") if _is_operator(name) else name
    if name in BANNED[table]:
        return _refuse(BANNED[table][name])
    if (name, table) == ("cross_entropy_loss", "cuda"):
        return _cross_entropy
    for rule, group in ((_lower, LOWER), (_promote, PROMOTE), (_float32, FLOAT32)):
        if name in tables.names(group, table):
            return rule
    return _look_inside(func) if _is_worth_a_look(func, table) else _unchanged


def _is_worth_a_look(func: Callable, table: str) -> bool:
    """Return whether a Python function, or a function that it calls or wraps, mentions a listed operation.

    Looking inside costs some 20 microseconds per call, so F.normalize gets it and F.dropout does not.
    """
    code = getattr(func, "__code__", None)
    if code is None or not OVERRIDABLE & set(code.co_names):
        return False
    # the functions that it calls (by the names in its code) and wraps (in its closure), and the names in their code;
    # handle_torch_function only hands the call to the mode, so it says nothing about operations
    named = [func.__globals__.get(name) for name in set(code.co_names) - OVERRIDABLE - {"handle_torch_function"}]
    parts = [func, *named, *(cell.cell_contents for cell in func.__closure__ or ())]
    mentioned = {name for part in parts if isinstance(part, FunctionType) for name in part.__code__.co_names}
    listed = [name for group in (LOWER, PROMOTE, FLOAT32) for name in tables.names(group, table)]
    # torch.linalg.inv is listed as linalg_inv, but code that calls it mentions only `inv`
    short_names = [name.removeprefix("linalg_").removeprefix("fft_") for name in listed]
    return not mentioned.isdisjoint([*listed, *short_names])


def _is_operator(name: str) -> bool:
    """Return whether it is a name such as __add__, but not that of an in-place operator, such as __iadd__."""
    return name.startswith("__") and name.endswith("__") and not name.startswith("__i")


def _check(dtype: object, device_type: str, table: str) -> None:
    """Raise ValueError for an argument of `autocast` that is not known."""
    kinds = known_kinds()
    if dtype in kinds:
        raise ValueError(
            f'autocast("{dtype}"): the dtype comes first here; write autocast(torch.bfloat16, device_type="{dtype}")'
        )
    if dtype not in LOW_DTYPES:
        raise ValueError(f"autocast({dtype}): a region lowers to torch.bfloat16 or torch.float16; choose one of them")
    for what, value, known in (("device_type", device_type, kinds), ("table", table, RULES)):
        if value not in known:
            choices = " or ".join(f'"{kind}"' for kind in known)
            raise ValueError(f"autocast({what}={value!r}): give {choices}, without an index")
