"""Applies NCCL's rules on a rank: it refuses what NCCL lacks and writes every operation into the rank's journal.

gloo runs the operations. The "wire", which is the wrapper around every process group (helpers/ranks/wire), calls an
`NcclOnRank` at each operation, each wait and each new group. Only what NCCL would run counts: the tensors on the
practice card (a simulated GPU) where the rank has one, otherwise all tensors. The journal (journal.py) is later
replayed by NCCL's rules. What NCCL lacks raises the type of error that torch raises.

A "work" is torch's object for an operation in flight. A `WireWork` also remembers its number in the journal
(`journal_number`), and whether the rules follow it (`rules`). "Races" are accesses to a buffer that an operation still
uses. The module helpers.devices.cards.races finds them, on a practice card only.
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
from helpers.ranks.board.sites import Frame, describe
from helpers.ranks.nccl import journal as journals
from helpers.ranks.nccl.journal import FileJournal, Journal
from helpers.ranks.nccl.verdicts import words
from helpers.ranks.wire import wire

if TYPE_CHECKING:
    from helpers.ranks.wire.group import WireGroup
    from helpers.ranks.wire.session import WireConfig
    from helpers.ranks.wire.work import MessageWork, WireWork


LACKING = {torch.int16, torch.uint16, torch.uint32, torch.uint64, torch.complex32}  # dtypes that NCCL does not know
BITWISE = ("BAND", "BOR", "BXOR")  # reductions that NCCL does not have
# torch copies the list of outputs (1) or of inputs (0) of these through one dense buffer, so that list may be strided.
COPIED = {"all_gather": 1, "reduce_scatter": 0}
DEPTH = 12  # frames between the wire and torch's function that the script has called, at most


def refuse(kind: type[Exception], name: str, /, **values: object) -> None:
    """Raise an error of this type with the sentence "refused.NAME" of nccl.yaml, its braces filled with `values`."""
    error = kind(str(words[f"refused.{name}"].format(**values)))
    error.words = words[f"refused.{name}"].format(**values)
    raise error


def check_collective(name: str, reduce_op: str | None, inputs: list[Tensor], outputs: list[Tensor]) -> None:
    """Raises ValueError for strided tensors, TypeError for a dtype and RuntimeError for a reduction that NCCL lacks."""
    if reduce_op in BITWISE:
        refuse(RuntimeError, "reduction", op=reduce_op)
    sides = [inputs, outputs]
    if name in COPIED and len(sides[COPIED[name]]) > 1:  # one tensor alone would be the form without lists
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
    """Raises TypeError for a dtype that NCCL lacks."""
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
    step = 1  # the stride that the next dimension must have, from the innermost one on, if there are no gaps
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != step:
            return tensor
        step *= size
    return tensor if tensor.is_contiguous() else tensor.as_strided((tensor.numel(),), (1,))


def memory_order(tensor: Tensor) -> tuple[int, ...]:
    """Shape and strides of a tensor that is not contiguous, on which both sides of a message should agree; else ()."""
    return () if tensor.is_contiguous() else (*tensor.shape, *tensor.stride())


class NcclOnRank:
    """NCCL's rules in force on this rank (see helpers.ranks.wire.rules.RankRules, whose methods the wire calls).

    It refuses what NCCL lacks, writes the journal, and tells the practice card which buffers are in use. only_cards:
    refuse tensors on the CPU, as torch does where NCCL is the only backend of the group.
    """

    # The wire reaches these functions through the object, as it knows no module of this package.
    refuse, flat_in_memory_order, memory_order = map(staticmethod, (refuse, flat_in_memory_order, memory_order))

    def __init__(self, journal: Journal, only_cards: bool = False):
        self.journal, self.only_cards = journal, only_cards
        self.has_card = hasattr(torch, CARD)  # torch.card exists once a practice card is installed
        self.races = sys.modules.get("helpers.devices.cards.races") if self.has_card else None
        if self.races is not None:
            journals.current_stream = self.races.current_stream
            self.races.listen(note=journals.note, found=journals.note_finding, describe=describe)

    @classmethod
    def start(cls, config: WireConfig) -> NcclOnRank:
        """The rules of a new world (a new set of all process groups), with a journal in its folder.

        From now on this is the journal of the process.
        """
        journal = FileJournal(config.board_dir, config.rank, config.world_size, config.eager)
        rules = cls(journal, config.cpu == "refused")
        rules.outer_journal = journals.keep_open(journal)
        return rules

    def close(self) -> None:
        """The world ends: the journal that was open before it takes its place again."""
        journals.keep_open(self.outer_journal)
        self.journal.close()

    def is_run_by_nccl(self, tensors: Sequence[Tensor]) -> bool:
        """Whether NCCL would run an operation on these tensors. Raises RuntimeError for the CPU where that is refused.

        `is_ddps_note` marks a small tensor that DDP keeps on the CPU here and on the GPU in a real run.
        """
        if not self.has_card or any(map(cards.holds, tensors)) or not tensors:
            return True
        if self.only_cards and not all(hasattr(tensor, "is_ddps_note") for tensor in tensors):
            refuse(RuntimeError, "cpu")
        return False

    # -- operations ------------------------------------------------------------------------------------------------
    def collective(self, group: WireGroup, work: WireWork, inputs: list[Tensor], opts: object) -> None:
        """Called before a collective is issued. Raises what torch raises where NCCL lacks it.

        With async_op=False the current stream waits for it at once, so no later wait matters.
        """
        outputs, sig = _flat(work.outputs), work.signature
        inputs = _flat(inputs) or outputs
        if self.is_run_by_nccl([*inputs, *outputs]):
            check_collective(sig.name, sig.reduce_op, inputs, outputs)
            work.in_line = not getattr(opts, "asyncOp", True)
            members = group.name, group.ranks
            number = self.journal.post(work.site, sig.name, members, work.in_line)
            self._in_use([work], number, inputs, outputs, members)
            if work.in_line:
                self.waited(work)
                work.rules = None

    def message(self, group: WireGroup, work: MessageWork, tag: int, order: tuple) -> None:
        """Called before a send or a receive is issued, alone or in a batch. order: what `memory_order` returned."""
        if self.is_run_by_nccl(work.outputs):
            check_dtypes(work.outputs)
            # The fields of a MessageRecord: sends, peer, tag, form, strides, site.
            row = [not work.receives, group.ranks[work.peer], tag, work.signature.what, order, work.site]
            if group.batch is not None:
                group.batch.append((work, row))
            else:
                members = group.name, group.ranks
                # False: what follows on the stream does not wait for it. The pair of ranks has a queue of its own.
                number = self.journal.post(work.site, _as_called(work.signature.name), members, False, [row])
                self._messages_in_use([work], number, (*members, frozenset((group.rank, work.peer))))

    def start_batch(self, group: WireGroup) -> None:
        """The messages until end_batch are one operation of the group."""
        group.batch = []  # pairs of a work and the fields of its MessageRecord

    def end_batch(self, group: WireGroup) -> BatchWork:
        """Write the batch into the journal, and return its work."""
        batch, group.batch = group.batch, None
        works, rows = [work for work, _ in batch], [row for _, row in batch]
        if batch:
            members = group.name, group.ranks
            number = self.journal.post(works[0].site, "batch", members, False, rows)  # False: as above
            self._messages_in_use(works, number, members)
        return BatchWork(works)

    def _messages_in_use(self, works: list[MessageWork], number: int, queue: tuple) -> None:
        reads = [one for work in works if not work.receives for one in work.outputs]
        writes = [one for work in works if work.receives for one in work.outputs]
        self._in_use(works, number, reads, writes, queue)

    def _in_use(self, works: list[WireWork], number: int, reads: list, writes: list, queue: tuple) -> None:
        """From now on, operation `number` of the journal reads and writes these tensors.

        queue: a key; NCCL runs operations with the same key in order.
        """
        for work in works:
            work.journal_number, work.rules = number, self
        if self.races is not None:
            self.races.begin_message(number, reads=reads, writes=writes, site=works[0].site, queue=queue)

    # -- groups ----------------------------------------------------------------------------------------------------
    def new_group_called(self, site: Frame, ranks: Sequence[int]) -> None:
        """new_group was called for these ranks, whether this rank is one of them or not."""
        self.journal.line("made", site=site, name=" ".join(map(str, ranks)))

    def group_made(self, site: Frame, name: str, ranks: tuple[int, ...]) -> None:
        """A group was made of which this rank is a member."""
        self.journal.made(site, name, ranks)

    # -- works -----------------------------------------------------------------------------------------------------
    def waited(self, work: WireWork) -> None:
        """The program called work.wait(): the current stream waits for the operation."""
        if not work.in_line:
            self.journal.line("wait", work.journal_number, call_site())
        self.seen_done(work)

    def future_taken(self, work: WireWork) -> None:
        """The program called work.get_future(). A wait for a future happens in C++, where it cannot be seen.

        So races of this operation are not looked for from here on. DDP takes a future during the backward and waits for
        it at the end of the backward, so that wait is written then.
        """
        self.seen_done(work)
        if torch._C._current_graph_task_id() != -1:  # a backward is running
            wait = self.journal.line
            torch.autograd.Variable._execution_engine.queue_callback(lambda: wait("wait", work.journal_number))

    def seen_done(self, work: WireWork) -> None:
        """The operation no longer uses its tensors, as far as the program can rely on."""
        if self.races is not None:
            self.races.end_message(work.journal_number)


@contextmanager
def record_journal() -> Iterator[list[list]]:
    """Inside this context, NCCL's rules are in force on this rank, as if it had just started.

    Yields a list to which the journal's lines are added.
    """
    session, lines = wire.current_session(), []
    journal = Journal(lines.append, session.config.rank, session.config.world_size)
    rules_before, session.rules = session.rules, NcclOnRank(journal)
    journal_before = journals.keep_open(journal)
    has_raised = True
    try:
        yield lines
        has_raised = False
    finally:
        journals.keep_open(journal_before)
        session.rules = rules_before
        journal.line("end", int(not has_raised))  # 0 says that the script raised


def _as_called(name: str) -> str:
    """ "isend" instead of "send" where the script says so: torch's own send is an isend and a wait.

    It looks at which functions of torch.distributed are on the stack.
    """
    called, frame = set(), sys._getframe(1)
    for _ in range(DEPTH):
        if frame is not None:
            if frame.f_code.co_filename == distributed_c10d.__file__:
                called.add(frame.f_code.co_name)
            frame = frame.f_back
    return "i" + name if "i" + name in called and name not in called else name


def _flat(tensors: list) -> list[Tensor]:
    """The tensors of a list that may contain lists of tensors."""
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
