"""Bars of strategies: to scale up to the cut, the limit named, the chosen one framed, what cannot run said in words."""

from dataclasses import replace

import pytest

from helpers.draw import Line, Rect
from helpers.draw.chapters.strategies import strategies_scene
from helpers.predict.advice import advise
from helpers.specs import CLUSTERS, PRESETS
from tests.draw.scenes import SCENES, texts

FOUND = advise(PRESETS["llama3-70b"], CLUSTERS["4 nodes of 8 H100, 8 x 400 Gb/s"])


def bars(scene, name):
    return [item for item in scene.items if isinstance(item, Rect) and item.tooltip.startswith(f"{name} · ")]


def test_bars_are_to_scale_and_the_limit_stands_where_its_bytes_are():
    scene, chosen = SCENES["strategies"], FOUND.chosen
    line = next(item for item in scene.items if isinstance(item, Line) and item.dashed)
    first, *_ = parts = bars(scene, chosen.title)
    drawn = sum(bar.width + 1 for bar in parts)
    assert drawn / chosen.memory.total == pytest.approx((line.x1 - first.x) / FOUND.request.usable, rel=0.01)
    assert "usable 75.2 GB" in texts(scene)


def test_the_chosen_one_is_framed_and_ticked():
    scene = SCENES["strategies"]
    (frame,) = (item for item in scene.items if isinstance(item, Rect) and item.tooltip.startswith("chosen: "))
    assert frame.stroke == "ink" and FOUND.chosen.plan_text in frame.tooltip
    assert [text for text in texts(scene) if text.startswith("✓")] == [f"✓ {FOUND.chosen.title}"]
    assert f"{FOUND.chosen.title}, chosen: {FOUND.chosen.memory.total / 1e9:.1f} GB per rank, " in scene.summary


def test_a_bar_far_beyond_the_limit_is_cut_and_keeps_its_bytes_in_words():
    scene = SCENES["strategies"]
    right = max(bar.x + bar.width for bar in bars(scene, "DDP"))
    assert right <= max(bar.x + bar.width for bar in bars(scene, "ZeRO-1")) + 1 < scene.width - 250
    lines = [item for item in scene.items if isinstance(item, Line)]
    cuts = [line for line in lines if line.tooltip == "the bar continues, not to scale"]
    assert len(cuts) == 2 * 3 and "15.3 × usable · 1.15 TB · too much" in texts(scene)
    assert sum("× usable" in text for text in texts(scene)) == 3  # bars of one length, three sizes


def test_what_cannot_run_is_said():
    scene = SCENES["strategies, some cannot run"]
    assert texts(scene).count("cannot run here") == 4 and not bars(scene, "TP")
    assert "TP: Cannot run: tp=4 does not divide num_heads=25." in scene.summary


def test_nothing_to_draw_gets_a_sentence():
    empty = [replace(one, memory=None) for one in FOUND.candidates]
    for candidates, limit in ((empty, 1e9), ((), 1e9), (FOUND.candidates, 0)):
        with pytest.raises(ValueError, match="strategies_scene got no bytes to draw"):
            strategies_scene(candidates, limit=limit, limit_name="usable", title="none")
