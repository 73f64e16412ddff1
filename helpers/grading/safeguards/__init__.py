"""On a rank, around the learner's function: what a check lets it do, and what it leaves of the process.

A guard rail against accidents, not a prison: the learner is at home, with the rights of their own account. What Python
says of itself (audit events), limits of the system, and a look at the process afterwards are enough for a wrong path, a
loop without an end, a fork too many. Who calls the C library past Python gets through; a class has a sandbox.

deeds.py      what is done outside one's own folder: files, processes, network
hook.py       refuses that while the function runs
limits.py     processor time, memory, the size of a file
state.py      what is put back afterwards, and what shows that a process is spent
leavings.py   ends what the function started
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator

from helpers.grading.safeguards import audit_rules, cleanup, limits
from helpers.grading.safeguards.cleanup import ProcessSnapshot, SavedSettings
from helpers.ranks import worker

ROOM = "room"  # in the folder of the ranks: where the function works, together with its other ranks


@contextlib.contextmanager
def around() -> Iterator[None]:
    """Within, the walls are up on this rank. Raises TooMuch or Refused for what they stopped.

    Afterwards the process is as before; where that cannot be had, its pool starts it anew once it has answered.
    """
    me = worker.ACTIVE
    cleanup.adopt_orphans()
    shared, marks, room = SavedSettings(), ProcessSnapshot(), os.path.join(me.spec["folder"], ROOM)
    me.spent = True  # until it is known to be as before: an interrupt may come at any time
    os.makedirs(room, exist_ok=True)
    try:
        with limits.name_memory_errors(), limits.limit_memory_and_files(), audit_rules.up(room):
            yield
    finally:
        left = cleanup.end_started()
        shared.put_back()
        me.spent = left or marks.have_moved()


def sweep(folder: str | None) -> None:
    """Beside the judge, after a world: what was written in its room goes."""
    if folder is not None:
        shutil.rmtree(os.path.join(folder, ROOM), ignore_errors=True)
