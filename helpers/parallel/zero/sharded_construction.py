"""Builds a model whose parameters no rank ever stores in full, with the values that its own constructor gives them.

The constructor runs on the meta device, where tensors have shapes but no memory. Each operation that initialises values
runs a second time on real tensors, in full. As soon as an operation uses other tensors, every rank shards those that it
does not use, so that it keeps 1/N of them. With equal seeds the ranks therefore draw the same random numbers as one
process. Nothing is sent, unless the constructor reads a tensor again that was already sharded; then that tensor is
all-gathered.
Zero3.build uses it. Two of torch's modes are open at once. ShardedConstruction, a dispatch mode, sees every operation
on tensors after its device is decided. _RealNumbers, a function mode, sees the call in Python before that, and can
therefore still change the device of torch.tensor([...]).
Below, `meta` is a tensor on the meta device, and `real` the tensor with its values; a layout (FlatShards) says how a
tensor is split into N equal shards.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter, tree_map_only

from helpers.parallel.zero.flat_shards import FlatShards

# names of torch's operations: those that make tensors without values, and those that overwrite all values of a tensor
_UNINITIALIZED = {"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"}
_OVERWRITES = {"uniform_", "normal_", "fill_", "zero_", "exponential_", "bernoulli_", "random_"}
_SMALL = 1024  # tensors of at most this many elements are not sharded, because that would save hardly any memory


class ShardedConstruction(TorchDispatchMode):
    """Records a constructor: `with ShardedConstruction(group, device) as construction: model = GPT(config)`.

    Afterwards `construction.values(parameter)` returns the values. device: where they are computed and stored.
    Tensors made in the `with` are on the meta device, so they can be combined, but `.item()` cannot read them; only
    torch.tensor([…]) and torch.as_tensor make a real one, because the meta device would lose the numbers.
    Raises RuntimeError for a meta tensor that was not made here, or whose values were asked for before.
    """

    def __init__(self, group: dist.ProcessGroup, device: torch.device):
        super().__init__()
        self.group, self.device = group, device
        # all are keyed by the address of a meta tensor's storage; _made keeps the storages, so no address is used again
        self._made: dict[int, torch.UntypedStorage] = {}
        self._full: dict[int, Tensor] = {}  # (numel,) real values of small tensors and of those used last
        self._sharded: dict[int, tuple[FlatShards, Tensor]] = {}  # layout and this rank's shard of all others
        self._written: set[int] = set()  # those that an operation gave values, unlike one that only torch.empty made
        # entered together with this mode. A torch.device as a context makes new tensors on that device; _RealNumbers is
        # entered after it, because the function mode that was entered last sees a call first
        self._modes = torch.device("meta"), _RealNumbers(device)

    def __enter__(self):
        for mode in self._modes:
            mode.__enter__()
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        for mode in reversed(self._modes):
            mode.__exit__(*error)

    def values(self, tensor: Tensor) -> Tensor:
        """Return the full values of a parameter or buffer, and forget them.

        It may all-gather, so every rank must ask, in the same order.
        """
        real = self._real(tensor)
        if tensor.is_meta:
            self._check_written(tensor)
            del self._full[_key(tensor)], self._made[_key(tensor)]
        return real

    def _check_written(self, tensor: Tensor) -> None:
        if _key(tensor) not in self._written and tensor.numel():
            raise RuntimeError(
                f"no operation of the constructor gave values to a tensor of shape {tuple(tensor.shape)}. Some do "
                "nothing on the meta device, such as torch.nn.init.trunc_normal_: initialise with normal_, or "
                "build the model as usual and wrap it"
            )

    def fill_buffers(self, model: nn.Module) -> None:
        """Replace the meta buffers of the modules by real ones."""
        filled: dict[Tensor, Tensor] = {}
        for module in model.modules():
            for name, buffer in module._buffers.items():
                if buffer is not None and buffer.is_meta:
                    if buffer not in filled:
                        filled[buffer] = self.values(buffer)
                    module._buffers[name] = filled[buffer]

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        inputs = {_key(tensor) for tensor in _meta_tensors((args, kwargs))}
        new = [tensor for tensor in _meta_tensors(result) if _key(tensor) not in inputs]
        name = function._schema.name.removeprefix("aten::")
        self._made |= {_key(tensor): tensor.untyped_storage() for tensor in new}
        # mutable: it writes into an input. An operation that is neither, such as a view, gives no values
        if name not in _UNINITIALIZED and (new or function._schema.is_mutable):
            self._written |= {_key(tensor) for tensor in _meta_tensors(result)}
            self._run_for_real(function, name, args, kwargs, result)
        return result

    def _run_for_real(self, function, name: str, args: tuple, kwargs: dict, result: object) -> None:
        """Run an operation on real tensors. result: the meta tensors that it returned, to which the values belong."""
        if name in _OVERWRITES and args[0].is_meta and _covers_all(args[0]):
            self._sharded.pop(_key(args[0]), None)  # its old values do not matter
        real_args, real_kwargs = tree_map_only(Tensor, self._real, (args, kwargs))
        if "device" in real_kwargs:
            real_kwargs["device"] = self.device
        for meta, real in zip(tree_iter(result), tree_iter(function(*real_args, **real_kwargs)), strict=True):
            # what is in _full already was written in place, by the operation itself
            if isinstance(meta, Tensor) and meta.is_meta and _key(meta) not in self._full:
                flat = real.new_empty(_numel(meta))  # the full storage, in which `meta` may have any strides
                flat.as_strided(meta.size(), meta.stride(), meta.storage_offset()).copy_(real)
                self._full[_key(meta)] = flat
        self._shard_others(keep={_key(t) for t in tree_iter((args, kwargs, result)) if isinstance(t, Tensor)})

    def _real(self, tensor: Tensor) -> Tensor:
        """Return the real values that a meta tensor stands for, as a view of its storage's full values."""
        if not tensor.is_meta:
            return tensor
        key = _key(tensor)
        if key not in self._made:
            raise RuntimeError(
                f"a tensor of shape {tuple(tensor.shape)} has no values here: it was made before the construction "
                "began, or asked for already"
            )
        if key in self._sharded:
            layout, shard = self._sharded.pop(key)
            flat = layout.new_flat()
            layout.all_gather(flat, shard)
            self._full[key] = flat[: layout.numel]
        elif key not in self._full:  # no values yet, as after torch.empty, or all of them are about to be overwritten
            self._full[key] = torch.empty(_numel(tensor), dtype=tensor.dtype, device=self.device)
        return self._full[key].as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())

    def _shard_others(self, keep: set[int]) -> None:
        """Shard every large tensor that is not in `keep`."""
        for key in [key for key, full in self._full.items() if key not in keep and full.numel() > _SMALL]:
            full = self._full.pop(key)
            layout = FlatShards([full], self.group)
            self._sharded[key] = layout, layout.shard_of(layout.pack([full], layout.new_flat())).clone()


class _RealNumbers(TorchFunctionMode):
    """Makes tensors from Python numbers real, because the meta device would silently lose the numbers."""

    def __init__(self, device: torch.device):
        super().__init__()
        self.device = device

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function in (torch.tensor, torch.as_tensor) and kwargs.get("device") is None:
            kwargs = kwargs | {"device": self.device}
        return function(*args, **kwargs)


def _meta_tensors(tree: object) -> Iterator[Tensor]:
    """Yield the meta tensors in nested tuples, lists and dicts."""
    return (leaf for leaf in tree_iter(tree) if isinstance(leaf, Tensor) and leaf.is_meta)


def _key(tensor: Tensor) -> int:
    """Return the address of the tensor's storage object; views of one storage have the same."""
    return tensor.untyped_storage()._cdata


def _numel(tensor: Tensor) -> int:
    """Return the number of elements of the tensor's storage, of which the tensor may be a view."""
    return tensor.untyped_storage().nbytes() // tensor.element_size()


def _covers_all(tensor: Tensor) -> bool:
    """Return whether the tensor has all elements of its storage."""
    return tensor.numel() == _numel(tensor)
