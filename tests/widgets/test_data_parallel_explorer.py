"""The dials of chapter 02 without a front end: what they say, and that the text of a saved cell stays."""

import pytest

from helpers.draw.scene import Label
from helpers.widgets.data_parallel_explorer import DataParallelExplorer


@pytest.fixture
def explorer():
    return DataParallelExplorer()


def test_more_devices_help_until_the_master_is_too_slow(explorer):
    gains = [explorer.step(1).duration / explorer.step(n).duration for n in (1, 2, 4, 8)]
    assert gains[0] == 1 < gains[1] < gains[2] > gains[3]


def test_every_dial_moves_sentence_and_picture(explorer):
    moves = {"devices": 8, "link": 50, "parameters": 1_000_000, "python": 20}
    for name, value in moves.items():
        before = explorer.sentence, explorer.html.value
        getattr(explorer, name).value = value
        assert explorer.sentence != before[0] and explorer.html.value != before[1]


def test_one_device_has_no_link_to_wait_for(explorer):
    explorer.devices.value = 1
    assert explorer.sentence.startswith("1.00 times as fast as one device. The master's link is busy for 0 s")


def test_the_picture_names_devices_and_no_ranks(explorer):
    told = {item.text for item in explorer.scene.items if isinstance(item, Label)}
    assert told >= {"master", "device 1", "device 2", "device 3"} and not any("rank" in text for text in told)


def test_the_table_accounts_for_the_whole_step(explorer):
    explorer.devices.value = 1
    (alone,) = explorer.rows
    assert alone["device"] == "0 (master)"
    assert (alone["sends or receives"], alone["waits"]) == ("0 s", "0 s")
    explorer.devices.value = 4
    assert [row["device"] for row in explorer.rows] == ["0 (master)", "1", "2", "3"]
    busiest, *others = (row["sends or receives"] for row in explorer.rows)
    assert busiest == "22.1 ms" and busiest not in others
