"""Dials on `predict` and `draw`: plain ipywidgets that work without a front end and leave a picture behind."""

from helpers.widgets.collective_explorer import CollectiveExplorer
from helpers.widgets.overlap_explorer import OverlapExplorer

__all__ = ["CollectiveExplorer", "OverlapExplorer"]
