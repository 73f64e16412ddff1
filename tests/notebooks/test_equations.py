"""What a text works out, folded or not, is computed again: `2 · 7/8 · 14 GB = 24.5 GB` in either language."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.notebooks.chapter import PAGES, ROOT, load, source
from tests.notebooks.equations import equations, wrong_equations

GUIDES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
CHINESE = [*(ROOT / "notebooks" / "zh").glob("*.yaml"), *(ROOT / "labs" / "zh").glob("*.yaml")]


def text_of(path: Path) -> str:
    if path.suffix == ".ipynb":
        return "\n".join(source(cell) for cell in load(path) if cell["cell_type"] == "markdown")
    if path.suffix == ".yaml":
        return "\n".join(entry["text"] for entry in yaml.safe_load(path.read_text(encoding="utf-8")).values())
    return path.read_text(encoding="utf-8")


FILES = sorted([*PAGES, *(ROOT / "solutions").glob("*.ipynb"), *GUIDES, *CHINESE])
TEXTS = {path.relative_to(ROOT).as_posix(): text_of(path) for path in FILES}


@pytest.mark.parametrize("name", TEXTS)
def test_each_worked_number_is_what_its_left_side_gives(name):
    assert wrong_equations(TEXTS[name]) == []


def test_most_worked_numbers_are_read():
    """Fewer than these would mean that the texts changed their form, and that nothing computes them again."""
    counted = {name: len(list(equations(text))) for name, text in TEXTS.items()}
    assert sum(count for name, count in counted.items() if name.startswith("notebooks/0")) > 120, counted
    assert sum(count for name, count in counted.items() if "/zh/" in name) > 120, counted


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("A GPU sends 2 · 7/8 · 14 GB = 24.5 GB.", []),
        ("| bytes | 235 MB / 450 GB/s = 0.52 ms |", []),
        ("four all-reduces   4 × (0.52 + 0.04) ms = 2.7 ms", ["4 × (0.52 + 0.04) ms = 2.7 ms, but it is 2.24"]),
        ("The step takes 4 × (80 + 160) = 960 ms.", []),
        ("20 layers × 8,192 tokens × 274 kB / 8 = **5.6 GB**", []),
        ("134 MB / (61 % of 900 GB/s) = 0.24 ms", []),
        ("14 steps × 3 µs = 0.05 ms", ["14 steps × 3 µs = 0.05 ms, but it is 0.042"]),
        ("2 × 7 × 14 GB = 169 GB", ["2 × 7 × 14 GB = 169 GB, but it is 196"]),
        ("16 × hidden 384 × 4 bytes = 9 MB, √(2 × 8) = 4, n = 2 / 4, 3 · 2¹⁵ + 4 = 8", []),  # not read
    ],
)
def test_a_planted_number_is_found(text, wrong):
    assert wrong_equations(text) == wrong
