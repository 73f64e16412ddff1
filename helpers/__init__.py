"""Rank by Rank, a course on distributed training in which every claim is run on live ranks (processes of this machine).

The notebooks import these packages. `python -m helpers` runs the commands; __main__.py lists them.

Begin with ranks (live processes for a notebook) and parallel (the strategies).
"""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def import_on_demand(package: str, names_of: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """The `__getattr__` of a package that exports names of its modules but does not import these modules itself.

    Python calls a package's `__getattr__` for a name that the package lacks, also in `from helpers.records import
    Timeline`. A module is then imported when one of its names is first asked for, so whoever needs one name does not
    wait for all modules. package: its dotted name. names_of: module of the package -> the names that it exports.
    """
    module_of = {name: module for module, names in names_of.items() for name in names}

    def imported(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"{package} has no {name}")
        return getattr(import_module(f"{package}.{module_of[name]}"), name)

    return imported
