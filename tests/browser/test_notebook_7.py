"""The widgets in Jupyter Notebook 7, which comes with nbgrader and is served beside JupyterLab; skipped without it."""

from __future__ import annotations

import pytest

from tests.browser.desk import OUTSIDE
from tests.browser.notebook import HAS_RUN, IS_READY, RUN_ALL

CELLS = {
    "explorer": "from helpers.widgets import CollectiveExplorer\nCollectiveExplorer()",
    "timeline": """from helpers.records import Span, Timeline
from helpers.widgets import TimelineExplorer
span = Span(rank=0, lane="compute", name="head", kind="forward", start=0.0, end=1.0)
TimelineExplorer(Timeline(spans=[span], source="recorded"))""",
    "guess": 'from helpers.widgets import guess\nguess("how many bytes?", unit="B", key="made.seven")',
    "ranks": "from helpers.ranks import Ranks\nranks = Ranks(2)",
    "told": "%%ranks\nprint(f'I am rank {rank}')",
}


@pytest.fixture
def page(desk, lab):
    """A tab with these cells, which have run, in Notebook 7; what went wrong since is in `page.complaints`."""
    pytest.importorskip("notebook", reason="Notebook 7 is not installed: `make test` brings it, with nbgrader")
    page, path = desk.page.context.new_page(), lab.write("seven.ipynb", **CELLS)
    page.goto(f"{lab.address}/notebooks/{path}?token={lab.token}")
    page.wait_for_function(IS_READY, arg=path, timeout=60_000)
    page.complaints = []  # Notebook 7 may say something while it starts, before there is anything of ours
    # Notebook 7 writes errors of its own to the console; those of ours are about a widget or its model.
    page.on("console", lambda message: page.complaints.extend(_about_widgets(message)))
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    page.on("request", lambda request: OUTSIDE.match(request.url) and page.complaints.append(request.url))
    page.evaluate(RUN_ALL)
    page.wait_for_function(HAS_RUN, timeout=60_000, polling=250)
    yield page
    page.close()


def _about_widgets(message) -> list[str]:
    is_ours = any(word in message.text.lower() for word in ("widget", "model"))
    return [message.text[:500]] if message.type == "error" and is_ours else []


def test_the_widgets_and_the_ranks_work_in_notebook_7(page):
    explorer, timeline, guess, _, told = (page.locator(".jp-Cell").nth(place) for place in range(len(CELLS)))
    assert "I am rank 1" in told.inner_text()
    explorer.get_by_text("Step 1 of 6").first.wait_for()
    dial = explorer.locator(".widget-inline-hbox").filter(has=page.get_by_text("ranks", exact=True))
    dial.locator(".noUi-handle").press("End")  # Notebook 7 keeps the arrow keys for itself: they fold headings
    explorer.get_by_text("Step 1 of 14").first.wait_for()
    timeline.locator(".rr-scroller canvas").wait_for()
    guess.locator("input").first.fill("16")
    guess.locator("input").first.press("Enter")
    guess.get_by_text("Your guess: 16 B.").first.wait_for()
    assert not page.complaints, page.complaints
