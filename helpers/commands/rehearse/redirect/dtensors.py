"""DTensor: how it asks an operation for shapes, and how its ranks draw the parts of one tensor."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed.tensor import _op_schema, _random


def replace() -> None:
    _op_schema._rebuild_tensor_from_dtensor_meta = _shaped
    _random._PhiloxState = Numbers


def _shaped(spec) -> Tensor:
    """For a fake tensor, of the mesh's device in torch: a build without CUDA cannot draw such a one."""
    return torch.empty_strided(*spec.tensor_meta[:2], dtype=spec.tensor_meta.dtype)


class Numbers:
    """A generator's state with an offset, as a GPU's has. A card's is the CPU's: another offset is another seed."""

    def __init__(self, state: Tensor):
        self.state = self._begin = state.cpu()

    @property
    def offset(self) -> Tensor:
        return torch.zeros(1, dtype=torch.int64)

    @offset.setter
    def offset(self, offset: Tensor) -> None:
        generator = torch.Generator()
        generator.set_state(self._begin)
        seed = torch.randint(1 << 62, (), generator=generator) + offset
        self.state = generator.manual_seed(seed.item()).get_state()
