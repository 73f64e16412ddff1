"""The explorer works without a front end: formats and scales move what survives, the axis stays."""

import pytest

from helpers.draw import Rect
from helpers.predict.precision import recorded_magnitudes, surviving
from helpers.records import Magnitudes
from helpers.widgets import PrecisionExplorer


def axis(scene):
    """Where fp16's range begins and ends, in pixels."""
    rects = [item for item in scene.items if isinstance(item, Rect)]
    return [(rect.x, rect.width) for rect in rects if rect.tooltip.startswith("fp16: ")]


def test_scaling_brings_the_lost_gradients_back():
    explorer = PrecisionExplorer()
    assert explorer.format.value == "fp16" and explorer.scale.value == 1
    before = explorer.survival
    explorer.scale.value = 2.0**16
    after = explorer.survival
    assert before.zero > 0.4 and after.zero < 0.1 and after.normal > before.normal
    assert after == surviving(recorded_magnitudes()["gradients of activations"], "fp16", 2.0**16)


def test_the_sentence_and_the_table_say_it_in_percent():
    explorer = PrecisionExplorer()
    assert "46.8 % rounded to zero" in explorer.sentence and "A loss scale of 2²⁴ would keep" in explorer.sentence
    explorer.scale.value = 2.0**16
    assert explorer.sentence.endswith("Unscaled, 46.8 % would be rounded to zero.")
    table = {row["format"]: row for row in explorer.rows}
    assert table["bf16"]["rounded to zero"] == "0.0 %" and table["fp16"]["normal"] in explorer.sentence
    explorer.format.value = "bf16"
    assert explorer.sentence.endswith("They need no loss scale.")


def test_a_scale_that_is_too_large_is_told():
    explorer = PrecisionExplorer()
    explorer.values.value, explorer.scale.value = "gradients of weights", 2.0**24
    assert explorer.survival.overflow > 0
    assert explorer.sentence.endswith("the whole step is skipped, and the scale halved.")


def test_the_loss_scale_does_not_reach_what_forward_computes():
    explorer = PrecisionExplorer()
    explorer.values.value = "weights"
    before = explorer.survival
    explorer.scale.value = 2.0**24
    assert explorer.survival == before and explorer.sentence.endswith("before there is a loss.")


def test_the_axis_stays_while_dials_move():
    explorer, seen = PrecisionExplorer(), set()
    for values in explorer.values.options:
        for scale in (1.0, 2.0**24):
            explorer.values.value, explorer.scale.value = values[1], scale
            seen.add(tuple(axis(explorer.scene)))
    assert len(seen) == 1


def test_magnitudes_of_your_own():
    mine = Magnitudes(name="my gradients", lowest=-30, counts=(1, 1))
    explorer = PrecisionExplorer(mine)
    assert explorer.sentence.startswith("My gradients in fp16: 0.0 % normal, 0.0 % subnormal, 100.0 % rounded to zero")
    assert PrecisionExplorer({"mine": mine}).magnitudes is mine
    with pytest.raises(ValueError, match="got no magnitudes; give a Magnitudes"):
        PrecisionExplorer({})
    assert "so there is nothing to share out" in PrecisionExplorer(Magnitudes(name="nothing", zeros=3)).text
