"""The web edition as a reader has it: in Chromium, from a static server, in a sub-folder, without any other host."""

from __future__ import annotations

import html
import random
import re
import sys

import pytest
from axe_playwright_python.sync_playwright import Axe

from helpers.interview import answers
from helpers.widgets.explorer import Explorer
from tests.browser import chromium
from tests.browser.book import ROOT, Book, build, install_pyodide, served

sys.path.insert(0, str(ROOT / "tools" / "book"))
from explorer_block import explorer_of, stored  # noqa: E402

CHAPTERS = sorted(path.stem for path in (ROOT / "notebooks").glob("[0-9]*.ipynb"))
WITH_EXPLORER = [*CHAPTERS, "interview"]
MOST_BYTES = 2_000_000  # of a chapter, before the first touch of a dial
PHONE = {"width": 360, "height": 740}
OVERFLOWS = "() => document.documentElement.scrollWidth - window.innerWidth"
# What stays hidden until a question is answered: the text of every row that is visible although no one has guessed.
GIVEN_AWAY = """() => [...document.querySelectorAll("details.rr-answer, .rr-row")]
    .filter(each => each.open || each.matches(".rr-row") && each.checkVisibility()).map(each => each.textContent)"""


@pytest.fixture(scope="module")
def browser():
    """Chromium, which makes a fresh profile for each test that asks for one."""
    if reason := chromium.why_not():
        pytest.skip(reason)
    from playwright.sync_api import sync_playwright

    from tests.browser.desk import ARGUMENTS

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium.PATH, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def page(browser):
    """A tab whose browser has stored nothing; an error of a script fails the test."""
    context = browser.new_context()
    page, errors = context.new_page(), []
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    context.close()
    assert not errors


@pytest.fixture(scope="module")
def book(tmp_path_factory):
    """The built pages."""
    folder = tmp_path_factory.mktemp("site")
    install_pyodide(folder / "pyodide")  # or a sentence on why the tests are skipped
    printed = build(folder)
    assert not printed, "Sphinx warns of nothing"
    with served(folder) as book:
        yield book
        assert not book.missing


def test_every_page_is_there_and_fits_a_phone(book, page):
    assert {f"{prefix}{name}.html" for name in CHAPTERS for prefix in ("", "zh/")} <= set(book.pages)
    page.goto(book.url + "index.html")
    page.set_viewport_size(PHONE)
    for path in book.pages:
        page.goto(book.url + path, wait_until="domcontentloaded")
        assert page.evaluate(OVERFLOWS) <= 0, path


def test_a_chapter_asks_one_host_for_few_bytes(book, page):
    sizes = {}
    page.on("response", lambda answer: sizes.update({answer.url: int(answer.headers.get("content-length", 0))}))
    for name in CHAPTERS:
        sizes.clear()
        page.goto(f"{book.url}{name}.html")
        assert all(url.startswith(book.url) for url in sizes), "another host"
        assert not any("pyodide" in url for url in sizes), "Python before a dial was touched"
        assert sum(sizes.values()) <= MOST_BYTES, name


def test_every_link_of_every_page_leads_somewhere(book):
    wrong = []
    for path in book.pages:
        text = (book.folder / path).read_text(encoding="utf-8")
        for target in re.findall(r'(?:href|src)="([^"#?]+)[^"]*"', text):
            if not re.match(r"[a-z]+:|//", target) and not (book.folder / path).parent.joinpath(target).exists():
                wrong.append(f"{path}: {target}")
            if target.startswith("/"):
                wrong.append(f"{path}: {target} is not relative")
    assert not wrong


# -- guesses ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("media", ["screen", "print"])
def test_no_answer_is_visible_before_a_guess(book, page, media):
    page.emulate_media(media=media)
    for path in book.pages:
        page.goto(book.url + path)
        assert page.evaluate(GIVEN_AWAY) == [], path


def test_a_guess_opens_its_answer_and_stands_in_one_row_with_the_results(book, page):
    page.goto(book.url + "03_ddp.html")
    question = page.locator('.rr-guess[data-key="03.messages"]')
    question.locator("input").fill("five")
    question.locator("button[type=submit]").click()
    assert "five" in question.locator("[role=alert]").text_content(), "a sentence, and nothing is lost"
    question.locator("input").fill("5")
    question.locator("button[type=submit]").click()
    row = page.locator('.rr-row[data-key="03.messages"]')
    assert row.is_visible()
    assert row.locator("div").first.text_content().split() == ["your", "guess", "5"]
    assert row.locator("span").all_text_contents()[0:1] == ["your guess"]
    assert len(row.locator("span").all_text_contents()) >= 2, "the guess and what was found"
    page.reload()
    assert page.locator('.rr-row[data-key="03.messages"]').is_visible(), "the browser has kept the guess"
    assert "5" in page.locator(".rr-my-guesses .rr-guessed").text_content()


def test_two_answers_in_one_cell_open_when_both_questions_are_answered(book, page):
    page.goto(book.url + "12_fault_tolerance.html")
    answer = page.locator('details[data-key="12.restart 12.again"]')
    for key, is_open in (("12.restart", False), ("12.again", True)):
        page.locator(f'.rr-guess[data-key="{key}"] button:not([type=submit])').last.click()  # no idea
        assert answer.evaluate("one => one.open") == is_open


def test_the_search_shows_no_folded_answer(book, page):
    page.goto(book.url + "search.html?q=optimizer")
    page.wait_for_selector("#search-results li p.context")
    shown = " ".join(page.locator("#search-results").all_text_contents())
    folded = set()
    for name in CHAPTERS:
        text = (book.folder / f"{name}.html").read_text(encoding="utf-8")
        folded |= set(re.findall(r'<details class="rr-answer".*?<p>([^<]{40,})', text, re.DOTALL))
    assert folded, "there is something to hide"
    assert not [text for text in folded if text[:40] in shown]


def test_numbers_are_read_as_in_the_notebook(book, page):
    page.goto(book.url + "03_ddp.html")
    given = _numbers()
    read = """cases => cases.map(([given, unit]) => {
        try { return readNumber(given, unit, "12.3") } catch (error) { return error.message } })"""
    for case, found in zip(given, page.evaluate(read, given), strict=True):
        expected = _read(*case)
        assert found == (expected if isinstance(expected, str) else pytest.approx(expected)), case


def _read(given: str, unit: str) -> float | str:
    """The number, or the sentence that says why it is none."""
    try:
        return answers.read_number(given, unit, "en", "12.3")
    except ValueError as error:
        return str(error)


def _numbers() -> list[tuple[str, str]]:
    """Numbers as people type them, and what is none."""
    chance = random.Random(0)
    numbers = "5|1,000|1_000|2.5|3e4|about 7|~8.5|1/3|2 x 10^9|1,5|five||-4|12 k|3 million|1.234.5|６４|3 万".split("|")
    units = ["", " MB", " GiB", "GB", " ms", " s", " %", " Gbit", " Mb/s", " bytes", " parsecs"]
    asked = ["", "MB", "ms", "GB", "s"]
    return [(chance.choice(numbers) + chance.choice(units), chance.choice(asked)) for _ in range(300)]


# -- explorers -------------------------------------------------------------------------------------------------------
EXPLORER = re.compile(r'<div class="rr-explorer" data-source="(.*?)">.*?</script></div>', re.DOTALL)
# Dials of the MemoryExplorer that change nothing on one GPU, with which it starts.
WITHOUT_EFFECT = {"sequence_parallel", "num_microbatches", "zero"}
# Moves a control as a reader does, and waits until the picture is there.
MOVE = """async ([number, name, kind, value]) => {
    const place = document.querySelectorAll(".rr-explorer")[number];
    const control = place.querySelector(`[data-control="${name}"]`);
    const inputs = control.querySelectorAll("input, select");
    const input = inputs[kind === "buttons" ? value : 0];
    if (kind === "buttons" || kind === "checkbox") input.click();
    else if (kind === "list") input.selectedIndex = value;
    else input.value = value;
    for (const event of ["input", "change"]) input.dispatchEvent(new Event(event));
    while (place.hasAttribute("aria-busy")) await new Promise((done) => setTimeout(done, 2));
    return place.querySelector(".rr-progress").textContent;
}"""
IS_DRAWN = """([number, svg]) => {
    const expected = document.createElement("div");
    expected.innerHTML = svg;
    return document.querySelectorAll(".rr-picture")[number].innerHTML === expected.innerHTML;
}"""


def test_every_dial_of_every_explorer_draws_what_the_notebook_draws(book, page):
    """All explorers of the chapters stand on one page here, so that Python starts once."""
    found = {block: source for name in WITH_EXPLORER for block, source in _explorers(book, name)}
    chapter = (book.folder / "08_zero.html").read_text(encoding="utf-8")
    head, tail = chapter[: chapter.index("<article")], chapter[chapter.index("</article>") :]
    (book.folder / "all.html").write_text(f"{head}<article>{''.join(found)}{tail}", encoding="utf-8")
    page.goto(book.url + "all.html")
    for number, source in enumerate(found.values()):
        explorer = explorer_of(source, stored())
        for control in explorer.as_json()["controls"]:
            value = _other_value(control)
            if value is None or control["disabled"] or control["hidden"]:
                continue
            before = _shown(explorer)
            for now in (value, control["value"]):  # there and back, because another setting may switch a dial off
                where = f"{source.splitlines()[-2]}: {control['name']} = {now}"
                explorer.set(control["name"], now)
                has_effect = _shown(explorer) != before
                assert now != value or has_effect or control["name"] in WITHOUT_EFFECT, where
                assert page.evaluate(MOVE, [number, control["name"], control["kind"], now]) == "", where
                assert page.evaluate(IS_DRAWN, [number, explorer.as_json()["svg"]]), where
                assert page.locator(".rr-sentence").nth(number).text_content() == explorer.as_json()["sentence"], where


def test_every_explorer_of_the_chapters_is_live(book):
    assert {name: len(_explorers(book, name)) for name in WITH_EXPLORER} == dict.fromkeys(WITH_EXPLORER, 1)


def _shown(explorer: Explorer) -> tuple:
    """What a reader sees of an explorer besides its dials."""
    state = explorer.as_json()
    return state["svg"], state["sentence"], state["rows"]


def _explorers(book: Book, name: str) -> list[tuple[str, str]]:
    """The HTML and the code of each explorer of a page."""
    text = (book.folder / f"{name}.html").read_text(encoding="utf-8")
    return [(match[0], html.unescape(match[1])) for match in EXPLORER.finditer(text)]


def _other_value(control: dict) -> object:
    """Another value than that of the control; None if there is none."""
    value = control["value"]
    if control["kind"] in ("slider", "list", "buttons"):
        return (value + 1) % len(control["options"]) if len(control["options"]) > 1 else None
    if control["kind"] == "checkbox":
        return not value
    if control["kind"] in ("steps", "number"):
        return next((one for one in (value + 1, value - 1) if control["min"] <= one <= control["max"]), None)
    return None


# -- without scripts, and for everybody ------------------------------------------------------------------------------
def test_a_page_is_readable_without_scripts(book, browser):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(book.url + "08_zero.html")
    assert page.locator(".rr-explorer .rr-picture svg").first.is_visible()
    assert page.locator("details.rr-answer[open]").count() == 0
    page.locator("details.rr-answer summary").first.click()
    assert page.locator("details.rr-answer[open]").count() == 1
    context.close()


@pytest.mark.parametrize(
    ("path", "scheme", "width"),
    [
        ("index.html", "light", 1100),
        ("03_ddp.html", "dark", 1100),
        ("05_memory.html", "light", 360),
        ("zh/08_zero.html", "dark", 1600),
        ("interview.html", "light", 1100),
        ("quiz.html", "dark", 360),
    ],
)
def test_axe_finds_nothing(book, page, path, scheme, width):
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(book.url + path)
    page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    found = Axe().run(page).response["violations"]
    assert not [f"{one['impact']} {one['id']}: {one['nodes'][0]['html'][:200]}" for one in found]
