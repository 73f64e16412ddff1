"""A guess in a real JupyterLab: typed and clicked, its result opens by itself, and it is kept when reopened."""

from __future__ import annotations

from tests.browser.notebook import opened

SETUP = """
import os
os.environ["RANKS_HOME"] = {home!r}
os.environ.pop("RANKS_UNATTENDED", None)
from helpers.draw import Part, parts_scene
from helpers.widgets import ZeroExplorer, guess, my_guesses, reveal, votes
from helpers.learner.words import use_language
PARTS = [Part(text="weights", kind="parameters", size=7)]
SCENE = parts_scene({{"a rank": PARTS}}, title="What a rank stores", ends={{"a rank": "7 MB"}})
"""
CELLS = {
    "bytes": 'guess("bytes per parameter on each rank", unit="B", kind="memory", key="made.bytes")',
    "bytes-shown": 'reveal("made.bytes", SCENE, "Four, one and two make **seven**.", predicted=7.0, measured=7)',
    "shrink": 'guess("do activations shrink, too?", choices=["yes, by 4", "a little", "no"], key="made.shrink")',
    "shrink-shown": 'reveal("made.shrink", predicted="no")',
    "walk": 'guess("put them in order", order=["gather 1", "gather 2", "reduce 2", "reduce 1"], key="made.walk")',
    "walk-shown": 'reveal("made.walk", predicted=["gather 1", "gather 2", "reduce 2", "reduce 1"])',
    "step": 'guess("how long does the step take?", unit="ms", between=True, kind="time", key="made.step")',
    "step-shown": 'reveal("made.step", ZeroExplorer(), predicted=20.0, measured=21.3)',
    "folded": 'reveal("made.never", SCENE, predicted=7.0)',
    "zh": 'with use_language("zh"):\n    asked = guess("多少字节？", unit="B", key="made.zh")\nasked',
}  # fmt: skip


def notebook_at(lab, home) -> str:
    return lab.write("guesses.ipynb", setup=SETUP.format(home=str(home)), **CELLS)


def shown(notebook, cell):
    notebook.run(cell)
    output = notebook.cell(cell).locator(".jp-Cell-outputArea")
    output.locator(".rr-guess").first.wait_for()
    return output


def test_guesses_are_answered_and_kept(lab, desk, tmp_path):
    path = notebook_at(lab, tmp_path)
    with opened(desk, path) as notebook:
        notebook.run("setup")
        outputs = {cell: shown(notebook, cell) for cell in CELLS}
        assert all("Your guess first." in outputs[f"{key}-shown"].inner_text() for key in ("bytes", "shrink", "walk"))
        notebook.pictures("guess-asked", outputs["bytes"])
        type_a_number(notebook, outputs)
        choose(notebook, outputs)
        put_in_order(notebook, outputs)
        type_a_range(notebook, outputs)
        click_the_fold(outputs["folded"])
        for theme in ("light", "dark"):
            notebook.theme(theme)
            notebook.screenshot(f"guesses-{theme}.png")
        for output in outputs.values():
            assert_nothing_is_cut(output)
    with opened(desk, path) as notebook:
        notebook.run("setup")
        kept, result = shown(notebook, "bytes"), shown(notebook, "bytes-shown")
        kept.get_by_text("Your guess: 6 B.").wait_for()
        assert kept.locator("input:visible").count() == 0
        result.get_by_text("14.3 % too low").wait_for()


def type_a_number(notebook, outputs) -> None:
    field = outputs["bytes"].locator("input[type=text]")
    field.fill("sixty,4")
    field.press("Enter")
    outputs["bytes"].locator("[role=alert]").wait_for()
    field.fill("6 bytes")
    field.press("Enter")
    outputs["bytes"].get_by_text("Your guess: 6 B.").wait_for()
    outputs["bytes-shown"].locator("svg[role=img]").first.wait_for()  # by itself
    assert "14.3 % too low" in outputs["bytes-shown"].inner_text()
    notebook.pictures("guess-revealed", outputs["bytes-shown"])


def choose(notebook, outputs) -> None:
    outputs["shrink"].get_by_label("a little").check()
    outputs["shrink"].get_by_role("button", name="That is my guess").click()
    outputs["shrink-shown"].get_by_text("Not this one.").wait_for()


def put_in_order(notebook, outputs) -> None:
    for name in ("gather 1", "gather 2", "reduce 2", "reduce 1"):
        outputs["walk"].get_by_role("button", name=name, exact=True).press("Enter")
        outputs["walk"].get_by_role("button", name=f"· {name}").wait_for()
    notebook.pictures("guess-order", outputs["walk"])
    outputs["walk"].get_by_role("button", name="That is my guess").press("Enter")
    outputs["walk-shown"].get_by_text("Right.").wait_for()


def type_a_range(notebook, outputs) -> None:
    low, high = (outputs["step"].locator("input[type=text]").nth(place) for place in (0, 1))
    low.fill("10")
    high.fill("0.03 s")
    outputs["step"].get_by_role("button", name="That is my guess").click()
    outputs["step-shown"].get_by_text("Your range contains the answer.").wait_for()
    outputs["step-shown"].locator(".rr-explorer svg[role=img]").first.wait_for()


def click_the_fold(output) -> None:
    output.get_by_role("button", name="Show it without a guess").click()
    output.get_by_text("not guessed").wait_for()
    output.locator("svg[role=img]").first.wait_for()


def assert_nothing_is_cut(output) -> None:
    """Nothing of ours is wider than the cell's output; its own letters have 12 pixels at least."""
    wide = output.evaluate(
        "node => [...node.querySelectorAll('.rr-guess p, .rr-row b, .rr-row span, .rr-guess button, .rr-guess label')]"
        ".filter(one => one.offsetParent && (one.scrollWidth > one.clientWidth + 1 && one.clientWidth"
        " || parseFloat(getComputedStyle(one).fontSize) < 12)).map(one => one.outerHTML.slice(0, 200))"
    )
    assert not wide, "\n".join(wide)
