"""What a reader of the web edition waits for, in headless Chromium, from a server on this machine, with a cold cache.

`python -m benchmarks.web_edition`. All times are taken inside the page. A page is readable with its first paint. From
the touch of a dial to the moved picture counts the loading of Python the first time; afterwards each dial of an
explorer is moved in turn. Likewise for the quiz: from the press of Start to the first card, and from each reply to what
comes next.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

from benchmarks.paired import write_table
from tests.browser import chromium
from tests.browser.book import Book, build, served
from tests.browser.desk import ARGUMENTS

CHAPTERS = ("03_ddp", "08_zero", "interview")
MOVES, FRESH = 24, 5  # moves of dials, and fresh profiles
READABLE = """() => new Promise((done) => {
    const entry = performance.getEntriesByName("first-contentful-paint")[0];
    const observer = new PerformanceObserver((list) => done(list.getEntries()[0].startTime));
    if (entry) done(entry.startTime);
    else observer.observe({ type: "paint", buffered: true });
})"""
SENT = """() => [performance.getEntriesByType("navigation")[0], ...performance.getEntriesByType("resource")]
    .reduce((sum, each) => sum + each.transferSize, 0)"""
# Moves the dial with this number to another value, and returns milliseconds until the frame after the picture changed.
MOVE = """async (number) => {
    const place = document.querySelector(".rr-explorer");
    const dials = [...place.querySelectorAll(".rr-dial:not([hidden]) :is(input, select):not(:disabled)")];
    const dial = dials[number % dials.length];
    const began = performance.now();
    if (dial.matches("select")) dial.selectedIndex = (dial.selectedIndex + 1) % dial.options.length;
    else if (dial.matches("[type=checkbox], [type=radio]")) dial.click();
    else dial.value = Number(dial.value) < Number(dial.max) ? Number(dial.value) + 1 : dial.min;
    for (const event of ["input", "change"]) dial.dispatchEvent(new Event(event));
    while (place.hasAttribute("aria-busy")) await new Promise((done) => setTimeout(done, 1));
    await new Promise(requestAnimationFrame);
    return performance.now() - began;
}"""

# Replies to the quiz, which it starts first, and returns milliseconds until the frame after the next step is shown.
REPLY = """async () => {
    const place = document.querySelector(".rr-talk");
    const field = place.querySelector(".rr-sitting form input[type=text]");
    if (field) field.value = "1";
    const began = performance.now();
    const start = place.querySelector(".rr-start:not([hidden]) button");
    (start ?? place.querySelector(".rr-sitting [data-digit], .rr-sitting [type=submit]")).click();
    while (place.hasAttribute("aria-busy")) await new Promise((done) => setTimeout(done, 1));
    await new Promise(requestAnimationFrame);
    return performance.now() - began;
}"""


def row(what: str, values: list[float], unit: str, goal: str) -> dict[str, str]:
    """The median, with the largest beside it."""
    middle, largest = statistics.median(values), max(values)
    measured = f"{middle:,.0f} {unit}" + (f" (largest of {len(values)}: {largest:,.0f})" if values[1:] else "")
    print(f"{what}: {measured}", file=sys.stderr, flush=True)
    return {"what": what, "measured": measured, "goal": goal}


@contextmanager
def fresh(browser: Browser, book: Book, name: str) -> Iterator[Page]:
    """A chapter in a new profile, with nothing in its cache."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{book.url}{name}.html", wait_until="load")
    yield page
    context.close()


def measure(browser: Browser, book: Book) -> Iterator[dict[str, str]]:
    """The rows of the table."""
    for name in CHAPTERS:
        readable, sent, first = [], [], []
        for _ in range(FRESH):
            with fresh(browser, book, name) as page:
                readable.append(page.evaluate(READABLE))
                sent.append(page.evaluate(SENT) / 1e3)
                first.append(page.evaluate(MOVE, 0))
                moves = [page.evaluate(MOVE, number) for number in range(MOVES)]
        yield row(f"{name}: readable", readable, "ms", "1,000 ms (aim 500)")
        yield row(f"{name}: bytes before a dial is touched", sent, "kB", "2,000 kB (aim 1,000)")
        yield row(
            f"{name}: first touch of a dial to the picture",
            first,
            "ms",
            "6,000 ms (aim 3,500)",
        )
        yield row(f"{name}: a dial afterwards", moves, "ms", "100 ms (aim 40); the largest 250 (aim 120)")


def measure_quiz(browser: Browser, book: Book) -> Iterator[dict[str, str]]:
    """The rows of the quiz."""
    first, replies = [], []
    for _ in range(FRESH):
        with fresh(browser, book, "quiz") as page:
            first.append(page.evaluate(REPLY))
            replies += [page.evaluate(REPLY) for _ in range(MOVES)]
    yield row("quiz: press of Start to the first card", first, "ms", "6,000 ms")
    yield row("quiz: a reply to what comes next", replies, "ms", "300 ms")


def main() -> None:
    if reason := chromium.why_not():
        sys.exit(reason)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        start = time.monotonic()
        build(Path(folder))
        rows = [row("make book, after set-up", [time.monotonic() - start], "s", "180 s (aim 60)")]
        browser = driver.chromium.launch(executable_path=chromium.PATH, args=ARGUMENTS)
        with served(Path(folder)) as book:
            rows += [*measure(browser, book), *measure_quiz(browser, book)]
        browser.close()
    write_table("web_edition", rows, "python -m benchmarks.web_edition")


if __name__ == "__main__":
    main()
