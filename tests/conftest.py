"""Fixtures that every test may use, the order of the files, and what is said at the end.

Ranks are started once a session: a test that needs ranks reuses them.
"""

from __future__ import annotations

import importlib
import os
import signal
import time

import cloudpickle
import pytest

# Before torch is loaded, and for every process that a test starts: its threads sleep while they wait for each other. By
# default they spin, and beside a second worker and its ranks a small model then trains ten times as slowly.
os.environ["OMP_WAIT_POLICY"] = "passive"
# With all modules below them: a rank gets what a test defines, as it gets what a cell of a notebook defines. Functions
# of tests/ranks are sent by name: they set variables of the engine, of which a rank would otherwise get a copy.
for _folder in ("chapters", "commands", "compose", "devices", "gpu", "observe", "parallel"):
    cloudpickle.register_pickle_by_value(importlib.import_module(f"tests.{_folder}"))
os.environ["RANKS_LANGUAGE"] = "en"  # whatever the one who runs the tests has chosen to read
# Two workers take a file each, so the longest ones come first; they end together if the last ones are short.
FIRST = (
    "notebooks/",
    "tests/browser/test_chapters.py",
    "tests/grading/",
    "tests/browser/",
    "tests/parallel/",
    "tests/ranks/",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=0, help="what slow tests draw from")
    parser.addoption("--device", choices=("cpu", "card"), default="cpu", help="card: tests/on_cards.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {name: place for place, name in enumerate(FIRST)}
    for item in items:
        if item.path.suffix == ".ipynb":  # nbval's; jupyter_client warns of its own event loops
            item.add_marker(pytest.mark.filterwarnings("default"))
    items.sort(key=lambda item: next((places[name] for name in FIRST if item.nodeid.startswith(name)), len(FIRST)))


class Load:
    """How busy the machine was: what a test took says little without it. Seen whenever a test ends."""

    def __init__(self) -> None:
        self.began, self.seen = time.monotonic(), [os.getloadavg()[0]]

    def pytest_runtest_logreport(self) -> None:
        self.seen.append(os.getloadavg()[0])

    def pytest_terminal_summary(self, terminalreporter) -> None:
        mean, most, minutes = sum(self.seen) / len(self.seen), max(self.seen), (time.monotonic() - self.began) / 60
        if minutes < 1:
            return
        words = f"now {self.seen[-1]:.1f}, mean {mean:.1f}, at most {most:.1f} on {os.cpu_count()} cores"
        terminalreporter.write_line(f"{minutes:.1f} minutes; load: {words}")


def pytest_terminal_summary(terminalreporter) -> None:
    """A rank that heard nothing any more: a check asks new ranks, so nothing failed, but it is a mistake of ours."""
    for report in terminalreporter.stats.get("passed", []):
        for _, text in report.sections:
            if "did not receive the task" in text:
                terminalreporter.write_line(f"{report.nodeid}: a rank was deaf\n{text}")


class Unattended:
    """Kernels of nbval run as where nobody is: a guess that an author declared wrongly raises."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item):
        with pytest.MonkeyPatch.context() as patch:
            if item.path.suffix == ".ipynb":
                patch.setenv("RANKS_UNATTENDED", "1")
            return (yield)


def pytest_configure(config: pytest.Config) -> None:
    # Ctrl-C is heard, here and in every process that a test starts, also where `&` in a script had it ignored.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.pluginmanager.register(Load())
    config.pluginmanager.register(Unattended())
    if config.getoption("--device") == "card":
        from tests import on_cards

        config.pluginmanager.register(on_cards.Table())


@pytest.fixture(scope="session")
def seed(request) -> int:
    """What a slow test draws from: `make test-slow SEED=3`; the table names it."""
    return request.config.getoption("--seed")


def make_ranks(num_ranks: int, device: str):
    if device == "card":
        from tests.on_cards import OnCards

        return OnCards(num_ranks, device="card", memory="500 MB", timeout=120, quiet=True)
    from helpers.ranks import Ranks

    return Ranks(num_ranks, device=device, timeout=120, quiet=True)


@pytest.fixture(scope="session")
def ranks(request):
    """Four ranks on CPU; `ranks[:1]`, `ranks[:2]` and `ranks[:3]` are warm smaller worlds."""
    with make_ranks(4, request.config.getoption("--device")) as pool:
        yield pool


@pytest.fixture(scope="session")
def cards():
    """Two ranks with a practice card each."""
    from helpers.ranks import Ranks

    with Ranks(2, device="card", memory="200 MB", timeout=120, quiet=True) as pool:
        yield pool


@pytest.fixture(params=[1, 2, 3, 4])
def world(request, ranks):
    """Ranks of each size from 1 to 4 in turn."""
    return ranks[: request.param]
