"""A run on ranks that are there already: what it printed, and its exit code."""

from __future__ import annotations

import io
import re

import pytest

from helpers.commands.train import checks
from helpers.commands.train.loop import Loop
from helpers.commands.train.options import parse_options
from helpers.commands.train.screen import Screen


@pytest.fixture
def train(monkeypatch, tmp_path):
    """train(ranks, "--plan dp=2 …") as `python -m helpers train --plan dp=2 …`, with a tiny model."""
    monkeypatch.chdir(tmp_path)

    def run(ranks, line: str) -> tuple[int, str]:
        options, out = parse_options(["--size", "tiny", *line.split()]), io.StringIO()
        code = Loop(ranks, options, checks.check(options), Screen(options, out)).run()
        return code, out.getvalue()

    return run


@pytest.fixture
def losses():
    """Step -> loss, of what a run printed."""
    return lambda text: {
        int(step): float(loss) for step, loss in re.findall(r"^ *(\d+)/\d+  loss ([\d.]+)", text, re.MULTILINE)
    }
