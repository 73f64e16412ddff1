"""What an import that was interrupted leaves in sys.modules, and how to be rid of it.

Python takes back the module whose code was cut off, and not those that it had imported by then. `a` is gone, `a.b`
stays and knows the old `a`. The next `import a` finds `a.b` there, never binds it to the new `a`, and fails far from
the cause with "partially initialized module" or "module 'a' has no attribute 'b'". Without `a.b` it begins anew.
"""

from __future__ import annotations

import sys
from collections.abc import Container, MutableMapping
from types import ModuleType


def forget_cut_imports(known: Container[str] = (), modules: MutableMapping[str, ModuleType] = sys.modules) -> list[str]:
    """Drop modules that were never finished, then those whose package is missing; returns their names.

    known: names that were there before and stay. For the moment after an interrupt, when nothing is being imported.
    """
    forgotten = [name for name, module in list(modules.items()) if name not in known and _is_unfinished(module)]
    for name in forgotten:
        del modules[name]
    while orphans := [name for name in list(modules) if name not in known and _is_orphan(name, modules)]:
        for name in orphans:
            del modules[name]
        forgotten += orphans
    return forgotten


def is_torchs(name: str) -> bool:
    """Whether a module is torch's own. Some of these register themselves while they are imported, and refuse to do so
    twice ("already registered in mega-cache"): only a new process can begin their import anew."""
    return name.partition(".")[0] == "torch"


def _is_unfinished(module: ModuleType) -> bool:
    return getattr(getattr(module, "__spec__", None), "_initializing", False) is True


def _is_orphan(name: str, modules: Container[str]) -> bool:
    package = name.rpartition(".")[0]
    return bool(package) and package not in modules
