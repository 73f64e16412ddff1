"""Which operation runs in which precision under autocast, for CPU and for CUDA, from autocast_tables.yaml.

Names are those of the functions in torch's core (`aten`): `x @ w` is "matmul", torch.linalg.inv is "linalg_inv". What
is in no table runs in the types that it is given. Source: torch 2.13, aten/src/ATen/autocast_mode.h and .cpp; a test
holds every table equal to what the installed torch registers.

    LOWER    inputs are cast to the 16-bit type      FLOAT32  inputs are cast to float32
    PROMOTE  inputs are cast to the widest of them   BANNED   refused, with the reason

The first three map a device type ("cpu" or "cuda") to groups of operations, each a text with blanks between the names.
The YAML says above each group why it is there. BANNED maps a device type to {operation: reason}. `names(LOWER, "cuda")`
are all operations of a table. The simulated GPUs of helpers/devices/cards follow these tables.

The two devices differ more than one expects: only CUDA's table keeps softmax, norms, exp and sums in float32. On CPU
those run in the dtype of their inputs; their kernels compute in float32 inside and round once, at the end.
"""

from __future__ import annotations

from pathlib import Path

import yaml

_TEXT = Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")
_TABLES = yaml.load(_TEXT, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
LOWER, FLOAT32, PROMOTE, BANNED = (_TABLES[name] for name in ("lower", "float32", "promote", "banned"))


def names(table: dict[str, list[str]], device_type: str) -> frozenset[str]:
    """All operations of a table for one device."""
    return frozenset(name for group in table[device_type] for name in group.split())
