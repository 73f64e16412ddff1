"""The learner's progress, drills and mock interview: the one place that knows both the tasks and the widgets."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from helpers.grading.check import grade
from helpers.grading.registry import labs, tasks_of

if TYPE_CHECKING:
    from helpers.widgets import DrillView, MockView, ProgressView

_drills: dict[str, tuple[DrillView, dict[str, Any]]] = {}  # by key: the view at hand, and its options


def progress_view(*which: str, path: str | os.PathLike | None = None) -> ProgressView:
    """A table a lab: what is passed, and the next task.

    which: labs ("03"); none named: all there are. path: of the progress file, if not the one in the home. Raises
    ValueError for a lab that is not there.
    """
    from helpers.widgets import ProgressView  # here, since processes that grade a class show nothing: 8 MB less each

    return ProgressView({lab: list(tasks_of(lab)) for lab in which or labs()}, path=path)


def drill(key: str, **options: Any) -> DrillView:
    """A whiteboard drill with its lab's check: `drill("03.average").begin()`, then `drill("03.average").check(answer)`.

    The same view comes back until it is passed, so that its clock goes on; then a new one. options: of DrillView,
    `language="zh"` say; other ones than before make a new one too. Raises ValueError for a key that has no drill.
    """
    from helpers.widgets import DrillView

    view, before = _drills.get(key, (None, {}))
    if view is None or view.attempt.passed or (options and options != before):
        view = DrillView(key, grade, **options)
        _drills[key] = view, options
    return view


def mock_view(**options: Any) -> MockView:
    """A mock interview whose drill is judged by the labs' checks. options: of MockView, `level="senior"` say."""
    from helpers.widgets import MockView

    return MockView(grade, **options)
