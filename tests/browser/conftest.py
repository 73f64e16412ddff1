"""One JupyterLab and one Chromium for all browser tests; skipped where there is no Chromium.

`pytest tests/browser --screenshots FOLDER` keeps the pictures; otherwise they go to pytest's own temporary folder.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tools import lay_course

ROOT = Path(__file__).resolve().parents[2]
CHROMIUM = next((path for name in ("chromium", "google-chrome", "chrome") if (path := shutil.which(name))), None)
HERE = Path(__file__).parent


def pytest_addoption(parser):
    parser.addoption("--screenshots", type=Path, help="folder for the screenshots of the browser tests")


def pytest_collection_modifyitems(items):
    """Whatever is in this folder drives a browser."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.browser)
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.timeout(360))


@pytest.fixture(scope="package")
def lab(tmp_path_factory):
    """A running JupyterLab; its folder is a learner's fresh work/."""
    from tests.browser.server import serve

    if CHROMIUM is None:
        pytest.skip("there is no Chromium here: install Debian's package chromium")
    folder = tmp_path_factory.mktemp("lab")
    lay_course.lay(ROOT, folder / "work")
    with serve(folder) as lab:
        yield lab


# Not for the whole session: Playwright keeps an event loop running, and other tests start their own.
@pytest.fixture(scope="package")
def browser(lab, tmp_path_factory):
    pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    from tests.browser.notebook import chromium

    with chromium(CHROMIUM, tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture(scope="package")
def screenshots(request, tmp_path_factory) -> Path:
    # A run of all tests reads this file too late to know the option.
    chosen = request.config.getoption("--screenshots", default=None)
    return chosen.resolve() if chosen else tmp_path_factory.mktemp("screenshots")


@pytest.fixture(scope="module")
def shared(lab, browser, request):
    """The module's CELLS as one notebook, its cell `setup` run. A tab takes seconds to open, a cell a tenth of one."""
    from tests.browser.notebook import opened

    name = request.module.__name__.rpartition(".")[2]
    with opened(browser, lab, lab.write(f"{name}.ipynb", **request.module.CELLS)) as notebook:
        notebook.run("setup")
        yield notebook


@pytest.fixture
def notebook(shared):
    """`shared` in the light theme, and no complaint about it may be left when the test ends."""
    shared.theme("light")
    yield shared
    complaints = shared.take_complaints()
    assert not complaints, "\n".join(complaints)
