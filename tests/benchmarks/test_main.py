"""The driver of `make bench` finds measurements, refuses names that are none, and reports failures."""

from __future__ import annotations

import pytest

from benchmarks import __main__ as driver


def test_helpers_of_measurements_are_not_run(tmp_path):
    for name in ("__init__", "__main__", "paired", "_models", "ring", "ddp"):
        (tmp_path / f"{name}.py").touch()
    assert driver.measurements(tmp_path) == ["ddp", "ring"]


def test_all_run_unless_some_are_named():
    assert driver.chosen([], ["ddp", "ring"]) == ["ddp", "ring"]
    assert driver.chosen(["ring"], ["ddp", "ring"]) == ["ring"]
    with pytest.raises(ValueError, match="rign: there are ddp, ring"):
        driver.chosen(["rign"], ["ddp", "ring"])


def test_one_failure_does_not_stop_the_others_and_shows_in_the_exit_code(monkeypatch, capsys):
    ran = []
    monkeypatch.setattr(driver, "measurements", lambda: ["a", "b"])
    monkeypatch.setattr(driver, "run", lambda name: ran.append(name) or name == "b")
    assert driver.main([]) == 1
    assert ran == ["a", "b"]
    assert "failed: a" in capsys.readouterr().out
    assert driver.main(["c"]) == 2
