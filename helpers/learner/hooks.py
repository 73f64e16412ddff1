"""Provides the hooks that JupyterLab and IPython load in every server and kernel of this environment.

The files in etc/ name this module, so `jupyter lab` typed by hand loads it as well.

Server: a notebook is saved with a course's widget as its picture or text, but without its live view. JupyterLab would
prefer the view, and show "model not found" once the kernel of the widget is gone.
Kernel: `%%ranks` runs a cell on several processes, and helpers.ranks registers it. Until that is imported, the
`%%ranks` of this file says that the import is missing.

Notebooks of other projects, which the same environment may run, are left alone: only a view that SavedWidget marked is
removed, and only a kernel in a folder of the course imports this file.
"""

from __future__ import annotations

from typing import Any

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"  # the MIME type of a live view among a cell's outputs
OURS = "rank_by_rank"  # a key in a view's data: the widget is one of this course
FOLDED = "folded"  # a key in a view's data: the text to save instead of a result that the learner has not guessed yet


# -- the server ------------------------------------------------------------------------------------------------------
# Jupyter's server finds the next two functions by their names.
def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": "helpers.learner.hooks"}]


def _load_jupyter_server_extension(app: Any) -> None:
    app.contents_manager.register_pre_save_hook(drop_views)


def drop_views(model: dict[str, Any], **_: Any) -> None:
    """Remove the live view from each of our outputs that shows something else too. `model` is changed in place.

    model: Jupyter's dict for a file, with the notebook under "content".
    """
    if model.get("type") != "notebook":
        return
    for cell in (model.get("content") or {}).get("cells", ()):
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            view = data.get(WIDGET_VIEW, {})
            if view.get(OURS) and len(data) > 1:
                del data[WIDGET_VIEW]
            if view.get(FOLDED):
                data.clear()
                data["text/plain"] = view[FOLDED]


# -- the kernel ------------------------------------------------------------------------------------------------------
def load_ipython_extension(shell: Any) -> None:
    """Called by IPython when a kernel starts."""
    if "ranks" not in shell.magics_manager.magics["cell"]:
        shell.register_magic_function(too_early, magic_kind="cell", magic_name="ranks")


def too_early(line: str, cell: str) -> None:
    """The `%%ranks` of a kernel without helpers.ranks: raises a UsageError, which IPython shows as one line."""
    from IPython.core.error import UsageError

    from helpers.learner.words import book

    raise UsageError(str(book("ranks")["notebook.too_early"]))
