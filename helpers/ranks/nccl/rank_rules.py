"""Applies NCCL's rules on a rank: it refuses what NCCL lacks and writes every operation into the rank's journal.

The wire asks an `NcclOnRank` at each operation, each wait and each new group. Only what NCCL would run counts: the
tensors on the practice card where the rank has one, otherwise all tensors. The refusals are torch's own types of error.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d

from helpers.devices import CARD, cards
from helpers.devices.call_site import call_site
from helpers.ranks import wire
from helpers.ranks.nccl import journal as journals
from helpers.ranks.nccl.journal import FileJournal, Journal
from helpers.ranks.nccl.verdicts import words
from helpers.ranks.sites import Frame, describe

if TYPE_CHECKING:
    from helpers.ranks.group import WireGroup
    from helpers.ranks.session import WireConfig
    from helpers.ranks.work import MessageWork, WireWork


LACKING = {torch.int16, torch.uint16, torch.uint32, torch.uint64, torch.complex32}
BITWISE = ("BAND", "BOR", "BXOR")
COPIED = {"all_gather": 1, "reduce_scatter": 0}  # which list torch copies itself: of outputs, or of inputs


def refuse(kind: type[Exception], name: str, /, **values: object) -> None:
    error = kind(str(words[f"refused.{name}"].format(**values)))
    error.words = words[f"refused.{name}"].format(**values)
    raise error


def check_collective(name: str, reduce_op: str | None, inputs: list[Tensor], outputs: list[Tensor]) -> None:
    """Raises ValueError for strided tensors, TypeError for a dtype and RuntimeError for a reduction that NCCL lacks."""
    if reduce_op in BITWISE:
        refuse(RuntimeError, "reduction", op=reduce_op)
    sides = [inputs, outputs]
    if len(sides[COPIED.get(name, 0)]) > 1 and name in COPIED:
        sides.pop(COPIED[name])
    for tensor in (one for side in sides for one in side):
        if not is_dense(tensor):
            refuse(ValueError, "strided", name=name, shape=tuple(tensor.shape), strides=tensor.stride())
    check_dtypes([*inputs, *outputs])
    if any(one.is_complex() for one in inputs) and reduce_op in ("MAX", "MIN", "PRODUCT"):
        refuse(ValueError, "complex", op=reduce_op)
    if reduce_op == "AVG" and any(one.dtype == torch.bool for one in inputs):
        refuse(TypeError, "average")


def check_dtypes(tensors: Iterable[Tensor]) -> None:
    for tensor in tensors:
        if tensor.dtype in LACKING:
            refuse(TypeError, "dtype", dtype=str(tensor.dtype).removeprefix("torch."))


def is_dense(tensor: Tensor) -> bool:
    """Whether a tensor has no gaps in the order that torch suggests: channels last has none, a slice of columns has."""
    if tensor.is_contiguous():
        return True
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return tensor.dim() in formats and tensor.is_contiguous(memory_format=formats[tensor.dim()])


def flat_in_memory_order(tensor: Tensor) -> Tensor:
    """The elements in the order of their memory, which is what NCCL sends of a dense tensor.

    Other tensors come back as they are.
    """
    step = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != step:
            return tensor
        step *= size
    return tensor if tensor.is_contiguous() else tensor.as_strided((tensor.numel(),), (1,))


def memory_order(tensor: Tensor) -> tuple[int, ...]:
    """Shape and strides of a tensor that is not contiguous, on which both sides of a message should agree; else ()."""
    return () if tensor.is_contiguous() else (*tensor.shape, *tensor.stride())


DEPTH = 12  # frames between the wire and torch's function that the script has called, at most


class NcclOnRank:
    """NCCL's rules in force on this rank (see helpers.ranks.rules.RankRules, whose methods the wire calls).

    It refuses what NCCL lacks, writes the journal, and tells the practice card which buffers are in use. only_cards:
    refuse tensors on the CPU, as where NCCL is the only backend of the group.
    """

    refuse, flat_in_memory_order, memory_order = map(staticmethod, (refuse, flat_in_memory_order, memory_order))

    def __init__(self, journal: Journal, only_cards: bool = False):
        self.journal, self.only_cards = journal, only_cards
        self.has_card = hasattr(torch, CARD)
        self.races = sys.modules.get("helpers.devices.cards.races") if self.has_card else None
        if self.races is not None:
            journals.current_stream = self.races.current_stream
            self.races.listen(note=journals.note, found=journals.note_finding, describe=describe)

    @classmethod
    def start(cls, config: WireConfig) -> NcclOnRank:
        """The rules of a new world, with a journal in its folder; from now on this is the journal of the process."""
        journal = FileJournal(config.board_dir, config.rank, config.world_size, config.eager)
        rules = cls(journal, config.cpu == "refused")
        rules.outer_journal = journals.keep_open(journal)
        return rules

    def close(self) -> None:
        """The world ends: the journal that was open before it takes its place again."""
        journals.keep_open(self.outer_journal)
        self.journal.close()

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

    def message(self, group: WireGroup, work: MessageWork, tag: int, order: tuple) -> None:
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

    def end_batch(self, group: WireGroup) -> BatchWork:
        batch, group.batch = group.batch, None
        works = [work for work, _ in batch]
        if batch:
            place = group.name, group.ranks
            self._in_use(
                works, self.journal.post(works[0].site, "batch", place, False, [row for _, row in batch]), place
            )
        return BatchWork(works)

    def _in_use(self, works: list[MessageWork], number: int, queue: tuple) -> None:
        reads = [one for work in works if not work.receives for one in work.outputs]
        writes = [one for work in works if work.receives for one in work.outputs]
        for work in works:
            work.place, work.rules = number, self
        if self.races is not None:
            self.races.begin_message(number, reads=reads, writes=writes, site=works[0].site, queue=queue)

    def _begin(self, work: WireWork, number: int, inputs: list, outputs: list, queue: tuple) -> None:
        work.place, work.rules = number, self
        if self.races is not None:
            self.races.begin_message(number, reads=inputs, writes=outputs, site=work.site, queue=queue)

    # -- groups ----------------------------------------------------------------------------------------------------
    def new_group_called(self, site: Frame, ranks: Sequence[int]) -> None:
        """new_group was called for these ranks, whether this rank is one of them or not."""
        self.journal.line("made", site=site, name=" ".join(map(str, ranks)))

    def group_made(self, site: Frame, name: str, ranks: tuple[int, ...]) -> None:
        self.journal.made(site, name, ranks)

    # -- works -----------------------------------------------------------------------------------------------------
    def waited(self, work: WireWork) -> None:
        """The current stream waits for it."""
        if not work.in_line:
            self.journal.line("wait", work.place, call_site())
        if self.races is not None:
            self.races.end_message(work.place)

    def future_taken(self, work: WireWork) -> None:
        """Nobody sees who waits for a future. DDP does so in the backward. Races are not looked for from here on."""
        if self.races is not None:
            self.races.end_message(work.place)
        if torch._C._current_graph_task_id() != -1:
            wait = self.journal.line
            torch.autograd.Variable._execution_engine.queue_callback(lambda: wait("wait", work.place))

    def seen_done(self, work: WireWork) -> None:
        if self.races is not None:
            self.races.end_message(work.place)


@contextmanager
def record_journal() -> Iterator[list[list]]:
    """Within, NCCL's rules are in force on this rank, as if its world were new. Yields the journal's lines."""
    session, lines = wire.current_session(), []
    journal = Journal(lines.append, session.config.rank, session.config.world_size)
    before, session.rules = session.rules, NcclOnRank(journal)
    is_dense = False
    try:
        with journals.opened(journal):
            yield lines
        is_dense = True
    finally:
        session.rules = before
        journal.line("end", int(is_dense))


def _as_called(name: str) -> str:
    """ "isend" instead of "send" where the script says so: torch's own send is an isend and a wait."""
    called, frame = set(), sys._getframe(1)
    for _ in range(DEPTH):
        if frame is not None:
            called |= {frame.f_code.co_name} if frame.f_code.co_filename == distributed_c10d.__file__ else set()
            frame = frame.f_back
    return "i" + name if "i" + name in called and name not in called else name


def _flat(tensors: list) -> list[Tensor]:
    return [one for part in tensors for one in ([part] if isinstance(part, Tensor) else part)]


class BatchWork(dist.Work):
    """The work of a batch: it waits for all its messages."""

    def __init__(self, works: list[MessageWork]):
        super().__init__()
        self.works = works

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        return all(work.wait(timeout) for work in self.works)

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self.works)
