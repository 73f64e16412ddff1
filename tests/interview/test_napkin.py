"""The napkin sheet: 20 and 20, every value computed when it is made, in each language."""

from __future__ import annotations

import re

import pytest

from helpers.__main__ import main
from helpers.interview import napkin as module
from helpers.interview.cards import function_named
from helpers.interview.napkin import FILE, napkin, rows
from helpers.learner.words import LANGUAGES


@pytest.mark.parametrize("section", ["formulas", "numbers"])
def test_there_are_twenty_and_each_is_computed_by_the_course(section):
    lines = rows(section)
    assert len({line.name.en for line in lines}) == len(lines) == 20
    assert all(callable(function_named(line.value.call)) and line.value.call.startswith("helpers.") for line in lines)
    assert all(bool(line.formula and line.given) == (section == "formulas") for line in lines)
    assert "says:" not in FILE.read_text(encoding="utf-8").partition("formulas:\n")[2]  # a value is written nowhere


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_line_stands_on_the_page_with_its_value(language):
    sheet = napkin(language)
    assert sheet.html.count("<tr>") == 40 == len(repr(sheet).splitlines())
    cells = re.findall(r'<td class="v">(.*?)</td>', sheet.html)
    assert cells == [line.value.text.in_(language) for line in sheet.rows]
    assert f'<html lang="{language}" class="napkin">' in sheet.html and "<iframe" in sheet._repr_html_()


def test_a_value_follows_what_computes_it(monkeypatch):
    assert "3.75 B" in napkin("en").html
    line = next(line for line in rows("numbers") if line.name.en == "H100: memory")
    monkeypatch.setattr(module, "GPUS", {**module.GPUS, "H100": module.GPUS["H200"]})
    assert line.value.text.en == "141 GB"


def test_the_command_writes_the_sheet(tmp_path, capsys):
    assert main(["napkin", "--lang", "zh", "-o", str(tmp_path / "sheet.html")]) == 0
    assert "面试速算纸" in (tmp_path / "sheet.html").read_text(encoding="utf-8")
    assert main(["napkin", "-o", str(tmp_path / "none" / "sheet.html")]) == 2
    assert "give -o a file in a folder of yours" in capsys.readouterr().err
