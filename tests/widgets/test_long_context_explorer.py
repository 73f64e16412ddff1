"""The explorer of context parallelism: its bars are those of the model of time, and its sentence follows the dials."""

from dataclasses import replace

import pytest

from helpers.draw import Rect
from helpers.learner.words import use_language
from helpers.predict.time.long_context import attention_cost
from helpers.specs import GPUS, LINKS, PRESETS
from helpers.widgets import LongContextExplorer
from helpers.widgets.long_context_explorer import BLOCK_SPEED, LENGTHS
from tests.widgets.explorers import turned


def labels(shown):
    return [item.text for item in shown.scene.items if not isinstance(item, Rect) and hasattr(item, "text")]


def test_the_bars_are_the_model_s_and_a_ring_without_a_zigzag_takes_longest():
    shown = LongContextExplorer()
    ways, model = shown.ways, replace(PRESETS["llama3-8b"], seq=131_072)
    settings = {"cp": 8, "gpu": GPUS["H100"], "link": LINKS["400 Gb/s"], "block_speed": BLOCK_SPEED}
    assert ways["contiguous"] == attention_cost(model, method="ring", zigzag=False, **settings)
    assert ways["all_gather"] == attention_cost(model, method="all_gather", hidden=0.0, **settings)
    assert ways["contiguous"].seconds == max(way.seconds for way in ways.values())
    assert ways["contiguous"].compute / ways["zigzag"].compute == pytest.approx(1.875)
    assert ways["zigzag"].exposed == 0 < ways["all_gather"].exposed and ways["zigzag"].held < ways["all_gather"].held
    assert {"430 ms, imbalance 1.88", "1.41 GB", "587 MB", "872 MB"} <= {*labels(shown)}


def test_the_sentence_says_what_the_dial_that_moved_would_change():
    shown = LongContextExplorer()
    assert shown.sentence.startswith(
        "Fastest is Ulysses, with 207 ms per layer. The largest part of that is attention itself, with 94%"
    )
    assert "If you turn ranks from 8 to 2, the all-gather becomes fastest." in shown.sentence
    shown.seq.value = 8192
    assert "If you turn tokens from 8,192 to " in shown.sentence or "No other value of tokens" in shown.sentence
    turned(shown, link="10 Gb/s", ranks=32)
    assert "messages that nothing hides" in shown.sentence
    with use_language("zh"):
        assert "其中最大的部分是没有被掩盖的通信" in shown.sentence


def test_each_change_that_the_sentence_names_is_true_and_the_nearest():
    shown = LongContextExplorer("llama3-8b", ranks=64, link="400 Gb/s")
    fastest = {}
    for seq in LENGTHS:
        shown.seq.value = seq
        fastest[seq] = min((way.seconds, name) for name, way in shown.ways.items() if way)[1]
    assert len({*fastest.values()}) > 1
    for place, seq in enumerate(LENGTHS):
        shown.seq.value = LENGTHS[place - 1] if place else LENGTHS[1]
        shown.seq.value = seq
        distance = min(abs(LENGTHS.index(other) - place) for other, name in fastest.items() if name != fastest[seq])
        named = [other for other in LENGTHS if f"from {seq:,} to {other:,}," in shown.sentence]
        assert [abs(LENGTHS.index(other) - place) for other in named] == [distance]


def test_beyond_the_heads_ulysses_is_grey_and_says_why():
    shown = turned(LongContextExplorer(), ranks=64)
    assert shown.ways["ulysses"] is None
    assert "Ulysses ends at 32 of these ranks, because there are 32 query heads." in shown.sentence
    assert labels(shown).count("not possible: 64 ranks cannot share 32 query heads equally") == 3
    assert [*shown.rows[-1].values()] == ["Ulysses", *6 * ["–"]]
    assert sum(isinstance(item, Rect) and item.fill == "other" for item in shown.scene.items) == 3
    turned(shown, model="llama3-70b")
    assert shown.ways["ulysses"] and "Ulysses ends" not in shown.sentence


def test_with_all_key_heads_a_ring_sends_half_the_ranks_times_what_ulysses_sends_forward():
    ways = turned(LongContextExplorer("llama2-7b"), ranks=16).ways
    assert ways["zigzag"].sent / ways["ulysses"].sent == pytest.approx(3 * 8 / 2)  # 3 against 2 of a forward's bytes
