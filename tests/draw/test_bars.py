"""Bars of bytes stand to scale."""

import pytest

from helpers.draw import Rect, bytes_scene
from helpers.records import CommEvent, CommLog, compare
from tests.draw.scenes import MEMORY, SCENES


def test_bytes_stand_to_scale_and_beside_each_other():
    bars = [item for item in SCENES["bytes"].items if isinstance(item, Rect) and item.tooltip]
    widths = {bar.tooltip.split(":")[0]: bar.width for bar in bars}
    assert widths["sent bytes, your guess"] / widths["sent bytes, measured"] == pytest.approx(500 / 640)
    assert widths["payload bytes, measured"] / widths["sent bytes, measured"] == pytest.approx(428 / 640)
    assert "payload bytes, your guess" not in widths


def test_bytes_scene_takes_records_and_a_comparison():
    fields = {"group": "0", "sequence": 0, "caller": "a.py:1", "start": 0, "end": 1, "dtype": "float32", "shape": (1,)}
    event = CommEvent(rank=0, op="all_reduce", payload_bytes=400, group_ranks=(0, 1), **fields)
    log = CommLog(events=(event,))
    assert "payload: predicted 400 B, measured 400 B." in bytes_scene(log, log).summary
    assert bytes_scene(compare(MEMORY, MEMORY)).summary.count("measured") == 7
