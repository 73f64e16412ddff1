"""What a candidate waits for: the quiz to start, and the next card, in a terminal's process and in JupyterLab.

`python -m benchmarks.interview`. Goal of the issue: card to card in 100 ms. In the page the time runs from the click
to the frame that shows the next question; a learner of two years stands behind the progress file of 10,000 answers.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from benchmarks.browser import CHROMIUM, row
from benchmarks.paired import write_table
from helpers.interview import Quiz, load_all
from helpers.learner import progress
from tests.browser.notebook import chromium, opened
from tests.browser.server import serve

NUM_ANSWERS, NUM_CARDS, STARTS = 10_000, 60, 5
RATINGS = ("again", "hard", "good", "easy")
NEXT_CARD = """async count => {
    const view = document.querySelector(".rr-sitting"), times = [];
    const button = name => [...view.querySelectorAll("button")]
        .find(one => one.textContent.trim() === name && one.offsetParent);
    const question = () => view.querySelector(".rr-question").textContent;
    const until = async shown => { while (!shown()) await new Promise(requestAnimationFrame); };
    for (let number = 0; number < count; number++) {
        const before = question();
        button("Show the answer").click();
        await until(() => button("good"));
        button("good").click();
        await until(() => button("Next"));
        const began = performance.now();
        button("Next").click();
        await until(() => question() !== before && button("Show the answer"));
        times.push(performance.now() - began);
    }
    return times;
}"""


def write_answers(file: Path) -> None:
    """A progress file of `NUM_ANSWERS` answers over two years, to cards of the bank."""
    chance, names = random.Random(0), [card.id for card in load_all()]
    start, step = datetime.now(UTC) - timedelta(days=730), timedelta(days=730) / NUM_ANSWERS
    for number in range(NUM_ANSWERS):
        rating = chance.choice(RATINGS)
        name, when = chance.choice(names), start + number * step
        progress.record("quiz", name, rating != "again", path=file, when=when, rating=rating, form="folded")


def starts(home: Path) -> list[float]:
    """Milliseconds of `python -m helpers quiz` up to its first question and its end."""
    times = []
    for _ in range(STARTS):
        began = time.perf_counter()
        command = [sys.executable, "-m", "helpers", "quiz"]
        own = os.environ | {"HOME": str(home)}
        subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=True, env=own)
        times.append(1e3 * (time.perf_counter() - began))
    return times


def cards(file: Path) -> list[float]:
    """Milliseconds from an answer to the next question, the answer written down in between."""
    quiz, times = Quiz(path=file, form="folded", ahead=True), []
    for _ in range(NUM_CARDS):
        began = time.perf_counter()
        quiz.answer("good")
        assert quiz.question is not None
        times.append(1e3 * (time.perf_counter() - began))
    return times


def cards_in_the_browser(folder: Path, file: Path) -> list[float]:
    source = f"from helpers.widgets import QuizView\nview = QuizView(form='folded', path={str(file)!r})\n"
    source += "view.ahead()  # whatever is due\nview"
    with serve(folder) as lab, chromium(CHROMIUM, folder / "profile") as browser:
        with opened(browser, lab, lab.write("quiz.ipynb", source)) as notebook:
            notebook.run("cell-0")
            notebook.page.locator(".rr-question").wait_for()
            return notebook.page.evaluate(NEXT_CARD, NUM_CARDS // 2)


def main() -> int:
    if CHROMIUM is None:
        print("There is no Chromium here: install Debian's package chromium.", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        file = folder / "long" / ".rank-by-rank" / "progress.jsonl"
        began = time.perf_counter()
        bank = load_all()  # the first time: later the cards are there
        read = 1e3 * (time.perf_counter() - began)
        write_answers(file)
        behind = f"{NUM_ANSWERS:,} answers behind"
        rows = [
            row(f"reading the bank, {len(bank)} cards", [read], "reported"),
            row("`python -m helpers quiz`, from nothing to its end, no answers behind", starts(folder / "new"), "1 s"),
            row(f"the same, {behind}", starts(file.parent.parent), "reported"),
            row(f"answer to next question, {behind}", cards(file), "100 ms"),
            row(f"JupyterLab: click to the next question, {behind}", cards_in_the_browser(folder, file), "100 ms"),
        ]
    print(write_table("interview", rows, "python -m benchmarks.interview").read_text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
