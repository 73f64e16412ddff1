"""The sheet: strong and weak, linked, in two languages, as text, HTML and Markdown; a file that is there stays."""

import re
import xml.etree.ElementTree as ElementTree

import pytest

from helpers.interview.sheet import Sheet, SheetItem


def item(key, state, seconds=60.0, topic="ddp", kind="card", title="How `many` | <b>?"):
    limit = 180.0 if kind == "card" else 900.0
    links = ((f"cell {key}", f"{topic}.ipynb#cell-id={key}"), ("lab", f"labs/{topic}.ipynb"))
    level = "junior" if kind == "card" else ""
    return SheetItem(
        kind=kind,
        key=key,
        title=title,
        topic=topic,
        level=level,
        state=state,
        limit=limit,
        seconds=seconds,
        links=links,
    )


ITEMS = (
    item("a", "good", topic="zero"),
    item("b", "easy"),
    item("c", "again"),
    item("d", "good", seconds=200.0, topic="amp"),
    item("e", "not_reached", seconds=None, topic="memory"),
    item("06.x", "not_passed", topic="pipeline", kind="drill", seconds=901.0),
)


def sheet(*items, language="en"):
    return Sheet(items=items or ITEMS, language=language, seed=7)


def test_strong_is_all_good_and_in_time_and_weak_is_the_rest_that_was_reached():
    assert sheet().strong == ("zero",) and sheet().weak == ("ddp", "amp", "pipeline")
    assert sheet().summary == ("Strong: zero", "Weak: ddp, amp, pipeline")
    assert sheet(language="zh").summary == ("强项：ZeRO 分片", "弱项：DDP 数据并行、混合精度、流水线并行")


@pytest.mark.parametrize("state", ["again", "hard", "skipped", "not_passed", "no_answer"])
def test_these_are_weak(state):
    assert item("a", state).is_weak and not item("a", state).is_strong


def test_text_has_time_against_limit_rating_and_links():
    text = sheet().text
    assert "   ddp · junior · 1:00 / 3:00 · again\n   cell c: ddp.ipynb#cell-id=c" in text
    assert "amp · junior · 3:20 (over time) / 3:00 · good" in text
    assert "memory · junior · – / 3:00 · not reached" in text
    assert "- Read cell c. Then ask yourself again: `python -m helpers quiz --topic ddp`." in text
    assert "- Read cell 06.x, lab. Write it once more tomorrow: `python -m helpers quiz --drill 06.x`." in text
    assert repr(sheet()) == text


def test_chinese_says_it_in_chinese():
    text = sheet(language="zh").text
    assert "3:20（超时）" in text and text.startswith("模拟面试（种子 7）")
    assert "弱项：DDP 数据并行、混合精度" in text and "忘了" in text and "--topic ddp --lang zh" in text


@pytest.mark.parametrize("language", ["en", "zh"])
def test_html_is_whole_escaped_linked_and_takes_its_colours_from_the_page(language):
    page = sheet(language=language)._repr_html_()
    root = ElementTree.fromstring(page.replace("<br>", "<br/>"))
    assert len(root.findall(".//tbody/tr")) == 6 and "&lt;b&gt;?" in page and "<code>many</code>" in page
    assert {a.get("href") for a in root.iter("a")} >= {"ddp.ipynb#cell-id=c", "labs/pipeline.ipynb"}
    assert not re.search(r"(?<!border-)(color|background)\s*:|#[0-9a-f]{6}\b", page)


def test_markdown_is_a_table_whose_bars_are_kept():
    lines = sheet().markdown().splitlines()
    rows = [line for line in lines if line.startswith("|")]
    assert len(rows) == 8 and {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {7}
    assert "[cell c](ddp.ipynb#cell-id=c)<br>[lab](labs/ddp.ipynb)" in rows[4]


def test_a_weak_topic_is_one_step_with_all_its_cells():
    (step,) = sheet(item("a", "again"), item("b", "hard"), item("c", "good")).steps()
    assert [text for text, _ in step[1]] == ["cell a", "cell b"]


def test_nothing_weak_and_nothing_answered_have_their_own_next_step():
    assert "Nothing was weak" in sheet(item("a", "good")).text
    assert "Nothing was answered" in sheet(item("a", "not_reached", seconds=None)).text


@pytest.mark.parametrize(("name", "begins"), [("s.md", "# Mock"), ("s.txt", "Mock"), ("s.html", "<!doctype html>")])
def test_it_is_saved_and_never_over_another_file(tmp_path, name, begins):
    first, second = sheet().save(tmp_path / name), sheet(language="zh").save(tmp_path / name)
    assert (first.name, second.name) == (name, name.replace("s.", "s-2."))
    assert first.read_text(encoding="utf-8").startswith(begins) and "模拟面试" in second.read_text(encoding="utf-8")


def test_another_ending_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"saved as .md, .html, .txt; the file was to be 's.pdf'"):
        sheet().save(tmp_path / "s.pdf")
