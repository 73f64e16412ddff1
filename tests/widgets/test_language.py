"""Every explorer speaks the language that was chosen."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from helpers import widgets
from helpers.draw import png
from helpers.learner.words import use_language
from helpers.widgets.timeline_view import TimelineView
from tests.widgets.explorers import NAMES as EXPLORERS
from tests.widgets.explorers import make as explorer

ENGLISH = re.compile(r"\b[a-z]{2,} [a-z]{2,}\b")
CHINESE = re.compile(r"[\u4e00-\u9fff]")
NAMES = ("loss scale", "GPT-2 on one V100", "scatter gradients")  # of a technique, an example, a span of a timeline


def texts(shown) -> Iterator[tuple[str, str]]:
    """All that an explorer says: the part, and a text."""
    for dial in getattr(shown, "dials", ()):
        options = [option[0] for option in getattr(dial, "options", ()) if isinstance(option, tuple)]
        yield from (("dials", text) for text in (dial.description, dial.tooltip, *options))
    yield "sentence", shown.sentence
    yield from (("rows", text) for row in shown.rows for cell in row.items() for text in cell)
    for item in shown.scene.items:
        yield from (("scene", getattr(item, part, "")) for part in ("text", "tooltip"))
    yield from (("scene", text) for text in (shown.scene.title, shown.scene.summary))


def english(text: str) -> bool:
    for name in NAMES:
        text = text.replace(name, "")
    return ENGLISH.search(text) is not None


@pytest.mark.parametrize("name", EXPLORERS)
def test_an_explorer_says_nothing_in_another_language(name):
    with use_language("zh"):
        said = list(texts(explorer(name)))
    found = {part for part, text in said if english(text)}
    assert not found, [text for _, text in said if english(text)]


@pytest.mark.parametrize("name", EXPLORERS)
def test_sentence_table_and_picture_follow(name):
    with use_language("zh"):
        shown = explorer(name)
        summary, heads = shown.scene.summary, "".join(key for row in shown.rows for key in row)
        assert all(CHINESE.search(text) for text in (shown.sentence, summary, heads, shown.text))
        if name != "TimelineExplorer":
            assert "显示为表格" in shown.widget._fold.value and CHINESE.search(shown.widget.html.value)


def test_the_timeline_viewer_takes_every_text_from_python():
    code = re.sub(r"/\*.*?\*/|//[^\n]*", "", TimelineView._esm, flags=re.DOTALL)
    own = [text for text in re.findall(r'"[^"\n]*"|`[^`]*`', code) if re.search("[A-Za-z]{2,} [a-z]{2,}", text)]
    assert all(text.startswith(('"change:', '"rr-')) for text in own), own  # events, classes
    with use_language("zh"):
        sent = explorer("TimelineExplorer").data["words"]
    used = set(re.findall(r"this\.words\.(\w+)", code)) | {"at_head", "does_compute", "does_send", "does_hold"}
    assert len(used) > 15 and all(CHINESE.search(sent[name]) for name in used - {"silent"})


def test_a_saved_picture_is_english_where_no_font_has_chinese(monkeypatch):
    seen = []
    monkeypatch.setattr("helpers.widgets.view.saved_bundle", lambda scene: seen.append(scene.title) or ({}, {}))
    for font in ("font.ttf", None):
        monkeypatch.setattr(png, "chinese_font", lambda font=font: font)
        with use_language("zh"):
            widgets.ZeroExplorer()._repr_mimebundle_()
    assert seen == ["第 3 级 · 第 1 / 20 步 · 这一步之前", "stage 3 · step 1 of 20 · before the step"]


def test_a_long_chinese_sentence_is_broken_into_lines():
    with use_language("zh"):
        shown = widgets.TensorSplitExplorer("head")
        lines = [item.text for item in shown.saved.items[len(shown.scene.items) :]]
        sentence = shown.sentence
    assert len(lines) > 1 and "".join(lines).replace(" ", "") == sentence.replace(" ", "")
    assert not any(line[0] in "，。；：、）" for line in lines)
