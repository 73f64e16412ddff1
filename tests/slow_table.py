"""`make test-slow`: a row for each slow test as it ends, in benchmarks/results/slow.md; a second start goes on there.

The table says on which commit, seed, processor and torch it ran. Only a start on the same of all these, with nothing
changed, skips the rows that passed.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from benchmarks.paired import RESULTS, machine

TABLE = RESULTS / "slow.md"
LIMIT = 55 * 60.0  # seconds after which no further test begins: all of it takes an hour at most
ROW = re.compile(r"^\| (?P<test>.+) \| (?P<outcome>\w+) \| (?P<seconds>[\d.]+) \|$")
HEAD = ("# slow", "", "| test | outcome | seconds |", "| --- | --- | --- |")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(SlowTable(TABLE, circumstances(config.getoption("--seed"))))


class SlowTable:
    """The table in `path`, for this session."""

    def __init__(self, path: Path, made: str, limit: float = LIMIT) -> None:
        self.path, self.made, self.limit = path, made, limit
        self.rows = read(path, made)
        self.began = time.monotonic()

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        done = [item for item in items if self.rows.get(item.nodeid, ("", 0))[0] == "passed"]
        if done:
            config.hook.pytest_deselected(items=done)
            items[:] = [item for item in items if item not in set(done)]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        if time.monotonic() - self.began < self.limit:
            return None
        item.session.shouldstop = f"{self.limit / 60:.0f} minutes are over: the same command goes on with the rest"
        return True

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item):
        report = yield
        if report.when == "setup":
            self.rows[item.nodeid] = ("passed", 0.0)
        outcome, seconds = self.rows[item.nodeid]
        self.rows[item.nodeid] = (outcome if report.passed else report.outcome, seconds + report.duration)
        if report.when == "teardown":
            write(self.path, self.rows, self.made)
        return report


def circumstances(seed: int) -> str:
    """What the table was made on, in a line; "with changes" if the commit is not all of it."""
    commit = _git("rev-parse", "--short=12", "HEAD")
    changed = not commit or _git("status", "--porcelain", "--", ".", f":!{TABLE.relative_to(TABLE.parents[2])}")
    return f"commit {commit or 'unknown'}{' with changes' if changed else ''}, seed {seed}, {processor()}, {machine()}"


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=TABLE.parents[2], capture_output=True, text=True)
    return done.stdout.strip()


def processor() -> str:
    import torch

    described = Path("/proc/cpuinfo")
    names = re.findall(r"^model name\s*: (.*)$", described.read_text(), re.MULTILINE) if described.exists() else []
    return f"{names[0] if names else 'processor unknown'} ({torch.backends.cpu.get_cpu_capability()})"


def read(path: Path, made: str) -> dict[str, tuple[str, float]]:
    """Test -> outcome and seconds, if the table was made in these circumstances and from a commit; else nothing."""
    if "with changes" in made or not path.exists() or made not in (text := path.read_text(encoding="utf-8")):
        return {}
    found = (ROW.match(line) for line in text.splitlines())
    rows = {row["test"].replace("\\|", "|"): (row["outcome"], float(row["seconds"])) for row in found if row}
    return {test: row for test, row in rows.items() if row[0] == "passed"}


def write(path: Path, rows: Mapping[str, tuple[str, float]], made: str) -> None:
    names = [test.replace("|", "\\|") for test in rows]
    lines = [f"| {name} | {end} | {took:.1f} |" for name, (end, took) in zip(names, rows.values(), strict=True)]
    text = "\n".join([*HEAD, *lines, "", f"Made by `make test-slow` on {made}.", ""])
    path.write_text(text, encoding="utf-8")
