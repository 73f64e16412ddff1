"""What Jupyter asks of the course by itself, in every server and kernel of this environment.

Both come with the package, from etc/, so `jupyter lab` typed by hand has them as well.

The server: a saved notebook keeps a widget's picture or text, without the live view. JupyterLab prefers the view, and
once the kernel that knew the widget is gone it shows "model not found" in its place.
The kernel: `%%ranks` says what is missing until helpers.ranks is imported, which registers the real one.
"""

from __future__ import annotations

from typing import Any

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
FOLDED = "folded"  # in a view: what is saved in place of a result that was not guessed yet


# -- the server ------------------------------------------------------------------------------------------------------
def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": "helpers.learner.hooks"}]


def _load_jupyter_server_extension(app: Any) -> None:
    app.contents_manager.register_pre_save_hook(drop_views)


def drop_views(model: dict[str, Any], **_: Any) -> None:
    """Take the live view out of each output that has something else to show; in place, before it is written."""
    if model.get("type") != "notebook":
        return
    for cell in (model.get("content") or {}).get("cells", ()):
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            view = data.pop(WIDGET_VIEW) if WIDGET_VIEW in data and len(data) > 1 else {}
            if view.get(FOLDED):
                data.clear()
                data["text/plain"] = view[FOLDED]


# -- the kernel ------------------------------------------------------------------------------------------------------
def load_ipython_extension(shell: Any) -> None:
    if "ranks" not in shell.magics_manager.magics["cell"]:
        shell.register_magic_function(too_early, magic_kind="cell", magic_name="ranks")


def too_early(line: str, cell: str) -> None:
    """Stands in for %%ranks. IPython shows a UsageError as one line."""
    from IPython.core.error import UsageError

    from helpers.learner.words import book

    raise UsageError(str(book("ranks")["notebook.too_early"]))
