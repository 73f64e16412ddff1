"""The rules in force on a rank: what the wire asks of them at each operation, each wait and each new group.

Only what NCCL would run is played: on a rank with a practice card its tensors, elsewhere all.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d

from helpers.devices import CARD, cards
from helpers.devices.lines import call_site
from helpers.ranks.nccl import journal as journals
from helpers.ranks.nccl.journal import Journal
from helpers.ranks.nccl.refusals import check_collective, check_dtypes, refuse
from helpers.ranks.sites import describe

if TYPE_CHECKING:
    from helpers.ranks.group import WireGroup
    from helpers.ranks.work import Message, WireWork

DEPTH = 12  # frames between the wire and torch's function that the script has called, at most


class Enforced:
    """Refuses, keeps the journal, and tells the card which buffers are in use."""

    def __init__(self, journal: Journal, only_cards: bool = False):
        self.journal, self.only_cards = journal, only_cards
        self.has_card = hasattr(torch, CARD)
        self.touching = sys.modules.get("helpers.devices.cards.touching") if self.has_card else None
        if self.touching is not None:
            journals.current_stream = self.touching.current_stream
            self.touching.listen(note=journals.note, found=journals.found, place=describe)

    def is_played(self, tensors: Sequence[Tensor]) -> bool:
        if not self.has_card or any(map(cards.holds, tensors)) or not tensors:
            return True
        if self.only_cards and not all(hasattr(tensor, "is_ddps_note") for tensor in tensors):
            refuse(RuntimeError, "cpu")
        return False

    # -- operations ------------------------------------------------------------------------------------------------
    def collective(self, group: WireGroup, work: WireWork, inputs: list[Tensor], opts: object) -> None:
        """Before a collective is posted. Raises what torch raises where NCCL lacks it."""
        outputs, sig = _flat(work.outputs), work.signature
        inputs = _flat(inputs) or outputs
        if self.is_played([*inputs, *outputs]):
            check_collective(sig.name, sig.reduce_op, inputs, outputs)
            work.in_line = not getattr(opts, "asyncOp", True)
            place = group.name, group.ranks
            self._begin(work, self.journal.post(work.site, sig.name, place, work.in_line), inputs, outputs, place)
            if work.in_line:
                self.waited(work)
                work.rules = None

    def message(self, group: WireGroup, work: Message, tag: int, order: tuple) -> None:
        """Before a send or a receive is posted, alone or in a batch. order: how it lies, if it is not contiguous."""
        if self.is_played(work.outputs):
            check_dtypes(work.outputs)
            row = [not work.receives, group.ranks[work.peer], tag, work.signature.what, order, work.site]
            if group.batch is not None:
                group.batch.append((work, row))
            else:
                place = group.name, group.ranks
                number = self.journal.post(work.site, _as_called(work.signature.name), place, False, [row])
                self._in_use([work], number, (*place, frozenset((group.rank, work.peer))))

    def start_batch(self, group: WireGroup) -> None:
        """What is posted until end_batch is one operation of the group."""
        group.batch = []

    def end_batch(self, group: WireGroup) -> Batch:
        batch, group.batch = group.batch, None
        works = [work for work, _ in batch]
        if batch:
            place = group.name, group.ranks
            self._in_use(
                works, self.journal.post(works[0].site, "batch", place, False, [row for _, row in batch]), place
            )
        return Batch(works)

    def _in_use(self, works: list[Message], number: int, queue: tuple) -> None:
        reads = [one for work in works if not work.receives for one in work.outputs]
        writes = [one for work in works if work.receives for one in work.outputs]
        for work in works:
            work.place, work.rules = number, self
        if self.touching is not None:
            self.touching.begin(number, reads=reads, writes=writes, site=works[0].site, queue=queue)

    def _begin(self, work: WireWork, number: int, inputs: list, outputs: list, queue: tuple) -> None:
        work.place, work.rules = number, self
        if self.touching is not None:
            self.touching.begin(number, reads=inputs, writes=outputs, site=work.site, queue=queue)

    # -- works -----------------------------------------------------------------------------------------------------
    def waited(self, work: WireWork) -> None:
        """The current stream waits for it."""
        if not work.in_line:
            self.journal.line("wait", work.place, call_site())
        if self.touching is not None:
            self.touching.end(work.place)

    def future_taken(self, work: WireWork) -> None:
        """Nobody sees who waits for a future; DDP does in the backward. Races are not looked for from here."""
        if self.touching is not None:
            self.touching.end(work.place)
        if torch._C._current_graph_task_id() != -1:
            wait = self.journal.line
            torch.autograd.Variable._execution_engine.queue_callback(lambda: wait("wait", work.place))

    def seen_done(self, work: WireWork) -> None:
        if self.touching is not None:
            self.touching.end(work.place)


def _as_called(name: str) -> str:
    """'isend' where the script says so: torch's send is an isend, and a wait."""
    called, frame = set(), sys._getframe(1)
    for _ in range(DEPTH):
        if frame is not None:
            called |= {frame.f_code.co_name} if frame.f_code.co_filename == distributed_c10d.__file__ else set()
            frame = frame.f_back
    return "i" + name if "i" + name in called and name not in called else name


def _flat(tensors: list) -> list[Tensor]:
    return [one for part in tensors for one in ([part] if isinstance(part, Tensor) else part)]


class Batch(dist.Work):
    """The work of a batch: all of its messages."""

    def __init__(self, works: list[Message]):
        super().__init__()
        self.works = works

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        return all(work.wait(timeout) for work in self.works)

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self.works)
