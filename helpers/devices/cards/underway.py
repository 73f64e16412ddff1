"""Copies that do not block, between the card and pinned memory: who reads or writes that memory before they are done.

An operation on CPU tensors does not pass by a card. So a CPU tensor that such a copy uses is an `Underway`, which sees
what is called with it, until the host has waited; then it is an ordinary tensor again.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils._pytree import tree_iter

from helpers.devices.cards import streams
from helpers.devices.cards.uses import Use, use_of
from helpers.devices.lines import Frame, call_site, is_torchs_own

READS = frozenset(
    "tolist item numpy __array__ __float__ __int__ __bool__ __index__ __complex__ __format__ __repr__ __iter__ "
    "__contains__ __reduce_ex__ __deepcopy__ __dlpack__ equal allclose is_nonzero".split()
)
tell: Callable[[str, Use, Frame], None] | None = None  # set by touching
_marked: list[weakref.ref[Tensor]] = []


class Underway(Tensor):
    """A dense CPU tensor whose memory a copy reads or writes."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        given = [one for one in tree_iter((args, kwargs or {})) if isinstance(one, Tensor)]
        mine = [one for one in given if type(one) is Underway]
        for one in mine:
            one.__class__ = Tensor  # torch asks for this very type, here and there
        before = [(one, one._version, _copies(one)) for one in mine]
        out = func(*args, **(kwargs or {}))
        given += (made := [one for one in tree_iter(out) if isinstance(one, Tensor)])
        name = getattr(func, "__name__", "")
        for one, version, copies in before:
            own = one.untyped_storage()._cdata
            views = [x for x in made if not hasattr(x, "_raw") and x.untyped_storage()._cdata == own]
            wrote = one._version != version
            computes = made and not views and not name.endswith("_like") and name[:4] != "new_"
            if wrote or name in READS or (computes and name != "__get__"):
                _check(one, wrote, copies, any(hasattr(x, "_raw") for x in given))
            if _copies(one):
                for tensor in (one, *views):
                    mark(tensor)
        return out


def crossing(func, args, kwargs: dict, out) -> bool:
    """A copy between the card and the CPU: whether the host waits for it. Else it goes on behind the host's back."""
    target, source = (args[0], args[1]) if func is torch.ops.aten.copy_.default else (out, args[0])
    blocks = not (args[2] if len(args) > 2 else kwargs.get("non_blocking", False))
    cpu = [one for one in (target, source) if not hasattr(one, "_raw")]
    if len(cpu) != 1:
        return False
    if target is out and target is cpu[0] and not blocks and func is not torch.ops.aten.copy_.default:
        target._is_pinned = True  # as torch does for what it makes itself
    if blocks or not cpu[0].is_pinned() or is_torchs_own():  # torch answers for its own copies
        return blocks or cpu[0] is target
    streams.watch()
    stream = streams.current()
    use = use_of(cpu[0], stream, stream.step(), cpu[0] is target, call_site())
    if use is not None:
        storage = cpu[0].untyped_storage()
        _look_behind(storage)
        storage._copies = [*storage.__dict__.get("_copies", ()), use]
        if not use.wrote:
            with torch._C.DisableTorchFunctionSubclass():
                storage._sent = use, cpu[0].detach(), cpu[0].detach().clone()
        mark(cpu[0])
    return False


def mark(tensor: Tensor) -> None:
    for one in (tensor, tensor._base):
        if type(one) is Tensor:
            one.__class__ = Underway
            if not one.__dict__.get("_is_marked"):
                one._is_marked = True
                _marked.append(weakref.ref(one))


def _copies(tensor: Tensor) -> list[Use]:
    return tensor.untyped_storage().__dict__.get("_copies", [])


def _check(tensor: Tensor, wrote: bool, copies: list[Use], is_by_card: bool) -> None:
    """The host touches it, or the card's stream if it is copied from or to there. A race is told once."""
    clock = streams.current().clock if is_by_card else streams.host
    new = use_of(tensor, streams.current(), 0, wrote, call_site())
    for old in copies:
        if new is not None and (old.wrote or wrote) and not old.comes_before(clock) and old.overlaps(new):
            tell("copy.to_the_cpu" if old.wrote else "copy.to_the_card", old, new.site)
            tensor.untyped_storage()._copies = [one for one in _copies(tensor) if one is not old]


def _look_behind(storage: torch.UntypedStorage) -> None:
    """What the last copy to the card took is still there, or somebody wrote who did not ask torch. Told at its line."""
    use, now, sent = storage.__dict__.pop("_sent", (None, None, None))
    if use in storage.__dict__.get("_copies", ()) and not torch.allclose(now, sent, rtol=0, atol=0, equal_nan=True):
        tell("copy.behind", use, use.site)


def _settle() -> None:
    """The host has waited: what is done is an ordinary tensor again."""
    still = []
    for reference in _marked:
        tensor = reference()
        if tensor is None:
            continue
        tensor.__class__ = Tensor
        storage = tensor.untyped_storage()
        _look_behind(storage)
        storage._copies = [use for use in _copies(tensor) if not use.comes_before(streams.host)]
        if storage._copies:
            tensor.__class__ = Underway
            still.append(reference)
        else:
            tensor._is_marked = False
    _marked[:] = still


def is_any() -> bool:
    return bool(_marked)


streams.before_host_goes_on.append(_settle)
