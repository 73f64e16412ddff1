"""What a widget gives to a notebook, with the ipywidgets that are installed and with those of Colab."""

from __future__ import annotations

import ipywidgets

from helpers.learner.hooks import OURS, WIDGET_VIEW
from helpers.widgets.view import SavedWidget


def test_a_widget_brings_its_live_view_and_its_text():
    class Shown(SavedWidget, ipywidgets.HTML):
        TEXT = "[widget] Shown"

    shown = Shown()
    bundle = shown._repr_mimebundle_()
    assert bundle["text/plain"] == "[widget] Shown"
    assert bundle[WIDGET_VIEW].items() >= {"model_id": shown.model_id, OURS: True}.items()


def test_a_widget_of_ipywidgets_7_which_makes_no_bundle_brings_them_too():
    class Old:
        model_id = "7"

    class Shown(SavedWidget, Old):
        TEXT = "[widget] Shown"

    bundle = Shown()._repr_mimebundle_()
    view = {"version_major": 2, "version_minor": 0, "model_id": "7", OURS: True}
    assert bundle == {"text/plain": "[widget] Shown", WIDGET_VIEW: view}
