"""The progress file: appended to by several programs, read whatever stands in it."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import time
from datetime import datetime, timedelta, timezone

import pytest
from filelock import SoftFileLock

from helpers.learner import progress


@pytest.fixture
def path(tmp_path):
    return tmp_path / "home" / "progress.jsonl"


def test_what_is_recorded_is_read(path):
    progress.record("check", "03.average", False, path=path, seconds=1.2, mistake="sum_for_mean")
    progress.record("quiz", "03.q1", True, path=path, grade="good")
    first, second = progress.read(path).entries
    assert (first.kind, first.key, first.passed) == ("check", "03.average", False)
    assert first.more == {"seconds": 1.2, "mistake": "sum_for_mean"}
    assert (second.kind, second.more) == ("quiz", {"grade": "good"})
    assert first.time.endswith("+00:00")
    assert len(path.read_text().splitlines()) == 2


def test_no_file_is_no_progress(path):
    assert progress.read(path) == progress.Progress()
    assert progress.read_standings(path) == {}


def test_torn_and_foreign_lines_are_skipped_and_counted(path):
    progress.record("check", "03.average", True, path=path)
    with open(path, "ab") as file:
        file.write(b'{"time": "2026-01-01T00:00:00+00:00", "kind": "che\n')
        file.write(b"\xff\xfe not text\n[1, 2]\n\n")
        file.write(b'{"time": "yesterday", "kind": "check", "key": "a", "passed": true}\n')
        file.write(b'{"time": "2026-01-01T00:00:00", "kind": "check", "key": "03.x", "passed": "yes"}\n')
        file.write(b'{"time": "2026-01-01T00:00:00", "kind": "check", "key": "03.to')  # a full disk
    progress.record("check", "03.buckets", True, path=path)
    found = progress.read(path)
    assert [entry.key for entry in found.entries] == ["03.average", "03.buckets"]
    assert found.num_skipped == 6


def write_many(path, name):
    for number in range(25):
        progress.record("check", f"{name}.{number}", True, path=path, text="x" * 5000)


def test_programs_that_write_at_once_lose_nothing(path):
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=write_many, args=(path, name)) for name in ("01", "02", "03")]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
        assert writer.exitcode == 0
    found = progress.read(path)
    assert (len(found.entries), found.num_skipped) == (75, 0)
    assert {lab: len(tasks) for lab, tasks in progress.read_standings(path).items()} == {"01": 25, "02": 25, "03": 25}


def test_a_stale_lock_is_broken(path):
    path.parent.mkdir()
    lock = path.with_name(path.name + ".lock")
    lock.write_text("a program that died")
    before = time.time() - progress.STALE_AFTER - 5
    os.utime(lock, (before, before))
    progress.record("check", "03.average", True, path=path)
    assert len(progress.read(path).entries) == 1
    assert not lock.exists()


def test_a_lock_that_is_held_is_waited_for_and_then_told(path, monkeypatch):
    monkeypatch.setattr(progress, "LOCK_TIMEOUT", 0.1)
    path.parent.mkdir()
    with SoftFileLock(path.with_name(path.name + ".lock")):
        with pytest.raises(OSError, match="has held"):
            progress.record("check", "03.average", True, path=path)
        note = progress.record_quietly("check", "03.average", True, path=path)
    assert "could not be noted" in note
    assert progress.read(path) == progress.Progress()


def test_what_prevents_writing_becomes_a_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    note = progress.record_quietly("check", "03.average", True, path=tmp_path / "file" / "progress.jsonl")
    assert note.startswith("(this attempt could not be noted in ")
    assert progress.record_quietly("check", "03.average", True, path=tmp_path / "progress.jsonl") is None


@pytest.mark.parametrize(("kind", "key"), [("lab", "03.average"), ("check", ""), ("check", 3)])
def test_nonsense_is_refused(path, kind, key):
    with pytest.raises(ValueError, match="give "):
        progress.record(kind, key, True, path=path)


def test_done_tells_attempts_and_the_time_to_the_first_pass(path):
    path.parent.mkdir()
    attempts = [("03.average", 0, False), ("03.average", 90, True), ("03.average", 95, False), ("01.shift", 5, False)]
    with open(path, "w") as file:
        for key, second, passed in attempts:
            stamp = f"2026-01-01T00:{second // 60:02}:{second % 60:02}+00:00"
            file.write(json.dumps({"time": stamp, "kind": "check", "key": key, "passed": passed}) + "\n")
    done = progress.read_standings(path)
    assert list(done) == ["01", "03"]
    assert done["03"]["03.average"] == progress.Standing(key="03.average", attempts=3, passed=True, seconds=90)
    assert done["01"]["01.shift"] == progress.Standing(key="01.shift", attempts=1, passed=False, seconds=None)
    assert progress.read_standings(path, kind="quiz") == {}


def test_the_default_is_in_the_home(tmp_path):
    code = "from helpers.learner import progress; progress.record('check', '03.average', True);"
    code += "print(progress.default_path())"
    command = [sys.executable, "-c", code]
    said = subprocess.run(command, env=dict(os.environ, HOME=str(tmp_path)), capture_output=True, text=True, check=True)
    assert said.stdout.strip() == str(tmp_path / ".rank-by-rank" / "progress.jsonl")
    assert len(progress.read(said.stdout.strip()).entries) == 1


def test_the_time_can_be_given_and_is_kept_in_utc(path):
    there = datetime(2026, 3, 2, 4, 0, 0, tzinfo=timezone(timedelta(hours=8)))
    progress.record("quiz", "a-card", True, path=path, when=there, rating="good")
    assert progress.read(path).entries[0].time == "2026-03-01T20:00:00+00:00"


def test_what_cannot_be_read_is_copied_aside_once_and_the_file_stays(path):
    progress.record("check", "03.average", True, path=path)
    assert progress.set_aside(path) is None
    with open(path, "ab") as file:
        file.write(b"\xff\xfe torn\n" + b"[" * 100_000 + b"\n")
    before = path.read_bytes()
    aside = progress.set_aside(path)
    assert aside == path.with_name("progress.jsonl.unreadable-1")
    assert aside.read_bytes() == b"\xff\xfe torn\n" + b"[" * 100_000 + b"\n"
    assert progress.set_aside(path) is None and path.read_bytes() == before


def test_an_earlier_copy_is_never_overwritten(path):
    path.parent.mkdir()
    path.with_name("progress.jsonl.unreadable-1").write_text("an earlier line\n")
    path.write_text("an earlier line\nanother\n")
    assert progress.set_aside(path).name == "progress.jsonl.unreadable-2"
    assert path.with_name("progress.jsonl.unreadable-1").read_text() == "an earlier line\n"
    assert path.with_name("progress.jsonl.unreadable-2").read_text() == "another\n"
    assert progress.set_aside(path.with_name("none.jsonl")) is None


def test_a_disk_that_runs_full_leaves_no_half_line(path):
    progress.record("quiz", "a", True, path=path)
    code = (
        "import resource, signal, sys; from helpers.learner import progress\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (150, 150))\n"
        "print(progress.record_quietly('quiz', 'b', True, path=sys.argv[1], text='x' * 500))"
    )
    before = path.read_bytes()
    assert 75 < len(before) < 150
    said = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True, timeout=60)
    assert "could not be noted" in said.stdout
    assert path.read_bytes() == before
