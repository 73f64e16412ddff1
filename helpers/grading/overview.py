"""The learner's progress over all labs: the one place that knows both the tasks and the widget."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from helpers.grading.registry import labs, tasks_of

if TYPE_CHECKING:
    from helpers.widgets import ProgressView


def progress_view(*which: str, path: str | os.PathLike | None = None) -> ProgressView:
    """A table a lab: what is passed, and the next task.

    which: labs ("03"); none named: all there are. path: of the progress file, if not the one in the home. Raises
    ValueError for a lab that is not there.
    """
    from helpers.widgets import ProgressView  # here, since processes that grade a class show nothing: 8 MB less each

    return ProgressView({lab: list(tasks_of(lab)) for lab in which or labs()}, path=path)
