"""The napkin sheet as it is printed: one page of A4, and no text that leaves its cell."""

from __future__ import annotations

import re

import pytest

from helpers.interview.napkin import napkin
from helpers.learner.words import LANGUAGES

A4 = {"width": 794, "height": 1123}  # at 96 dots an inch
TOO_WIDE = """[...document.querySelectorAll("td")].filter(cell => cell.scrollWidth > cell.clientWidth + 1
  || cell.getBoundingClientRect().right > innerWidth - 30).map(cell => cell.textContent)"""


@pytest.mark.parametrize("language", LANGUAGES)
def test_it_is_one_page_and_nothing_overflows(language, desk):
    page = desk.page.context.new_page()
    page.set_viewport_size(A4)
    page.set_content(napkin(language).html)
    if desk.pictures:
        page.screenshot(path=desk.pictures / f"napkin_{language}.png")
    too_wide, width = page.evaluate(TOO_WIDE), page.evaluate("document.documentElement.scrollWidth")
    printed = page.pdf(prefer_css_page_size=True)
    page.close()
    assert too_wide == [] and width <= A4["width"]
    assert len(re.findall(rb"/Type\s*/Page\b", printed)) == 1
