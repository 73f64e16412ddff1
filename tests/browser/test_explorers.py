"""Every explorer in a real JupyterLab: shown in light and dark, each dial moved by keyboard, bad input, buttons."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from helpers import widgets
from helpers.widgets.explorer import Explorer
from tests.browser.desk import VIEWPORT

OFFERED = {name: getattr(widgets, name) for name in widgets.__all__}  # classes and functions
EXPLORERS = sorted(name for name, one in OFFERED.items() if isinstance(one, type) and issubclass(one, Explorer))
SETUP = """
from helpers.predict.time.data_parallel import simulate_ddp_step
from helpers.records import Timeline
from helpers.specs import Plan
from helpers.widgets import *

def run(backward, *, world_size, **options):
    if world_size > 4:
        raise RuntimeError(f"there are no {world_size} ranks here")
    step = simulate_ddp_step(backward, world_size=world_size, **options)
    return Timeline(spans=step.spans, source="emulated", title=step.title)
"""
# From a plan on one rank some dials do nothing: ZeRO needs DP, sequence parallelism TP, selective recompute scores.
SPREAD = """explorer = MemoryExplorer()
explorer.show("llama3-8b", "H100", Plan(
    dp=4, tp=8, pp=16, cp=2, zero=1, micro_batch=2, num_microbatches=4, attention="materialized"
))
explorer"""
TIGHT = """explorer = MemoryExplorer()
explorer.show("llama3-8b", "H100", Plan(dp=8))
explorer"""
CELLS = {"setup": SETUP} | {name: f"{name}()" for name in EXPLORERS}
CELLS |= {"spread": SPREAD, "tight": TIGHT, "free": 'MemoryExplorer("free")'}
CELLS |= {"runs": "OverlapExplorer(run=run)"}
COUNTED = """explorer, drawn = StrategyExplorer(), []
explorer.widget.html.observe(lambda _: drawn.append(explorer.nodes.value), names="value")
explorer"""
# Its pictures wait while the slider is in the hand: the test makes the file when it lets go.
SLOW = """import time
from pathlib import Path
from helpers.draw import Scene
from helpers.widgets.controls import dial
from helpers.widgets.explorer import Explorer

drawn, let_go = [], Path("let_go")
class Slow(Explorer):
    scene = Scene(height=50, title="slow", summary="Nothing.")
    @property
    def sentence(self):
        drawn.append(self.dials[0].value)
        begin = time.monotonic()
        while self.dials[0].value and not let_go.exists() and time.monotonic() < begin + 60:
            time.sleep(0.01)
        return f"This is number {self.dials[0].value}."
Slow([dial(range(100), 0, "number")])"""
CELLS |= {"counted": COUNTED, "slow": SLOW}
CHUNKED = """explorer = PipelineExplorer("interleaved")
explorer.ranks.value, explorer.microbatches.value = 2, 12  # one option further ranks still divide the micro-batches
explorer"""
CELLS |= {"chunked": CHUNKED}
# A Llama-3 70B fits, the next larger model does not.
CELLS |= {"scaled": 'ScalingExplorer("llama2-7b", gpus=128, batch=512, tp=2, pp=2)'}
ALL_DIALS_ACT = {"MemoryExplorer": "spread", "PipelineExplorer": "chunked", "ScalingExplorer": "scaled"}


def shown(notebook, cell):
    """Run this cell; what it shows, and the html that it redraws: its sentence and its picture."""
    notebook.run(cell)
    output = notebook.cell(cell).locator(".jp-Cell-outputArea")
    picture = output.locator(".widget-html-content").filter(has=notebook.page.locator("svg, p[role=alert]")).first
    picture.locator("svg").first.wait_for()
    return output, picture


def dials_of(cell) -> tuple:
    """The dials that this cell shows, as Python has them."""
    space: dict = {}
    exec(f"{SETUP}\n{CELLS[cell].removesuffix('explorer')}", space)
    return space["explorer"].dials if "explorer" in space else eval(CELLS[cell], space).dials


def says(picture, words):
    """Wait until the sentence holds these words."""
    picture.locator("p").filter(has_text=words).wait_for()


# What of a dial or a picture reaches beyond the right end of the output.
CUT = """output => [...output.querySelectorAll(".widget-inline-hbox, .widget-readout, svg")]
    .filter(one => one.getBoundingClientRect().right > output.getBoundingClientRect().right + 1).length"""


def test_they_are_shown_in_light_and_dark_and_where_the_page_is_narrow(notebook):
    outputs = {name: shown(notebook, name)[0] for name in EXPLORERS}
    notebook.theme("dark")
    for output in outputs.values():
        output.locator("svg").first.wait_for()
    for name, output in outputs.items():
        notebook.pictures(name, output)
    try:
        notebook.page.set_viewport_size(VIEWPORT | {"width": 700})
        assert {name: output.evaluate(CUT) for name, output in outputs.items()} == dict.fromkeys(outputs, 0)
    finally:
        notebook.page.set_viewport_size(VIEWPORT)


@pytest.mark.parametrize("cell", [ALL_DIALS_ACT.get(name, name) for name in EXPLORERS])
def test_each_dial_moves_the_picture_by_keyboard(cell, notebook):
    output, picture = shown(notebook, cell)
    # An example sets all the other dials: it has its own test. Fields are typed into: so have they.
    dials = [dial for dial in dials_of(cell) if hasattr(dial, "options") and dial.description != "example"]
    assert len(dials) > 2
    for dial in dials:
        handle = notebook.dial(dial.description, output)
        for key in there_and_back(dial):  # back, since one dial may leave another nothing to choose
            notebook.press(handle, key, picture)
            assert not picture.get_by_role("alert").count(), f"{dial.description}: {picture.inner_text()}"


def there_and_back(dial) -> list[str]:
    """Keys for one option further and back; the other way round where the dial starts at its end.

    The arrows of a closed list belong to JupyterLab (they choose a cell), so a list is opened with Space first.
    """
    keys = ["ArrowRight", "ArrowLeft"]
    if dial.kind == "list":
        keys = ["Space ArrowDown Enter", "Space ArrowUp Enter"]
    return keys[::-1] if dial.index == len(dial.options) - 1 else keys


def test_what_a_dragged_slider_passed_over_is_not_drawn(notebook, lab):
    """A hundred numbers in one pull: after the picture that is being drawn comes the one of the last number."""
    output, picture = shown(notebook, "slow")
    notebook.drag("number", output)
    assert notebook.reads("number", output) == "99"
    (lab.work / "let_go").touch()
    says(picture, "This is number 99.")
    on_the_way, last = notebook.ask("[number for number in drawn if number]")
    assert on_the_way < 99 and last == 99


def test_an_advice_is_given_only_where_the_slider_is_let_go(notebook):
    """It can take a second, so each one on the way would be waited for."""
    output, picture = shown(notebook, "counted")
    notebook.drag("nodes", output)
    picture.locator("svg").get_by_text("on 1024 nodes").first.wait_for(state="attached")
    assert notebook.ask("drawn") == [1024]


def test_the_collective_explorer_steps_and_plays(notebook):
    output, picture = shown(notebook, "CollectiveExplorer")
    says(picture, "Step 1 of 6")
    output.get_by_role("button", name="next").click()
    says(picture, "Step 2 of 6")
    notebook.press(notebook.dial("step", output), "ArrowRight", picture)
    says(picture, "Step 3 of 6")
    output.locator(".widget-play button").first.click()
    says(picture, "Step 5 of 6")  # by itself
    output.get_by_role("button", name="all steps").click()
    says(picture, "The busiest rank sends")
    output.get_by_text("As a table").click()
    output.get_by_role("cell", name="4 of 4").first.wait_for()


def test_what_cannot_be_gets_a_sentence_and_keeps_its_dials(notebook):
    output, picture = shown(notebook, "MemoryExplorer")
    dial = notebook.dial("TP", output)
    notebook.press(dial, "ArrowRight ArrowRight", picture)
    check_refused(output, picture, "tp=3 does not divide num_heads=32")
    notebook.screenshot("bad-TP.png", output)
    notebook.press(dial, "Home", picture)
    check_drawn(picture)


def check_refused(output, picture, words):
    """The sentence stands above the last picture, which is pale; the dials stay."""
    picture.get_by_role("alert").filter(has_text=words).wait_for()
    assert picture.locator("svg").count() == picture.locator("[inert] svg").count() == 1
    assert output.locator(".noUi-handle:visible").count() > 3
    assert output.get_by_role("button", name="Make it fit").is_disabled()


def check_drawn(picture):
    picture.locator("svg").first.wait_for()
    assert picture.get_by_role("alert").count() == 0


def test_typed_numbers_move_the_picture_and_bad_ones_get_a_sentence(notebook):
    output, picture = shown(notebook, "free")
    for name, number in {"layers": 12, "hidden": 4096, "vocabulary": 32_000}.items():
        field = notebook.dial(name, output)
        field.fill(str(number))
        notebook.press(field, "Enter", picture)
        check_drawn(picture)
    bad = (("layers", 0, "num_layers is 0"), ("heads", 3, "num_heads=3 does not divide hidden=4096"))
    for name, number, words in bad:
        field = notebook.dial(name, output)
        good = field.input_value()
        field.fill(str(number))
        notebook.press(field, "Enter", picture)
        check_refused(output, picture, words)
        field.fill(good)
        notebook.press(field, "Enter", picture)
        check_drawn(picture)


def test_make_it_fit_is_pressed_by_keyboard(notebook):
    output, picture = shown(notebook, "tight")
    says(picture, "It does not fit: it needs 174 GB")
    button = output.get_by_role("button", name="Make it fit")
    notebook.press(button, "Enter", picture)
    says(picture, re.compile("^It fits"))
    assert button.is_disabled()
    assert notebook.reads("ZeRO stage", output) == "3"
    notebook.screenshot("MemoryExplorer-fits.png", output)


def test_an_example_sets_the_other_dials(notebook):
    output, picture = shown(notebook, "MemoryExplorer")
    notebook.press(notebook.dial("example", output), "Space ArrowDown Enter", picture)
    picture.locator("svg").get_by_text("on 1 x V100").first.wait_for(state="attached")
    assert notebook.reads("micro-batch", output) == "8"
    assert notebook.dial("example", output).input_value() == "GPT-2 on one V100"


def test_run_it_draws_what_ran_below_what_was_predicted(notebook):
    output, picture = shown(notebook, "runs")
    button = output.get_by_role("button", name="Run it")
    notebook.press(button, "Enter", picture)
    says(picture, re.compile(r"Exposed: predicted (.+), emulated \1\."))
    notebook.screenshot("OverlapExplorer-run.png", output)
    notebook.press(notebook.dial("ranks", output), "ArrowRight", picture)
    says(picture, re.compile("All 8 ranks do the same; 4 are shown.$"))  # nothing ran with these dials yet
    button.click()
    failure = output.get_by_role("alert")
    failure.filter(has_text="there are no 8 ranks here").wait_for()
    check_drawn(picture)
    notebook.press(notebook.dial("ranks", output), "ArrowLeft", picture)
    says(picture, "emulated")  # each setting keeps its run
    failure.wait_for(state="detached")


def test_the_advice_is_downloaded_as_a_page_to_print(notebook):
    output, picture = shown(notebook, "StrategyExplorer")
    notebook.press(notebook.dial("network", output), "Home", picture)
    says(picture, "(Many nodes, and a slow network): DP + TP + PP with ZeRO-1.")
    output.get_by_text("As a table").click()
    output.get_by_role("cell", name=re.compile("^Does not fit: 1.15 TB per rank")).wait_for()
    notebook.pictures("StrategyExplorer-table", output)
    with notebook.page.expect_download() as download:
        output.get_by_role("link", name="A page to print").click()
    page = download.value
    assert page.suggested_filename == "strategy.html"
    assert "Many nodes, and a slow network" in Path(page.path()).read_text(encoding="utf-8")


def test_a_card_is_chosen_by_a_click_and_by_enter(notebook):
    output, picture = shown(notebook, "MeshExplorer")
    card = picture.locator('[data-pick="6"]')
    card.click()
    says(picture, "Rank 6 holds")
    assert notebook.reads("rank", output) == "6"
    for keys, rank in (("ArrowLeft ArrowUp Enter", 4), ("End Enter", 7), ("Home Space", 0)):
        for key in keys.split():
            notebook.page.keyboard.press(key)
        says(picture, f"Rank {rank} holds")  # and the focus is on its card again
        notebook.page.wait_for_function("rank => document.activeElement.dataset.pick === String(rank)", arg=rank)
    notebook.press(notebook.dial("ZeRO stage", output), "End", picture)
    card.click(force=True)  # a pale picture answers nothing
    picture.get_by_role("alert").wait_for()
    assert notebook.reads("rank", output) == "0"
