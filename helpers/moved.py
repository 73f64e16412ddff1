"""What stands elsewhere than in an earlier version: modules that notebooks imported, and tasks that were renamed.

Learners keep copies of notebooks and a file of what they have passed. moved.yaml lists old names with the new ones: an
import of an old one says where it is now and how to take the new notebook, and what was passed counts for the new task.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

LIST = Path(__file__).with_suffix(".yaml")


@cache
def moved() -> dict[str, dict[str, str]]:
    """modules: old dotted name -> new one, or "" for what is gone. tasks: old key -> new key."""
    import yaml

    return yaml.safe_load(LIST.read_text(encoding="utf-8"))


def sentence(module: str) -> str:
    """What to do about an import of `module`; "" if it never was there."""
    new = moved()["modules"].get(module)
    if new is None:
        return ""
    notebook = Path(os.environ.get("JPY_SESSION_NAME", "")).name  # JupyterLab tells the kernel whose it is
    where = f"is now {new}" if new else "is gone"
    mine = (
        f"{notebook} is a copy of an older version of its chapter" if notebook else "this is code for an older version"
    )
    beside = notebook.replace(".ipynb", ".new.ipynb") if notebook else "NAME.new.ipynb"
    return (
        f"{module} {where}; {mine}. Type `make course`: a notebook that you changed stays as it is and the new one is "
        f"laid beside it as {beside}; one that you never changed is brought up to date."
    )


def task(key: str) -> str:
    """The key that a task has today: "03.average"."""
    return moved()["tasks"].get(key, key)
