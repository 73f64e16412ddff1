"""Writes a page of the web edition with one live block, so that a test of the block need not build the book."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.browser.book import ROOT, install_pyodide


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
