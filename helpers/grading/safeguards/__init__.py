"""What protects a learner's own machine while a check runs their function on a rank, and restores the rank afterwards.

The safeguards prevent accidents and are no prison: the learner is at home, with the rights of their own account.
Python's audit events, limits of the system and a look at the process afterwards are enough against a wrong path, an
endless loop or a fork too many. Code that calls the C library past Python gets through; a course server that grades a
whole class uses a sandbox.

audit_rules.py   refuses what reaches outside the function's own folder: files, processes, the network
limits.py        limits processor time, memory and the size of a file
cleanup.py       restores settings, ends what was started, and finds out whether the process can be used again

Begin with limits.py.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from helpers.grading.run_on_ranks import WORK_FOLDER
from helpers.grading.safeguards import audit_rules, cleanup, limits


@contextlib.contextmanager
def applied() -> Iterator[None]:
    """Within it, the safeguards hold on this rank. Raises TooMuch or Refused for what they stopped.

    Afterwards the process is as it was before. Where it cannot be restored, the rank is marked as spent, and its pool
    replaces the process once it has answered.
    """
    from helpers.ranks.processes import worker  # needs torch, which only ranks have loaded

    rank = worker.ACTIVE  # the engine of the rank that this process is; `spec` is what it was started with
    cleanup.adopt_orphans_once()
    audit_rules.install_once()  # before the snapshot, because it wraps functions of torch
    settings, snapshot = cleanup.SavedSettings(), cleanup.ProcessSnapshot()
    folder = os.path.join(rank.spec["folder"], WORK_FOLDER)
    rank.spent = True  # until the process is known to be restored, since an interrupt may come at any time
    os.makedirs(folder, exist_ok=True)
    try:
        with limits.name_memory_errors(), limits.limit_memory_and_files(), audit_rules.refuse_outside(folder):
            yield
    finally:
        has_threads_left = cleanup.end_started()
        settings.put_back()
        rank.spent = has_threads_left or snapshot.has_changed()
