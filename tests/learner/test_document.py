"""A document is the same in HTML, Markdown and text, escaped in each as the format asks, and needs no package."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import pytest

from helpers.learner.document import (
    BREAK,
    bold,
    code_block,
    element,
    folded,
    heading,
    joined,
    link,
    listed,
    marked,
    page,
    paragraph,
    paragraphs,
    section,
    strong,
    table,
    table_row,
)

SHEET = section(
    heading("Your <sheet>", 3),
    table(["task", "result"], [["a|b", [marked("`x` is **3**"), BREAK, link("cell", "a.ipynb#b")]], ["c", "4\n5"]]),
    paragraph(joined(BREAK, [strong("Strong: a"), strong("Weak: c")])),
    None,
    heading("Next", 4),
    listed([["Read ", link("cell", "a.ipynb")], "Again."]),
    lang="en",
)


def test_html_escapes_texts_and_keeps_what_is_marked():
    root = ElementTree.fromstring(SHEET.html.replace("<br>", "<br/>"))
    assert root.get("lang") == "en" and root.find("h3").text == "Your <sheet>"
    assert [cell.get("scope") for cell in root.iter("th")] == ["col", "col"]
    cell = root.findall("table/tbody/tr/td")[1]
    assert [(part.tag, part.text, part.tail) for part in cell] == [
        ("code", "x", " is "), ("b", "3", None), ("br", None, None), ("a", "cell", None)
    ]  # fmt: skip


def test_markdown_begins_with_level_1_and_keeps_bars_and_lines_of_a_cell():
    assert SHEET.markdown == (
        "# Your <sheet>\n\n| task | result |\n|---|---|\n"
        "| a\\|b | `x` is **3**<br>[cell](a.ipynb#b) |\n| c | 4 5 |\n\n"
        "**Strong: a**  \n**Weak: c**\n\n## Next\n\n- Read [cell](a.ipynb)\n- Again.\n"
    )


def test_text_has_no_stars_around_labels_and_a_heading_stands_above_its_list():
    begin, _, end = SHEET.text.partition("Strong")
    assert begin.startswith("Your <sheet>\n\ntask  result\na|b   `x` is **3**")
    assert end == ": a\nWeak: c\n\nNext\n- Read cell\n- Again."
    assert section(table(["wide"], [["x"]], plain="1. x"), "end").text == "1. x\n\nend"


def test_what_is_empty_is_left_out_and_attributes_are_escaped():
    cell = element("td", "", None, [], class_="", title='say "<"', aria_current="step")
    assert cell.html == '<td title="say &quot;&lt;&quot;" aria-current="step"></td>'
    assert listed([]) is None and section(None, "").html == "<div></div>"
    assert element("style", "a > b {}").html == "<style>a > b {}</style>"


def test_a_row_has_a_heading_cells_of_its_own_and_attributes_by_column():
    row = table_row(
        ["a", element("td", "b", class_="own"), "c"], has_head=True, cells=lambda column: {"id": str(column)}
    )
    assert row.html == '<tr><th scope="row" id="0">a</th><td class="own">b</td><td id="2">c</td></tr>'
    shown = table((), [row], caption="All").html
    assert shown == f"<table><caption>All</caption><tbody>{row.html}</tbody></table>"


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("a < b & `x[0] < 1` is **bold**", "a &lt; b &amp; <code>x[0] &lt; 1</code> is <b>bold</b>"),
        ("**see `x`** and `2**30`", "<b>see <code>x</code></b> and <code>2**30</code>"),
        ("2 ** 3 and `", "2 ** 3 and `"),
    ],
)
def test_marks(text, html):
    assert paragraph(marked(text)).html == f"<p>{html}</p>"


def test_blank_lines_separate_paragraphs_and_a_fold_shows_its_summary_first():
    fold = folded(bold("more"), paragraphs("a\n\nb"), code_block("x\n y"))
    assert fold.html == "<details><summary><b>more</b></summary><p>a</p><p>b</p><pre>x\n y</pre></details>"
    assert fold.markdown == "**more**\n\na\n\nb\n\n```\nx\n y\n```\n"


def test_a_page_is_whole():
    text = page(heading("T", 1), paragraph("x"), title="T & U", kind="advice", lang="zh")
    assert text.startswith('<!doctype html>\n<html lang="zh" class="advice">') and "<title>T &amp; U</title>" in text
    assert ".advice tr.chosen > * {" in text and "<h1>T</h1>\n<p>x</p>" in text


def test_it_needs_the_standard_library_alone():
    program = "import sys; sys.modules |= dict.fromkeys(['yaml', 'mistune', 'jinja2']); import helpers.learner.document"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
