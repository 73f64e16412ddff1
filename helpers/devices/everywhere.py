"""A function of torch's in another's place, also where torch's own modules have it by a name of theirs."""

from __future__ import annotations

import sys
import types
from typing import Any


def everywhere(name: str, old: Any, new: Any) -> None:
    """`new` in the place of `old`, in each module of torch that calls it `name`."""
    for module in list(sys.modules.values()):
        if isinstance(module, types.ModuleType) and module.__name__.startswith("torch"):
            if vars(module).get(name) is old:
                setattr(module, name, new)
