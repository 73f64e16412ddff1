"""`make test ONLY=zero`: within a minute, the tests that name a topic in their file, folder or example.

The chapter's mutants, lab, cards and notebook are such examples; the browser and nbval are left out, and of worlds of
1 to 4 ranks it takes the one of 3. What is not begun after SECONDS is skipped and counted, since the minute counts more
here than the last test: `make test` runs them all.
"""

from __future__ import annotations

import re
import time
from functools import cached_property
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
HERE = ROOT / "tests"
SECONDS = 40.0  # from a worker's first test; the rest of the minute is for collecting and for the last test
# Their names tell no topic, their examples do.
ACROSS = (
    "grading/test_mutants.py",
    "interview/test_bank.py",
    "test_labs.py",
    "test_notebooks.py",
    "widgets/test_every_widget.py",
)
LEFT_OUT = {"browser", "gpu"}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--only", required=True, metavar="TOPIC", help="a word of the names of the tests to run")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Only(config.getoption("--only")))


class Only:
    """The tests that `word` names. UsageError, with the known topics, if it names none."""

    def __init__(self, word: str) -> None:
        pages = [path.name for path in chapters() if named(word, path.stem)]
        numbers = [name[:2] for name in pages if name[:2].isdigit()]
        self.pattern = "|".join([re.escape(word.lower()), *(rf"{number}(?=[._])" for number in numbers)])
        if not (pages or any(self.is_about(path) for path in test_files())):
            raise pytest.UsageError(f"ONLY={word} is in no test's name: take {', '.join(topics())}, or a file's name")

    def is_about(self, path: Path) -> bool:
        return named(self.pattern, path.relative_to(HERE).with_suffix("").as_posix())

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        is_other = HERE in collection_path.parents and collection_path.is_file() and not self.may_hold(collection_path)
        return is_other or None

    def may_hold(self, path: Path) -> bool:
        inside = path.relative_to(HERE)
        return not LEFT_OUT & set(inside.parts) and (inside.as_posix() in ACROSS or self.is_about(path))

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        about = (item for item in items if self.is_about(item.path) or named(self.pattern, example_of(item)))
        chosen = [item for item in about if params_of(item).get("world", 3) == 3]
        config.hook.pytest_deselected(items=[item for item in items if item not in set(chosen)])
        items[:] = sorted(chosen, key=lambda item: not self.is_about(item.path))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        if time.monotonic() - self.began > SECONDS:
            pytest.skip(f"{SECONDS:.0f} seconds were over: make test runs it")

    @cached_property
    def began(self) -> float:
        return time.monotonic()


def named(pattern: str, text: str) -> bool:
    """Whether the words of `text` (snake, camel or numbered) hold `pattern` as words of their own."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", text).lower()
    return re.search(rf"(?<![a-z])(?:{pattern})(?![a-z])", words) is not None


def example_of(item: pytest.Item) -> str:
    """The example's id, with the topic of a card, whose id need not tell it."""
    values = params_of(item).values()
    return " ".join([item.name.partition("[")[2], *(value.topic for value in values if hasattr(value, "topic"))])


def params_of(item: pytest.Item) -> dict[str, object]:
    return item.callspec.params if hasattr(item, "callspec") else {}


def chapters() -> list[Path]:
    return sorted((ROOT / "notebooks").glob("*.ipynb"))


def test_files() -> list[Path]:
    return [path for path in sorted(HERE.rglob("test_*.py")) if not LEFT_OUT & set(path.relative_to(HERE).parts)]


def topics() -> list[str]:
    """What is worth naming: the chapters' topics and the folders of tests."""
    folders = {part for path in test_files() for part in path.relative_to(HERE).parts[:-1]}
    return sorted(folders | {re.sub(r"^\d+_", "", path.stem) for path in chapters()})
