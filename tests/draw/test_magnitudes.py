"""The histogram's bars take the look of what a format makes of them, and the percentages are those of `surviving`."""

import pytest

from helpers.draw import Rect, magnitudes_scene
from helpers.draw.number_formats import FATE_STYLES, percent, scale_text
from helpers.predict.precision import surviving
from helpers.records import Magnitudes

FLAT = Magnitudes(name="gradients", lowest=-30, counts=(5,) * 20)  # from 2**-30 to 2**-10


def bars(scene, look):
    """The bars of the histogram, told from the ranges and the legend by their tooltip."""
    shown = [item for item in scene.items if isinstance(item, Rect) and " in [" in item.tooltip]
    return [bar for bar in shown if bar.fill == FATE_STYLES[look]["fill"]]


def test_each_bin_has_the_look_of_its_fate():
    scene = magnitudes_scene(FLAT, "fp16")
    assert [len(bars(scene, word)) for word in FATE_STYLES] == [4, 11, 5, 0]  # from 2**-14, from 2**-25, below
    scaled = magnitudes_scene(FLAT, "fp16", 2.0**30)
    assert [len(bars(scaled, word)) for word in FATE_STYLES] == [16, 0, 0, 4]  # the last four lie above 2**16


def test_the_legend_the_summary_and_the_table_of_losses_say_the_shares():
    scene = magnitudes_scene(FLAT, "fp16")
    texts = [label.text for label in scene.labels()]
    assert {"normal: 20.0 %", "subnormal: 55.0 %", "rounded to 0: 25.0 %", "too large: 0.0 %"} <= set(texts)
    assert texts[texts.index("fp16") + 1] == percent(surviving(FLAT, "fp16").zero) == "25.0 %"
    assert "fp8 E4M3: normal 0.0 %, subnormal 0.0 %, rounded to 0 100.0 %, too large 0.0 %" in scene.summary


def test_scaling_moves_the_bars_and_not_the_formats():
    def left(scene):
        return min(bar.x for word in FATE_STYLES for bar in bars(scene, word))

    def bound(scene):
        return next(item.x for item in scene.items if isinstance(item, Rect) and item.tooltip.startswith("fp16: "))

    window = (-32, 18)
    plain, scaled = (magnitudes_scene(FLAT, "fp16", scale, window=window) for scale in (1.0, 2.0**10))
    power = (plain.width - 96 - 128) / 50  # pixels
    assert left(scaled) - left(plain) == pytest.approx(10 * power)
    assert bound(scaled) == bound(plain)


def test_what_lies_outside_the_window_is_not_drawn_but_counted():
    scene = magnitudes_scene(FLAT, "fp16", window=(-20, 0))
    assert len(bars(scene, "rounded to 0")) == 0
    assert "rounded to 0: 25.0 %" in [label.text for label in scene.labels()]


@pytest.mark.parametrize(
    ("share", "text"), [(0, "0.0 %"), (1, "100.0 %"), (1e-6, "< 0.1 %"), (0.99999, "> 99.9 %"), (0.4678, "46.8 %")]
)
def test_a_small_share_never_reads_as_nothing(share, text):
    assert percent(share) == text


def test_a_scale_reads_as_a_power_where_it_is_one():
    assert (scale_text(1.0), scale_text(65536.0), scale_text(1000.0)) == ("1", "2¹⁶", "1,000")
