"""Build a model whose parameters no rank ever holds whole, with the values that its own constructor gives them.

The constructor runs on the meta device, where tensors have shapes and no memory. Each operation that would give values
runs a second time for real, on the whole tensors that it touches. As soon as another operation touches other tensors,
every rank cuts them down to 1/N. So with equal seeds the ranks draw the random numbers that one process draws.
Sends nothing, unless the constructor comes back to a tensor and its old values count: then one all_gather of it.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter, tree_map_only

from helpers.parallel.zero.flat_shards import FlatShards

_FORGETS = {"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"}
_OVERWRITES = {"uniform_", "normal_", "fill_", "zero_", "exponential_", "bernoulli_", "random_"}
_SMALL = 1024  # elements up to which a tensor is not worth cutting


class ShardedConstruction(TorchDispatchMode):
    """`with ShardedConstruction(group, device) as construction: model = GPT(config)`, then `construction.values(p)`.

    device: where the values are computed and the shards lie. Tensors made in the `with` are on the meta device, so they
    may be combined, but not read: `.item()` has nothing to read there. torch.tensor([…]) alone makes a real one.
    Raises RuntimeError for a meta tensor that was not made here, or asked for already.
    """

    def __init__(self, group: dist.ProcessGroup, device: torch.device):
        super().__init__()
        self.group, self.device = group, device
        self._made: dict[int, torch.UntypedStorage] = {}  # kept, so that an address means one tensor for ever
        self._whole: dict[int, Tensor] = {}  # (numel,) real values of what was touched last, and of what is small
        self._cut: dict[int, tuple[FlatShards, Tensor]] = {}  # layout and this rank's shard of what was not
        self._written: set[int] = set()
        self._around = torch.device("meta"), _Numbers(device)

    def __enter__(self):
        for mode in self._around:
            mode.__enter__()
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        for mode in reversed(self._around):
            mode.__exit__(*error)

    def values(self, tensor: Tensor) -> Tensor:
        """The whole values of a parameter or buffer, once: they are not kept here. Every rank must ask."""
        real = self._real(tensor)
        if tensor.is_meta:
            self._check_written(tensor)
            del self._whole[_key(tensor)], self._made[_key(tensor)]
        return real

    def _check_written(self, tensor: Tensor) -> None:
        if _key(tensor) not in self._written and tensor.numel():
            raise RuntimeError(
                f"no operation of the constructor gave values to a tensor of shape {tuple(tensor.shape)}. Some do "
                "nothing on the meta device, such as torch.nn.init.trunc_normal_: initialise with normal_, or "
                "build the model as ever and wrap it"
            )

    def fill_buffers(self, model: nn.Module) -> None:
        """Put real buffers into the modules."""
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
        given = {_key(t): t for t in tree_iter((args, kwargs)) if isinstance(t, Tensor) and t.is_meta}
        new = [t for t in tree_iter(result) if isinstance(t, Tensor) and t.is_meta and _key(t) not in given]
        name = function._schema.name.removeprefix("aten::")
        self._made |= {_key(t): t.untyped_storage() for t in new}
        if name not in _FORGETS and (new or function._schema.is_mutable):
            self._written |= {_key(t) for t in tree_iter(result) if isinstance(t, Tensor) and t.is_meta}
            self._run_for_real(function, name, args, kwargs, result)
        return result

    def _run_for_real(self, function, name: str, args: tuple, kwargs: dict, result: object) -> None:
        if name in _OVERWRITES and args[0].is_meta and _covers_all(args[0]):
            self._forget(_key(args[0]))
        real_args, real_kwargs = tree_map_only(Tensor, self._real, (args, kwargs))
        if "device" in real_kwargs:
            real_kwargs["device"] = self.device
        for meta, real in zip(tree_iter(result), tree_iter(function(*real_args, **real_kwargs)), strict=True):
            if isinstance(meta, Tensor) and meta.is_meta and _key(meta) not in self._whole:
                flat = real.new_empty(_numel(meta))
                flat.as_strided(meta.size(), meta.stride(), meta.storage_offset()).copy_(real)
                self._whole[_key(meta)] = flat
        self._cut_down(keep={_key(t) for t in tree_iter((args, kwargs, result)) if isinstance(t, Tensor)})

    def _real(self, tensor: Tensor) -> Tensor:
        """What a meta tensor stands for, as a view of its whole values."""
        if not tensor.is_meta:
            return tensor
        key = _key(tensor)
        if key not in self._made:
            raise RuntimeError(
                f"a tensor of shape {tuple(tensor.shape)} has no values here: it was made before the construction "
                "began, or asked for already"
            )
        if key in self._cut:
            layout, shard = self._cut.pop(key)
            flat = layout.new_flat()
            layout.all_gather(flat, shard)
            self._whole[key] = flat[: layout.numel]
        elif key not in self._whole:
            self._whole[key] = torch.empty(_numel(tensor), dtype=tensor.dtype, device=self.device)
        return self._whole[key].as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())

    def _forget(self, key: int) -> None:
        self._cut.pop(key, None)

    def _cut_down(self, keep: set[int]) -> None:
        for key in [key for key, whole in self._whole.items() if key not in keep and whole.numel() > _SMALL]:
            whole = self._whole.pop(key)
            layout = FlatShards([whole], self.group)
            self._cut[key] = layout, layout.shard_of(layout.pack([whole], layout.new_flat())).clone()


class _Numbers(TorchFunctionMode):
    """Tensors from Python numbers are real: on the meta device the numbers would be lost without a trace."""

    def __init__(self, device: torch.device):
        super().__init__()
        self.device = device

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function in (torch.tensor, torch.as_tensor) and kwargs.get("device") is None:
            kwargs = kwargs | {"device": self.device}
        return function(*args, **kwargs)


def _key(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _numel(tensor: Tensor) -> int:
    """Elements of the whole storage, of which the tensor may be a view."""
    return tensor.untyped_storage().nbytes() // tensor.element_size()


def _covers_all(tensor: Tensor) -> bool:
    return tensor.numel() == _numel(tensor)
