"""Traces of several runs in one folder: they are told apart, and only one of them is explained."""

from __future__ import annotations

import json
import shutil

import pytest

from helpers.__main__ import main
from helpers.commands.traces import explain, read
from tests.commands.traces.conftest import make

DAY = 86_400


@pytest.fixture
def folder(tmp_path):
    """Two runs of two ranks: today rank 1 computes longer, and the day before rank 0 did."""
    return tmp_path / "runs"


def record(folder, name, *, seconds_ago=0.0, slow=1, world=2, first=0, change=lambda data: None, keep=None):
    """The traces of a run, recorded so long ago, whose steps begin at `first`. keep: the ranks that left a trace."""
    own = folder.parent / f"all ranks of {name}"
    make(own, world=world, steps=4, extra=lambda rank, step, part: 0.03 * ((rank, part) == (slow, "compute")))
    for rank, path in enumerate(sorted(own.iterdir())):
        data = json.loads(path.read_text())
        data["baseTimeNanoseconds"] -= int(seconds_ago * 1e9)
        for event in data["traceEvents"]:
            if event["name"].startswith("ProfilerStep#"):
                event["name"] = f"ProfilerStep#{int(event['name'][13:]) + first}"
        change(data)
        if keep is None or rank in keep:
            folder.mkdir(exist_ok=True, parents=True)
            (folder / f"{name}.{path.name}").write_text(json.dumps(data))
    shutil.rmtree(own)


def said(run):
    return "\n".join(map(str, run.notes))


@pytest.mark.parametrize("seconds_ago", [2 * DAY, 300.0])
def test_of_two_runs_the_newest_is_explained_or_the_one_that_the_user_names(folder, seconds_ago):
    record(folder, "a", seconds_ago=seconds_ago, slow=0)
    record(folder, "b")
    newest, older = read(folder), read(folder, run=1)
    assert "traces of 2 runs" in said(newest) and "This is run 2" in said(newest) and "This is run 1" in said(older)
    assert [explain(run).straggler.rank for run in (newest, older)] == [1, 0]
    assert all(run.ranks == (0, 1) and len(run.steps[0]) == 4 for run in (newest, older))


def test_another_number_of_ranks_is_another_run_even_at_the_same_time(folder):
    record(folder, "a", world=4, seconds_ago=1.0)
    record(folder, "b", world=2)
    run = read(folder)
    assert run.ranks == (0, 1) and run.world_size == 2
    assert "run 1 has ranks 0, 1, 2 and 3 of 4" in said(run) and "run 2 has ranks 0 and 1 of 2" in said(run)


def test_other_ranks_of_an_older_run_do_not_fill_up_a_newer_one(folder):
    record(folder, "a", world=4, seconds_ago=2 * DAY, keep=(2, 3))
    record(folder, "b", world=4, keep=(0, 1))
    assert read(folder).ranks == (0, 1) and read(folder, run=1).ranks == (2, 3)


def test_an_older_file_of_one_rank_does_not_split_the_newer_run(folder):
    record(folder, "a", seconds_ago=40.0, keep=(0,))
    record(folder, "b")
    assert read(folder).ranks == (0, 1) and read(folder, run=1).ranks == (0,)


def test_a_run_that_starts_again_at_an_earlier_step_is_another_one(folder):
    record(folder, "a", seconds_ago=100.0, first=100)
    record(folder, "b")
    assert [step.number for step in read(folder).steps[0]] == [5, 6, 7, 8]


def test_runs_at_the_same_time_keep_to_their_folders(folder):
    for name, slow in (("a", 0), ("b", 1)):
        record(folder / name, name, slow=slow, seconds_ago=0.001 * (name == "a"))
    assert [explain(read(folder, run=number)).straggler.rank for number in (1, 2)] == [0, 1]


def test_a_packed_copy_is_left_out(folder):
    record(folder, "a")
    path = next(folder.glob("*worker0*"))
    shutil.copy(path, folder / f"copy.{path.name}")
    run = read(folder)
    assert run.ranks == (0, 1) and "holds the same events as" in said(run) and "runs" not in said(run)


def test_a_run_that_is_not_there_gets_a_sentence(folder, capsys):
    record(folder, "a")
    assert main(["explain", str(folder), "--run", "3"]) == 2
    assert "there is no run 3 in this folder; give a number from 1 to 1" in capsys.readouterr().err


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_command_explains_the_run_of_a_number(folder, capsys, monkeypatch, lang):
    monkeypatch.setenv("RANKS_LANGUAGE", lang)
    record(folder, "a", seconds_ago=2 * DAY, slow=0)
    record(folder, "b")
    assert main(["explain", str(folder), "--run", "1"]) == 0
    out = capsys.readouterr().out
    assert {"en": "wait for rank 0", "zh": "等 rank 0"}[lang] in out and "--run" in out
