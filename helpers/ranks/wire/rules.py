"""Lets the rules of another backend, such as NCCL's, join the engine without the engine importing them.

gloo runs every operation. A set of rules watches, and says what another backend would have done with the same program:
hang, refuse a call, or give wrong results. It has two halves. On a rank, the wire (the wrapper around every process
group, wire.py) shows each operation to a `RankRules`. In the kernel (the notebook's process), the pool of ranks asks a
`TaskJudge` after each task, and gets verdicts, which are warnings or an error.

The rules "nccl" are the package helpers.ranks.nccl: `rules_named` loads it by its name, and it registers itself here.
"gloo" stands for no rules. The file does not import torch. The classes that inherit from Protocol only describe what
such a package must offer.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from helpers.learner.words import Words
from helpers.ranks.board.errors import RankError
from helpers.ranks.board.sites import Frame

if TYPE_CHECKING:
    from torch import Tensor

# Called on a rank at the end of each task (by worker.py). NCCL's rules add a function; the engine does not know them.
on_task_end: list[Callable[[], None]] = []
_registered: dict[str, Rules] = {}  # the name of a backend -> its rules


class Rules(Protocol):
    """What the engine asks of a set of rules."""

    def start_on_rank(self, config: Any) -> RankRules | None:
        """Puts the rules in force for the process groups that this rank makes from now on. config: a WireConfig."""

    def task_judge(self) -> TaskJudge:
        """A new judge for the tasks of one pool of ranks, in the kernel."""


class TaskJudge(Protocol):
    """Says after each task of a pool what the rules make of it. A verdict has a `text`, which are Words."""

    def new_verdicts(self, folder: str, is_hang: bool = False) -> Sequence[Any]:
        """What has been found since the last call. folder: has the files that the ranks wrote for the rules.

        is_hang: all ranks wait forever.
        """

    def error_of(self, verdicts: Sequence[Any], state_of_ranks: Words) -> RankError | None:
        """The error that a learner sees, or None where every verdict is only a warning.

        state_of_ranks: a sentence on whether variables were lost, with which the error ends.
        """


class RankRules(Protocol):
    """The rules in force on one rank. `group` is a WireGroup, `work` the WireWork of an operation, `site` a line."""

    # Before a collective or a message (a send or a receive) is issued. opts: torch's options. tag: the script's.
    # order: what `memory_order` returned.
    def collective(self, group: Any, work: Any, inputs: list[Tensor], opts: object) -> None: ...
    def message(self, group: Any, work: Any, tag: int, order: tuple) -> None: ...

    # The messages between the two are one batch (batch_isend_irecv); the second call returns the batch's Work.
    def start_batch(self, group: Any) -> None: ...
    def end_batch(self, group: Any) -> Any: ...

    # The program called wait() or get_future() on a work, or saw that it is complete.
    def waited(self, work: Any) -> None: ...
    def future_taken(self, work: Any) -> None: ...
    def seen_done(self, work: Any) -> None: ...

    # new_group was called, also on a rank that is no member; this rank is a member of a new group.
    def new_group_called(self, site: Frame, ranks: Sequence[int]) -> None: ...
    def group_made(self, site: Frame, name: str, ranks: tuple[int, ...]) -> None: ...

    # Raise an error of type `kind` with the sentence of this name, because the other backend lacks the call.
    def refuse(self, kind: type[Exception], name: str) -> None: ...

    # How the other backend sends a tensor that is not contiguous: its elements in the order of memory, and that order.
    # With it the wire delivers over gloo what NCCL would deliver, wrong order included.
    def flat_in_memory_order(self, tensor: Tensor) -> Tensor: ...
    def memory_order(self, tensor: Tensor) -> tuple[int, ...]: ...

    def close(self) -> None: ...


class NoRules:
    """gloo's own rules: there is nothing to watch and nothing to judge. It is also its own TaskJudge."""

    def start_on_rank(self, config: Any) -> None:
        """Returns None: there are no rules to put in force."""

    def task_judge(self) -> NoRules:
        return self

    def new_verdicts(self, folder: str, is_hang: bool = False) -> tuple:
        return ()

    def error_of(self, verdicts: Sequence[Any], state_of_ranks: Words) -> None:
        """Returns None: without verdicts there is no error."""


def register(name: str, rules: Rules) -> None:
    """Called by a package of rules when it is loaded."""
    _registered[name] = rules


def rules_named(name: str) -> Rules:
    """The rules of this name; their package is loaded the first time."""
    if name not in _registered:
        importlib.import_module(f"helpers.ranks.{name}")
    return _registered[name]


register("gloo", NoRules())
