"""Which labs there are: those whose checks are written."""

from __future__ import annotations

import pytest

from helpers import grading
from helpers.grading import labs, registry, tasks_of


def test_a_lab_whose_checks_are_not_written_is_left_out(monkeypatch, tmp_path):
    (tmp_path / "hollow").mkdir()
    monkeypatch.setattr("helpers.grading.__path__", [*grading.__path__, str(tmp_path)])
    monkeypatch.setattr(registry, "LABS", {"03": "ddp", "98": "nowhere", "99": "hollow"})
    assert labs() == ["03"]
    for lab in ("98", "99", "00", ""):
        with pytest.raises(ValueError, match="there are 03"):
            tasks_of(lab)


def test_every_key_begins_with_the_number_of_its_lab():
    for lab in labs():
        assert all(key.startswith(f"{lab}.") for key in tasks_of(lab))
