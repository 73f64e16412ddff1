"""The pictures of number formats say what each format makes of a value."""

import math

import pytest

from helpers.draw import Line, Rect, magnitudes_scene, number_formats_scene
from helpers.draw.chapters.amp import FATE_STYLES, percent, scale_text
from helpers.predict.precision import surviving
from helpers.records import Magnitudes
from tests.draw.scenes import texts


def test_every_bit_is_a_box_and_every_bound_is_written():
    scene = number_formats_scene()
    for kind, bits in (("sign", 6), ("exponent", 8 * 3 + 5 * 2 + 4), ("mantissa", 23 + 10 + 7 + 10 + 2 + 3)):
        boxes = [item for item in scene.items if isinstance(item, Rect) and item.fill == kind]
        assert len(boxes) == bits + 1  # and the legend's
    assert {"1 + 5 + 10 bits, up to 65,504", "normal from 2⁻¹⁴, subnormal from 2⁻²⁴"} <= set(texts(scene))
    assert "1 + 4 + 3 bits, up to 448" in texts(scene)


def test_bars_and_marks_share_the_axis():
    """fp16 spans 40 powers of two, of which 10 are subnormal; 1e-6 lies 4.07 powers above its smallest number."""
    scene = number_formats_scene(["fp16"], marks={"a gradient": 1e-6})
    bars = {item.fill: item for item in scene.items if isinstance(item, Rect) and item.tooltip.startswith("fp16")}
    low, normal = bars["panel"], bars["other"]
    assert normal.width / low.width == pytest.approx((math.log2(65504) + 14) / 10)
    line = next(item for item in scene.items if isinstance(item, Line) and item.dashed)
    assert (line.x1 - low.x) / low.width == pytest.approx((math.log2(1e-6) + 24) / 10)
    assert line.x1 == line.x2


def test_badges_say_what_becomes_of_a_mark():
    scene = number_formats_scene(["bf16", "fp16", "fp8 E4M3"], marks={"a gradient": 1e-6, "a loss": 1e5})
    tooltips = [item.tooltip for item in scene.items if isinstance(item, Rect) and " in " in item.tooltip]
    assert tooltips[:2] == ["a gradient in fp16: subnormal", "a loss in fp16: ∞"]
    assert tooltips[2:] == ["a gradient in fp8 E4M3: 0", "a loss in fp8 E4M3: largest"]
    assert "a gradient, 1e-06, is normal; a loss, 100,000, is normal." in scene.summary


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
