"""Which of the learner's variables hold a process group: after a failure, those have to be made again."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh


def dead_holders(namespace: dict[str, Any]) -> list[str]:
    """Names of the variables through which a process group or a mesh can be reached."""
    return sorted(name for name, value in namespace.items() if not name.startswith("__") and holds_group(value))


def holds_group(value: Any, depth: int = 3) -> bool:
    if isinstance(value, dist.ProcessGroup | DeviceMesh):
        return True
    if depth == 0 or isinstance(value, type | torch.Tensor | str | bytes | int | float):
        return False
    if isinstance(value, torch.nn.Module):
        return any(holds_group(v, 1) for module in value.modules() for v in vars(module).values())
    if isinstance(value, list | tuple | set):
        return any(holds_group(v, depth - 1) for v in list(value)[:100])
    if isinstance(value, dict):
        return any(holds_group(v, depth - 1) for v in list(value.values())[:100])
    if type(value).__module__.split(".")[0] in ("builtins", "types"):
        return False
    return any(holds_group(v, depth - 1) for v in getattr(value, "__dict__", {}).values())
