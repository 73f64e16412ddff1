"""Puts the address of the course's repository into the texts of a page, if `make links` has written it into README."""

from __future__ import annotations

import functools
import re
from pathlib import Path

from helpers.learner.words import book
from tools.links import END, START

README = Path(__file__).resolve().parents[2] / "README.md"
words = book("words", Path(__file__).parent)  # what the pages say: words.yaml


@functools.cache
def repository() -> str:
    """The address of the course's repository, which `make links` has written into README; "" without it."""
    links = README.read_text(encoding="utf-8").partition(START)[2].partition(END)[0]
    found = re.search(r"https://github\.com/[\w.-]+/[\w.-]+", links)
    return found[0] if found else ""


def with_address(text: str, language: str) -> str:
    """A text in which `git clone` has the repository's address, if there is one."""
    if repository():
        return re.sub(r" *# ADDRESS.*", "", text).replace("git clone ADDRESS", f"git clone {repository()}")
    return re.sub(r"# ADDRESS.*", words("address", language), text)
