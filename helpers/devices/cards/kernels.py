"""Registers the kernels that C++ asks of a practice card: new tensors, copies, attention, SyncBatchNorm and autocast.

A practice card is a simulated GPU (tensor.py): a CardTensor wraps a CPU tensor (`_raw`), and nearly all operations pass
through its `__torch_dispatch__`. This file has those that do not, or that need more:

    creation      there is no tensor yet whose dispatch could be called
    autocast      inputs are cast as CUDA's autocast does, by the tables of helpers/devices/autocast_tables.py
    SyncBatchNorm its five operations exist in torch for GPUs alone; here they are formulas on the CPU tensors inside
    others        attention, CTC loss, LSTM and GRU cells, for which torch has other code on a GPU than on the CPU

A kernel is the function that torch's dispatcher calls for an operation. The dispatcher finds it by a dispatch key, and
the keys come in an order: autocast's, then autograd's, then that of the device itself. torch calls a device that is
made in Python "PrivateUse1", so the three keys are AutocastPrivateUse1, AutogradPrivateUse1 and PrivateUse1.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.utils._pytree import tree_iter, tree_map_only

from helpers.devices import autocast_tables as tables
from helpers.devices.cards import races, streams
from helpers.devices.cards.errors import check_index
from helpers.devices.cards.tensor import CPU, SEEDED, SPECIAL_OPERATIONS, CardTensor, run_with_card_generator

aten = torch.ops.aten
KEY, CAST = "PrivateUse1", "AutocastPrivateUse1"  # dispatch keys, see above
FLASH = 1  # what torch._fused_sdp_choice returns for flash attention
# CUDA's message for binary_cross_entropy under autocast.
UNSAFE = (
    "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\nMany models use a sigmoid "
    "layer right before the binary cross entropy layer.\nIn this case, combine the two layers using "
    "torch.nn.functional.binary_cross_entropy_with_logits\nor torch.nn.BCEWithLogitsLoss.  "
    "binary_cross_entropy_with_logits and BCEWithLogits are\nsafe to autocast."
)
# Autocast's cache: (id of a weight, dtype) -> the weight, which is stored so that no other gets its id, and its copy.
_copies: dict[tuple[int, torch.dtype], tuple[Tensor, Tensor]] = {}
# DDP makes an int32 tensor here in which it marks the parameters that were used. It stays on the CPU, since DDP's C++
# code would copy a card's through pinned memory, which a simulated GPU does not have.
_OF_DDP = ("_ddp_init_helper", "_set_static_graph")
_libraries: list[torch.library.Library] = []  # torch drops a library's kernels when the library is destroyed


def register() -> None:
    """Give the device its kernels, in this process, once."""
    # "IMPL" adds kernels to operations that exist; "_" stands for the operations of every library.
    library, others = torch.library.Library("aten", "IMPL"), torch.library.Library("_", "IMPL")
    _libraries.extend((library, others))
    library.impl("empty.memory_format", _creates(aten.empty.memory_format), KEY)
    library.impl("empty_strided", _creates(aten.empty_strided.default), KEY)
    library.impl("_copy_from", _copy_from, KEY)
    # Under the key of autograd, because these are made of other operations, and autograd records each of those.
    library.impl("scaled_dot_product_attention", _attention, "AutogradPrivateUse1")
    library.impl("ctc_loss.Tensor", _ctc_loss, "AutogradPrivateUse1")
    for name, cell in (("_thnn_fused_lstm_cell", _lstm_cell), ("_thnn_fused_gru_cell", _gru_cell)):
        library.impl(name, cell, "AutogradPrivateUse1")
        SPECIAL_OPERATIONS[getattr(aten, name).default] = _on_cards(cell)  # for inference mode, without autograd
    # Have torch decompose these into simpler operations (CompositeImplicitAutograd) already at the key of autocast, so
    # that autocast casts each of them. In inference mode, without the key of autograd, torch would not decompose them.
    for name in ("gru", "lstm", "rnn_tanh", "rnn_relu"):
        for overload in ("input", "data"):
            op = getattr(getattr(aten, name), overload)
            library.impl(op, functools.partial(op._op_dk, torch._C.DispatchKey.CompositeImplicitAutograd), CAST)
    torch.clear_autocast_cache = _forget_copies(torch.clear_autocast_cache)
    # Every other operation that comes here makes a tensor; autocast leaves every other operation as it is.
    others.fallback(lambda op, *args, **kwargs: _creates(op)(*args, **kwargs), KEY)
    others.fallback(torch.library.fallthrough_kernel, CAST)
    # Each rule returns the dtype to which inputs are cast.
    for rule, table in ((_lowered, tables.LOWER), (_widened, tables.PROMOTE), (_in_float32, tables.FLOAT32)):
        for op in _cast_by_cuda(tables.names(table, "cuda")):
            library.impl(op, _autocasts(op, rule), CAST)
    for op in _cast_by_cuda(tables.BANNED["cuda"]):
        library.impl(op, _refuse, CAST)


def _creates(op) -> Callable:
    """An operation that makes a tensor from nothing: the CPU makes it, and it is on the card."""

    def make(*args, **kwargs):
        check_index(torch.device(kwargs.get("device") or "card"))
        named = kwargs | {"device": CPU}
        named.pop("pin_memory", None)
        # Called by DDP for its marks of used parameters, see _OF_DDP.
        if kwargs.get("dtype") is torch.int32 and sys._getframe(1).f_code.co_name in _OF_DDP:
            marks = op(*args, **named)
            marks.is_ddps_note = True  # by which NCCL's rules (helpers/ranks/nccl) recognise it
            return marks
        made = run_with_card_generator(op, args, named) if SEEDED in op.tags else op(*args, **named)
        made = tree_map_only(Tensor, CardTensor, made)
        if streams.is_watching:
            races.note_operation(op, args, kwargs, made)
        return made

    return make


def _copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    """`target.copy_(source)`, of which at least one is on the card."""
    inside = [tensor._raw if isinstance(tensor, CardTensor) else tensor for tensor in (target, source)]
    inside[0].copy_(inside[1])
    return target


def _attention(query, key, value, mask=None, dropout_p=0.0, is_causal=False, *, scale=None, enable_gqa=False):
    """Attention by the kernel that the CPU would choose, so that the result is equal to the CPU's to the bit.

    On a device made in Python torch would always compute the plain formula, which rounds differently.
    """
    given, options = [query, key, value, mask], {"scale": scale, "enable_gqa": enable_gqa}
    inside = tree_map_only(CardTensor, lambda card: card._raw, given)
    if torch._fused_sdp_choice(*inside, dropout_p, is_causal, **options) == FLASH:
        flash = aten._scaled_dot_product_flash_attention_for_cpu
        return flash(query, key, value, dropout_p, is_causal, attn_mask=mask, scale=scale)[0]
    return aten._scaled_dot_product_attention_math(*given, dropout_p, is_causal, **options)[0]


def _ctc_loss(log_probs: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor, *options) -> Tensor:
    """CTC loss with its lengths as numbers. torch would compute with tensors of lengths on the card, but they may be on
    the CPU.
    """
    return aten.ctc_loss.IntList(log_probs, targets, input_lengths.tolist(), target_lengths.tolist(), *options)


def _lstm_cell(inputs: Tensor, hidden: Tensor, cell: Tensor, input_bias=None, hidden_bias=None):
    """torch's "fused" LSTM cell, called on every device but the CPU, as a formula. Returns h, c and the gates."""
    gates = inputs + hidden if input_bias is None else inputs + input_bias + hidden + hidden_bias  # (B, 4 h)
    i, f, g, o = gates.chunk(4, 1)
    cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
    return o.sigmoid() * cell.tanh(), cell, gates


def _gru_cell(inputs: Tensor, hidden: Tensor, state: Tensor, input_bias=None, hidden_bias=None):
    """The same for a GRU cell. Returns the new state, and in place of torch's workspace the candidate state."""
    if input_bias is not None:
        inputs, hidden = inputs + input_bias, hidden + hidden_bias
    (r, z, n), (hidden_r, hidden_z, hidden_n) = inputs.chunk(3, 1), hidden.chunk(3, 1)  # (B, h) each
    z = (z + hidden_z).sigmoid()
    new = (n + (r + hidden_r).sigmoid() * hidden_n).tanh()
    return new + z * (state - new), new


# -- autocast ------------------------------------------------------------------------------------------------------
def _cast_by_cuda(names) -> Iterator:
    """The overloads of these operations that CUDA's autocast registers in the torch that is installed."""
    for registered in torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCUDA"):
        name, _, overload = registered.removeprefix("aten::").partition(".")
        if name in names:
            yield getattr(getattr(aten, name), overload or "default")


def _lowered(op, tensors, kwargs) -> torch.dtype | None:
    """For operations that run in the 16-bit type."""
    return torch.get_autocast_dtype("card")


def _in_float32(op, tensors, kwargs) -> torch.dtype | None:
    """For operations that run in float32, unless the caller gives a dtype; None casts nothing."""
    return None if kwargs.get("dtype") is not None else torch.float32


def _widened(op, tensors, kwargs) -> torch.dtype | None:
    """For operations that run in the widest type of their inputs."""
    has_float32 = any(tensor.dtype is torch.float32 for tensor in tensors)
    return torch.float32 if has_float32 else torch.get_autocast_dtype("card")


def _autocasts(op, rule: Callable) -> Callable:
    """A kernel that works as CUDA's autocast: it casts the inputs, then runs the operation without autocast."""
    without = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)  # the key to skip inside the kernel

    def kernel(*args, **kwargs):
        with torch._C._ExcludeDispatchKeyGuard(without):
            tensors = [one for one in tree_iter((args, kwargs)) if isinstance(one, Tensor) and _may_cast(one)]
            dtype = rule(op, tensors, kwargs)
            if dtype is not None:
                cast = lambda one: _copy(one, dtype) if _may_cast(one) else one  # noqa: E731
                args, kwargs = tree_map_only(Tensor, cast, args), tree_map_only(Tensor, cast, kwargs)
            return op(*args, **kwargs)

    return kernel


def _copy(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """The tensor in this dtype. A weight is cast only once until the outermost autocast region ends, as on CUDA."""
    is_weight = tensor.requires_grad and tensor.is_leaf and tensor.dtype is torch.float32
    if dtype is torch.float32 or not (is_weight and torch.is_autocast_cache_enabled()):
        return tensor.to(dtype)
    if (id(tensor), dtype) not in _copies:
        _copies[id(tensor), dtype] = tensor, tensor.to(dtype)
    return _copies[id(tensor), dtype][1]


def _forget_copies(clear: Callable[[], None]) -> Callable[[], None]:
    """torch.clear_autocast_cache, which also clears the cache of this file. clear: torch's own function."""

    def forget() -> None:
        _copies.clear()
        clear()

    return forget


def _may_cast(tensor: Tensor) -> bool:
    """Whether autocast may cast it. A card's tensor may say "cuda" here, when a script for CUDA runs on cards."""
    is_on_card = tensor.device.type != "cpu"
    return is_on_card and tensor.is_floating_point() and tensor.dtype is not torch.float64


def _refuse(*args, **kwargs):
    """The kernel of an operation that autocast bans."""
    raise RuntimeError(UNSAFE)


# -- SyncBatchNorm -------------------------------------------------------------------------------------------------
# The formulas have the arguments and results of the operations that they replace. x, dy: (B, C, ...). mean, invstd,
# weight, bias: (C,), where invstd is 1 / sqrt(variance + eps). counts: elements per channel on each rank.
def register_batch_norm() -> None:
    """Let the card compute the operations of SyncBatchNorm with the formulas below."""
    for op, formula in (
        (aten.batch_norm_stats.default, _stats),
        (aten.batch_norm_gather_stats_with_counts.default, _gather_stats),
        (aten.batch_norm_elemt.default, _normalized),
        (aten.batch_norm_backward_reduce.default, _reduced),
        (aten.batch_norm_backward_elemt.default, _backward),
    ):
        SPECIAL_OPERATIONS[op] = _on_cards(formula)


def _on_cards(formula):
    """The formula as an entry of SPECIAL_OPERATIONS, which are called with two lists of tensors (tensor.py)."""
    return lambda inside, cards: formula(*inside)


def _rows(x: Tensor) -> Tensor:
    """(B, C, ...) -> (C, B ...)"""
    return x.transpose(0, 1).flatten(1)


def _per_channel(value: Tensor | None, x: Tensor) -> Tensor | int:
    """(C,) -> (1, C, 1, ...)"""
    return 1 if value is None else value.view(1, -1, *[1] * (x.dim() - 2))


def _stats(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Mean and invstd of this rank's batch."""
    rows = _rows(x).float() if x.dtype in (torch.float16, torch.bfloat16) else _rows(x)
    return rows.mean(1), (rows.var(1, correction=0) + eps).rsqrt()


def _gather_stats(x, means, invstds, running_mean, running_var, momentum, eps, counts) -> tuple[Tensor, Tensor]:
    """Mean and invstd of the batches of all ranks, from theirs: (ranks, C). Updates the running statistics."""
    counts, total = counts.view(-1, 1), counts.sum()  # (ranks, 1)
    mean = (counts * means).sum(0) / total
    # invstds**-2 - eps are the variances on each rank.
    var = (counts * (invstds**-2 - eps + (means - mean) ** 2)).sum(0) / total
    if running_mean is not None:
        running_mean.lerp_(mean.to(running_mean.dtype), momentum)
        running_var.lerp_((var * total / (total - 1)).to(running_var.dtype), momentum)
    return mean, (var + eps).rsqrt()


def _normalized(x, weight, bias, mean, invstd, eps) -> Tensor:
    """(x - mean) * invstd * weight + bias. eps is in invstd already."""
    out = (x - _per_channel(mean, x)) * _per_channel(invstd, x) * _per_channel(weight, x)
    return (out if bias is None else out + _per_channel(bias, x)).to(x.dtype)


def _reduced(dy, x, mean, invstd, weight, *wanted) -> tuple[Tensor, ...]:
    """Sums over this rank's batch: of dy, of dy * (x - mean), and the gradients of weight and bias.

    wanted: torch's flags, which say whose gradients are needed; here all are computed.
    """
    sum_dy = _rows(dy).to(mean.dtype).sum(1)
    sum_dy_xmu = _rows(dy * (x - _per_channel(mean, x))).to(mean.dtype).sum(1)
    like = mean.dtype if weight is None else weight.dtype
    return sum_dy, sum_dy_xmu, (sum_dy_xmu * invstd).to(like), sum_dy.to(like)


def _backward(dy, x, mean, invstd, weight, sum_dy, sum_dy_xmu, counts) -> Tensor:
    """The gradient of x, from the sums of all ranks."""
    total = counts.sum()
    centred = (x - _per_channel(mean, x)) * _per_channel(invstd**2 * sum_dy_xmu / total, x)
    scale = _per_channel(invstd if weight is None else invstd * weight, x)
    return ((dy - _per_channel(sum_dy / total, x) - centred) * scale).to(x.dtype)
