"""Builds the web edition once, and serves it in a sub-folder of a static server that notes what it was asked."""

from __future__ import annotations

import functools
import http.server
import subprocess
import sys
import threading
import urllib.error
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


class Book:
    """The pages and their server. url: of the first page. missing: paths that were asked for and are not there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.missing: list[str] = []
        self.url = ""

    @property
    def pages(self) -> list[str]:
        """The paths of all pages that readers reach from the navigation, relative to `url`."""
        skipped = {"search.html", "genindex.html"}
        paths = [path.relative_to(self.folder) for path in sorted(self.folder.rglob("*.html"))]
        return [path.as_posix() for path in paths if path.name not in skipped and "_static" not in path.parts]


@contextmanager
def served(folder: Path) -> Iterator[Book]:
    """The folder "book" within `folder`, served."""
    book = Book(folder / "book")

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Keep what was asked out of the output of the tests."""

        def send_error(self, code: int, *rest: object) -> None:
            book.missing.append(f"{code} {self.path}")
            super().send_error(code, *rest)

    handler = functools.partial(Handler, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        book.url = f"http://127.0.0.1:{server.server_address[1]}/book/"
        yield book
        server.shutdown()


def install_pyodide(folder: Path) -> None:
    """Put Pyodide's files into the folder; skips the test where the book's libraries or the download are missing."""
    pytest.importorskip("latex2mathml", reason="the libraries for the book are not installed: run make book")
    from tools.book import pyodide

    try:
        pyodide.install_pyodide(folder, ROOT / "build")
    except (urllib.error.URLError, TimeoutError) as error:
        pytest.skip(f"Pyodide cannot be downloaded here: {error}")


def build(folder: Path) -> str:
    """Build the web edition in the folder "book" within `folder`. Returns what the command printed."""
    command = [sys.executable, ROOT / "tools" / "book" / "build.py", "--out", folder / "book"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr
