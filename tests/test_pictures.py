"""Pictures of README and the guides show the course as it is; docs/pictures.yaml says what they show."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
import yaml
from PIL import Image, ImageChops

from tools import build_strategies_page, moving_picture, pictures

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
AGAIN = "run `make pictures`"
SECONDS, MAX_BYTES = (15, 20), 1_500_000


@pytest.fixture(scope="module")
def record() -> dict:
    return yaml.safe_load(pictures.RECORD.read_text(encoding="utf-8"))


def shown() -> set[Path]:
    """Pictures that README or a guide shows."""
    pages = [ROOT / "README.md", ROOT / "README.zh.md", *DOCS.glob("*.md")]
    found = [(page, link) for page in pages for link in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", page.read_text("utf-8"))]
    return {(page.parent / link).resolve() for page, link in found}


def test_a_tool_makes_every_picture_and_every_picture_is_shown():
    there = {path for path in DOCS.iterdir() if path.suffix not in (".md", ".yaml")}
    made = {pictures.MOVING, *(DOCS / name for name in pictures.explorers())}
    cells = json.loads((ROOT / build_strategies_page.NOTEBOOK).read_text(encoding="utf-8"))["cells"]
    made |= {DOCS / name for name in build_strategies_page.page_of(cells, ROOT)[1]}
    assert shown() == there == made


def test_the_chapters_in_the_picture_are_those_of_the_course(record):
    assert record["chapters"] == pictures.titles(), AGAIN


def test_explorers_open_as_in_their_pictures(record):
    assert record["explorers"] == {name: one.sentence for name, one in pictures.explorers().items()}, AGAIN


def without_number(message: str) -> str:
    """The message without the number of the operation, which grows with what these ranks did for other tests."""
    return re.sub(r"operation \d+", "operation", message)


def test_the_code_and_the_message_are_todays(record, ranks, tmp_path):
    """Runs the script on four ranks again."""
    assert record["code"] == [[number, pictures.SCRIPT.splitlines()[number - 1]] for number in pictures.SHOWN_LINES]
    message, _ = pictures.message_of_ranks(ranks, tmp_path)
    assert without_number(record["ranks"]["message"]) == without_number(message), AGAIN
    assert "rank 2 calls barrier" in message and f"line {record['ranks']['line']}" in message


def test_torchrun_printed_two_steps_and_then_nothing(record):
    """As chapter 00 tests it live; the record was made by the same command."""
    assert record["torchrun"]["lines"] == ["step 1 done", "step 2 done"]
    assert record["torchrun"]["silent_seconds"] == pictures.SILENT_SECONDS


def test_the_moving_picture_is_small_repeats_and_is_read_in_one_loop():
    data = pictures.MOVING.read_bytes()
    image = Image.open(io.BytesIO(data))
    total = 0
    for index in range(image.n_frames):
        image.seek(index)
        total += image.info["duration"]
    assert SECONDS[0] <= total / 1000 <= SECONDS[1] and len(data) <= MAX_BYTES
    assert image.size == moving_picture.SIZE and image.info["loop"] == 0


def test_the_moving_picture_is_drawn_from_the_record(record):
    """The first and the last frame, pixel by pixel apart from the GIF's palette."""
    image = Image.open(io.BytesIO(pictures.MOVING.read_bytes()))
    for index, (scene, place) in {0: ("guess_scene", 0), image.n_frames - 1: ("last_scene", -1)}.items():
        image.seek(index)
        drawn = list(getattr(moving_picture, scene)(record))[place][0]
        small = [one.convert("RGB").convert("L").resize((240, 128)) for one in (image, drawn)]
        assert ImageChops.difference(*small).getextrema()[1] < 12, AGAIN
