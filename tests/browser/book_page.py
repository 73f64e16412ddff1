"""A page of the web edition with one live block, and a small server for it, so that a test need not build the book."""

from __future__ import annotations

import functools
import http.server
import shutil
import threading
import urllib.error
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STYLES = "<style>body { --color-brand-primary: #0a4bff; --color-background-primary: #fff; }</style>"


def write_page(folder: Path, block: str, language: str = "en") -> None:
    """Write index.html with this block, the scripts of a page, Pyodide and the course's package into the folder.

    Skips the test where a library for the book is missing or Pyodide cannot be downloaded.
    """
    pytest.importorskip("latex2mathml", reason="the libraries for the book are not installed: run make book")
    from tools.book import build, pyodide

    static = folder / "_static"
    shutil.copytree(build.HERE / "static", static)
    (static / "settings.js").write_text(build.settings(language), encoding="utf-8")
    python = static / "python"
    try:
        pyodide.install_pyodide(python / "pyodide", ROOT / "build")
    except (urllib.error.URLError, TimeoutError) as error:
        pytest.skip(f"Pyodide cannot be downloaded here: {error}")
    pyodide.write_package(python / "course.zip", ROOT)
    shutil.copy(build.HERE / "python_worker.mjs", python)
    scripts = "".join(f'<script defer src="_static/{name}"></script>' for name in build.SCRIPTS)
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>A page</title>{STYLES}'
    style = '<link rel="icon" href="data:,"><link rel="stylesheet" href="_static/book.css">'
    page = f'<!doctype html><html lang="{language}"><head>{head}{style}{scripts}</head><body>{block}</body></html>'
    (folder / "index.html").write_text(page, encoding="utf-8")


class _QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        """Say nothing of each request."""


@contextmanager
def serve(folder: Path) -> Iterator[str]:
    """Serve the folder on this machine; the address of its index.html."""
    handler = functools.partial(_QuietHandler, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/"
        finally:
            server.shutdown()
            thread.join()
