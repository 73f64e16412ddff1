"""JupyterLab in a tab of a real browser, where notebooks are opened one after the other; and what goes wrong there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import BrowserContext, ConsoleMessage, Page, Route, sync_playwright

from tests.browser.server import Lab

# These arguments opened JupyterLab 5 times of 5. The last four keep Chromium's own errands off the network.
ARGUMENTS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()
VIEWPORT = {"width": 1400, "height": 1000}
OUTSIDE = re.compile(r"^(?:https?|wss?|ftp)://(?!(?:127\.0\.0\.1|localhost)[:/])")
THEMES = {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}
BROKEN = ("Error displaying widget", "model not found")
# What JupyterLab says when a kernel is ended while it still asks it something, as when a notebook is closed early.
ENDED = "message before replies were done"

HAS_STARTED = "() => window.jupyterapp?.restored.then(() => true)"
SET_THEME = "theme => window.jupyterapp.commands.execute('apputils:change-theme', {theme})"
# JupyterLab fades a splash out for 200 ms; a second switch meanwhile throws in its own code.
HAS_THEME = """light => document.body.dataset.jpThemeLight === String(light)
    && !document.getElementById("jupyterlab-splash")"""


@contextmanager
def window(executable: str, folder: Path) -> Iterator[BrowserContext]:
    """Debian's Chromium with a fresh profile in `folder`; nothing is downloaded."""
    with sync_playwright() as driver:
        how = {"executable_path": executable, "headless": True, "args": ARGUMENTS, "viewport": VIEWPORT}
        context = driver.chromium.launch_persistent_context(folder, service_workers="block", **how)
        yield context
        context.close()


class Desk:
    """A tab with JupyterLab. `pictures`: the folder for screenshots; None takes none.

    complaints: console errors, exceptions of the page, requests that would have left the machine (they are stopped),
    and widgets that JupyterLab could not show. One sentence each; empty is good.
    """

    def __init__(self, browser: BrowserContext, lab: Lab, pictures: Path | None = None) -> None:
        self.page: Page = browser.new_page()
        self.pictures = pictures
        self._errors: list[str] = []
        self._outside: list[str] = []
        self._theme = ""
        self.page.on("console", self._hear)
        self.page.on("pageerror", lambda error: self._note(f"exception in the page: {error.stack or error}"))
        self.page.on("websocket", lambda socket: self._note_outside(socket.url))
        self.page.route(OUTSIDE, self._stop)
        self.page.goto(lab.url)
        self.page.wait_for_function(HAS_STARTED, timeout=60_000)

    def _hear(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self._note(f"console: {message.text[:500]} ({message.location.get('url', '')[:200]})")

    def _note(self, error: str) -> None:
        if ENDED not in error:
            self._errors.append(error)

    def _note_outside(self, url: str) -> None:
        if OUTSIDE.match(url):
            self._outside.append(f"a request left the machine: {url[:200]}")

    def _stop(self, route: Route) -> None:
        self._note_outside(route.request.url)
        route.abort()

    @property
    def complaints(self) -> list[str]:
        text = self.page.inner_text("body")
        broken = [f"JupyterLab shows {words!r}" for words in BROKEN if words.lower() in text.lower()]
        return self._errors + self._outside + broken

    def take_complaints(self) -> list[str]:
        """The complaints until now; they are not repeated."""
        found = self.complaints
        self._errors.clear()
        self._outside.clear()
        return found

    def theme(self, name: str) -> None:
        """Switch JupyterLab to its own light or dark theme."""
        if self._theme == name:
            return
        self._theme = name
        self.page.evaluate(SET_THEME, THEMES[name])
        self.page.wait_for_function(HAS_THEME, arg=name == "light")
