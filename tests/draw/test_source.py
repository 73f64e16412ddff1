"""`show` prints the real source with its path, and a text that does not change with its lines."""

import re
from pathlib import Path

import pytest

from helpers.draw import show
from helpers.quantities.units import format_bytes
from helpers.records import Span, Timeline


def plain(html):
    from html import unescape

    return unescape(re.sub(r"<[^>]+>", "", html))


def test_the_source_is_shown_whole_with_path_and_lines():
    html = show(format_bytes)._repr_html_()
    text = plain(html)
    assert re.search(r"format_bytes · helpers/quantities/units.py, lines \d+ to \d+", text)
    assert "def format_bytes(num_bytes: float, *, binary: bool = False) -> str:" in text
    assert "--jp-mirror-editor-keyword-color" in html and "<script" not in html


def test_the_numbers_are_those_of_the_file():
    import helpers.quantities.units

    with open(helpers.quantities.units.__file__) as file:
        lines = file.read().splitlines()
    shown = re.findall(r"^ *(\d+)  (.*)$", plain(show(format_bytes)._repr_html_()), re.MULTILINE)
    assert shown and all(lines[int(number) - 1] == line for number, line in shown)


def test_it_brings_its_own_font_and_never_wraps():
    """nbconvert's page has no font for such a <pre> and breaks its lines anywhere; numbers would not align."""
    html = show(format_bytes)._repr_html_()
    (block,) = re.findall(r'<pre style="([^"]*)">', html)
    assert re.search(r"font-family:[^;]*,monospace", block) and "white-space:pre;" in block
    numbers = re.findall(r'<span style="[^"]*">( *\d+)  </span>', html)
    assert len(numbers) >= 3 and len({len(number) for number in numbers}) == 1


def test_the_text_is_stable_and_short():
    said = [f"[source] {name} · helpers/records/timeline.py" for name in ("Span", "Timeline.idle")]
    assert repr(show(Span, Timeline.idle)).split("\n") == said


def test_methods_lose_their_indent():
    assert "  def idle(self" not in plain(show(Timeline.idle)._repr_html_()).replace("  def idle", "def idle", 1)


@pytest.mark.parametrize("given", [len, 3, "text"])
def test_what_has_no_source_gets_a_sentence(given):
    with pytest.raises(ValueError, match="give a class, function or module that a file defines"):
        show(given)


@pytest.mark.parametrize("here", [True, False], ids=["in the course's folder", "elsewhere"])
def test_a_cell_is_called_notebook_wherever_it_runs(here, tmp_path, monkeypatch):
    """Jupyter writes a cell's file, named by a hash, beside no notebook."""
    cell = tmp_path / "ipykernel_7" / "123.py"
    cell.parent.mkdir()
    cell.write_text("def step():\n    return 1\n")
    made = {}
    exec(compile(cell.read_text(), cell, "exec"), made)
    monkeypatch.chdir(Path(__file__).parent if here else tmp_path)
    assert repr(show(made["step"])) == "[source] step · notebook"


def test_folded_it_shows_names_and_one_click_opens_each():
    html = show(format_bytes, Timeline.idle, folded=True)._repr_html_()
    assert html.count("<details><summary") == html.count("</details>") == 2
    assert plain(html) == plain(show(format_bytes, Timeline.idle)._repr_html_())
