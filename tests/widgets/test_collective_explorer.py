"""The explorer works without a front end: every dial changes what is shown, and a picture stays behind."""

import subprocess
import sys

from helpers.widgets import CollectiveExplorer


def test_every_dial_changes_what_is_shown():
    explorer = CollectiveExplorer()
    seen = {explorer.html.value}
    for dial, value in zip(explorer.dials, (5, "tree", 1e3, "NVLink 4"), strict=True):
        dial.value = value
        seen.add(explorer.html.value)
    assert len(seen) == 5
    assert "<svg" in explorer.html.value


def test_the_sentence_states_bytes_latency_and_the_winner():
    explorer = CollectiveExplorer()
    assert explorer.sentence == (
        "40.0 MB a rank. The busiest rank sends 60.0 MB. Predicted 48.2 ms, latency 180 µs of it. "
        "Fastest here: halving-doubling."
    )


def test_all_settings_of_ranks_and_algorithm_draw():
    explorer = CollectiveExplorer()
    for algorithm in explorer.algorithm.options:
        explorer.algorithm.value = algorithm
        for n in range(explorer.ranks.min, explorer.ranks.max + 1):
            explorer.ranks.value = n
            assert f"on {n} ranks" in explorer.html.value


def test_a_saved_notebook_keeps_a_picture_and_a_stable_text():
    bundle = CollectiveExplorer()._repr_mimebundle_()
    assert bundle["text/plain"] == CollectiveExplorer()._repr_mimebundle_()["text/plain"]
    assert bundle["image/png"].startswith("iVBOR")
    assert "application/vnd.jupyter.widget-view+json" in bundle


def test_widgets_start_without_torch():
    code = "import sys, helpers.widgets; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
