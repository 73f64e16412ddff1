"""One JupyterLab and one tab of Chromium for all browser tests of a process; skipped where there is no Chromium.

`pytest tests/browser --screenshots FOLDER` takes pictures on the way and keeps them there.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.browser import chromium
from tools import lay_course

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent


def pytest_addoption(parser):
    parser.addoption("--screenshots", type=Path, help="folder for pictures that the browser tests take on the way")


def pytest_collection_modifyitems(items):
    """Whatever is in this folder drives a browser."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.browser)
            item.add_marker(pytest.mark.timeout(800))


@pytest.fixture(scope="package")
def lab(tmp_path_factory):
    """A running JupyterLab; its folder is a learner's fresh work/."""
    from tests.browser.server import serve

    if reason := chromium.why_not():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("lab")
    lay_course.lay(ROOT, folder / "work", outputs=True)
    with serve(folder) as lab:
        yield lab


# Not for the whole session: Playwright keeps an event loop running, and other tests start their own.
@pytest.fixture(scope="package")
def desk(lab, request, tmp_path_factory):
    """JupyterLab in a tab. Loading it takes seconds, so every notebook of this process is opened and closed in it."""
    from tests.browser.desk import Desk, window

    # A run of all tests reads this file too late to know the option.
    chosen = request.config.getoption("--screenshots", default=None)
    with window(chromium.PATH, tmp_path_factory.mktemp("profile")) as browser:
        yield Desk(browser, lab, chosen.resolve() if chosen else None)


@pytest.fixture(scope="module")
def shared(lab, desk, request):
    """The module's CELLS as one notebook, its cell `setup` run. A kernel starts in seconds, a cell in a tenth."""
    from tests.browser.notebook import opened

    name = request.module.__name__.rpartition(".")[2]
    with opened(desk, lab.write(f"{name}.ipynb", **request.module.CELLS)) as notebook:
        notebook.run("setup")
        yield notebook


@pytest.fixture
def notebook(shared):
    """`shared` in the light theme, and no complaint about it may be left when the test ends."""
    shared.theme("light")
    yield shared
    complaints = shared.desk.take_complaints()
    assert not complaints, "\n".join(complaints)
