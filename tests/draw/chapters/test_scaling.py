"""The speed-up's picture: every point where its axes say, the ideal as far as the counts, and where it stops paying."""

import pytest

from helpers.draw import Line, Rect, speedup_scene
from helpers.predict.scaling import SOURCES_GPUS, SOURCES_SPEEDUPS, where_it_stops
from helpers.predict.scaling.laws import points_of
from tests.draw.scenes import texts

RATES = [gpus / (1 + gpus / 1000) for gpus in (8, 64, 512, 4096)]
POINTS = points_of((8, 64, 512, 4096), RATES, [1.0] * 4)
MEASURED = tuple(zip(SOURCES_GPUS, SOURCES_SPEEDUPS, strict=True))


def lines(scene, colour):
    return [item for item in scene.items if isinstance(item, Line) and item.colour == colour]


def test_measured_points_are_dots_and_amdahls_curve_lies_where_the_formula_says():
    scene = speedup_scene(measured=MEASURED, serial=0.03, title="ResNet-152")
    dots = [item for item in scene.items if isinstance(item, Rect) and item.fill == "ink"]
    assert len(dots) == 5
    (ideal,) = lines(scene, "other")
    assert ideal.dashed and (ideal.y1 - dots[-1].y - 5) / (ideal.y1 - ideal.y2) == pytest.approx(10 / 15)
    end = lines(scene, "optimizer")[-1]
    assert (ideal.y1 - end.y2) / (ideal.y1 - ideal.y2) == pytest.approx((16 / (1 + 15 * 0.03) - 1) / 15)
    assert not lines(speedup_scene(measured=MEASURED, title="", ideal=False), "other")


def test_beyond_the_count_that_pays_the_plot_is_hatched_and_says_so():
    stops = where_it_stops(POINTS)
    scene = speedup_scene(POINTS, stops=stops, yours=64, title="")
    words = texts(scene)
    assert "beyond 64: below 70% of ideal" in words and "64: 95% of ideal" in words
    assert "GPUs; 8 of them count as 8 times one" in words
    (gap,) = (item for item in scene.items if isinstance(item, Rect) and item.texture == "hatch")
    (mark,) = (item for item in scene.items if isinstance(item, Rect) and item.stroke_width == 2.5)
    assert gap.x == pytest.approx(mark.x + 7)
    assert "beyond" not in speedup_scene(POINTS[:2], stops=POINTS[1], title="").summary
