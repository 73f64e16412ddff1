"""Lets the rules of another backend, such as NCCL's, join the engine without the engine importing them.

gloo runs every operation. While a set of rules is in force, the wire shows it each operation of a rank, and after each
task the kernel asks it what the other backend would have made of them. Rules called "nccl" are the package
helpers.ranks.nccl: `rules_named` loads it by its name, and it registers itself here. "gloo" stands for no rules. The
file does not import torch.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from helpers.learner.words import Words
from helpers.ranks.errors import RankError
from helpers.ranks.sites import Frame

if TYPE_CHECKING:
    from torch import Tensor

on_task_end: list[Callable[[], None]] = []  # called on a rank at the end of each task
_registered: dict[str, Rules] = {}


class Rules(Protocol):
    """What the engine asks of a set of rules."""

    def start_on_rank(self, config: Any) -> RankRules | None:
        """Puts the rules in force in a new world of this process, which has this WireConfig."""

    def task_judge(self) -> TaskJudge:
        """The judge of one pool's tasks, in the kernel."""


class TaskJudge(Protocol):
    """Says after each task of a pool what the rules make of it. A verdict has a `text`, which are Words."""

    def new_verdicts(self, folder: str, is_hang: bool = False) -> Sequence[Any]:
        """What has been found in this folder of the boards since the last call. is_hang: all ranks wait forever."""

    def error_of(self, verdicts: Sequence[Any], state_of_ranks: Words) -> RankError | None:
        """The error that a learner sees, or None where every verdict is only a warning."""


class RankRules(Protocol):
    """The rules in force on one rank. `group` is a WireGroup, `work` a WireWork, `batch` the works of one batch."""

    def collective(self, group: Any, work: Any, inputs: list[Tensor], opts: object) -> None: ...
    def message(self, group: Any, work: Any, tag: int, order: tuple) -> None: ...
    def start_batch(self, group: Any) -> None: ...
    def end_batch(self, group: Any) -> Any: ...
    def waited(self, work: Any) -> None: ...
    def future_taken(self, work: Any) -> None: ...
    def seen_done(self, work: Any) -> None: ...
    def new_group_called(self, site: Frame, ranks: Sequence[int]) -> None: ...
    def group_made(self, site: Frame, name: str, ranks: tuple[int, ...]) -> None: ...
    def refuse(self, kind: type[Exception], name: str) -> None: ...
    def flat_in_memory_order(self, tensor: Tensor) -> Tensor: ...
    def memory_order(self, tensor: Tensor) -> tuple[int, ...]: ...
    def close(self) -> None: ...


class NoRules:
    """gloo's own rules: there is nothing to watch and nothing to judge."""

    def start_on_rank(self, config: Any) -> None:
        return None

    def task_judge(self) -> NoRules:
        return self

    def new_verdicts(self, folder: str, is_hang: bool = False) -> tuple:
        return ()

    def error_of(self, verdicts: Sequence[Any], state_of_ranks: Words) -> None:
        return None


def register(name: str, rules: Rules) -> None:
    """Called by a package of rules when it is loaded."""
    _registered[name] = rules


def rules_named(name: str) -> Rules:
    """The rules of this name; their package is loaded the first time."""
    if name not in _registered:
        importlib.import_module(f"helpers.ranks.{name}")
    return _registered[name]


register("gloo", NoRules())
