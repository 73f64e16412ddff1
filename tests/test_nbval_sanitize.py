"""What nbval may overlook between two runs of a chapter, and what it must not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TEXT = (Path(__file__).parent / "nbval_sanitize.cfg").read_text(encoding="utf-8")
PATTERNS = re.findall(r"^regex: (.*)$\n^replace: (.*)$", TEXT, re.MULTILINE)  # as nbval reads the file


def sanitized(text: str) -> str:
    for pattern, replacement in PATTERNS:
        text = re.sub(pattern, replacement, text)
    return text


@pytest.mark.parametrize(
    "one, other",
    [
        ("4 ranks on CPU (gloo), ready in 1.9 s · 41 MB each", "4 ranks on CPU (gloo), ready in 12 s · 38 MB each"),
        ("took 3.1 ms, 12.5 MB/s", "took 250 µs, 1.2 GB/s"),
        ('<svg id="a">\n<rect x="1"/></svg>', '<svg id="b">\n<rect x="2"/></svg>'),
        ("equal: 148 tensors, largest difference 3.0e-8", "equal: 148 tensors, largest difference 0"),
        ("about 1e-05 s", "about 2.5e-4 s"),
        ("<Dial at 0x7f01>", "<Dial at 0xbeef>"),
        ("at cell [6] line 1", "at cell [1] line 1"),
        ("http://127.0.0.1:8888/lab", "http://127.0.0.1:41233/lab"),
        ("log in /tmp/a1b2/run.log", "log in /dev/shm/ranks-9/log"),
        ('lab 03: <a href="../labs/03_ddp.ipynb">', 'lab 03: <a href="labs/03_ddp.ipynb">'),
    ],
)
def test_what_differs_between_runs_is_overlooked(one, other):
    assert sanitized(one) == sanitized(other)


@pytest.mark.parametrize(
    "text",
    [
        "64.2 MB predicted, 64.2 MB counted",
        "ranks 0-3 │ 2.4417",
        "<Figure size 640x480 with 1 Axes>",
        "6 buckets, 148 tensors x 4 ranks",
        "cell line 3",
        "42.8 MB of payload in 6 messages",
    ],
)
def test_values_are_compared(text):
    assert sanitized(text) == text
