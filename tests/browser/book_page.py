"""Writes a page of the web edition with one live block, so that a test of the block need not build the book."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Page

from tests.browser import chromium
from tests.browser.book import ROOT, install_pyodide, served


def write_page(folder: Path, block: str, language: str = "en") -> None:
    """Write index.html with this block, the scripts of a page, Pyodide and the course's package into the folder.

    Skips the test where a library for the book is missing, or where Pyodide cannot be downloaded.
    """
    static = folder / "_static"
    python = static / "python"
    install_pyodide(python / "pyodide")
    from tools.book import build, pyodide

    shutil.copytree(build.HERE / "static", static, dirs_exist_ok=True)
    (static / "settings.js").write_text(build.settings(language), encoding="utf-8")
    pyodide.write_package(python / "course.zip", ROOT)
    shutil.copy(build.HERE / "python_worker.mjs", python)
    scripts = "".join(f'<script defer src="_static/{name}"></script>' for name in build.SCRIPTS)
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>A page</title>'
    styles = '<link rel="icon" href="data:,"><link rel="stylesheet" href="_static/book.css">'
    body = f"<body><article>{block}</article></body>"
    page = f'<!doctype html><html lang="{language}"><head>{head}{styles}{scripts}</head>{body}</html>'
    (folder / "index.html").write_text(page, encoding="utf-8")


@contextmanager
def served_page(folder: Path, block: str) -> Iterator[str]:
    """The address of such a page in English, written below `folder` and served; every file that it asks for is there.

    Skips the test where there is no Chromium, or as `write_page` does.
    """
    if reason := chromium.why_not():
        pytest.skip(reason)
    (folder / "book").mkdir()
    write_page(folder / "book", block)
    with served(folder) as book:
        yield book.url
        assert not book.missing


@contextmanager
def tab(url: str, profile: Path, viewport: dict[str, int] | None = None) -> Iterator[Page]:
    """The page in a tab of a browser that has stored nothing; an error of a script fails the tests."""
    from tests.browser.desk import window

    errors = []
    with window(chromium.PATH, profile) as browser:
        page = browser.new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        if viewport:
            page.set_viewport_size(viewport)
        page.goto(url)
        yield page
    assert not errors
