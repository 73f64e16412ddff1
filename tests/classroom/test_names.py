"""An answer under another name than the task's: the report says which name is near."""

from __future__ import annotations

from helpers.classroom.grade import grade_one
from helpers.classroom.submissions import find_submissions
from tests.classroom import notebooks


def test_a_renamed_function_is_named_in_its_cell_and_anywhere_else(tmp_path, settings):
    renamed = {"03.average": notebooks.AVERAGE.replace("average_gradients", "average_grads")}
    more = ("def start_equals(model):\n    pass", "def helper():\n    pass")
    notebooks.write(tmp_path / "ada.ipynb", notebooks.handed_in(renamed, more=more))
    tasks = {task.key: task for task in grade_one(find_submissions([tmp_path])[0], settings(tmp_path)).tasks}
    assert "`average_grads` is defined here: did you mean to call it `average_gradients`?" in tasks["03.average"].text
    assert tasks["03.start"].text == "start_equal is not defined in this notebook, but start_equals is."
    assert tasks["03.overlap"].text == "overlap_gradients is not defined in this notebook."
    assert {task.state for task in tasks.values()} == {"failed", "missing"}
