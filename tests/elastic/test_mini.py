"""The elastic job on one screen: it trains on after each kind of death, and its two core files alone pass the lab."""

from __future__ import annotations

import multiprocessing
import runpy
import sys
from types import SimpleNamespace

import pytest

from helpers.chapters.fault_tolerance_cells import compared_with_one_process, restart_parts
from helpers.elastic import crash_safe, mini, mini_job
from helpers.grading import grade
from tests.standalone import standalone


@pytest.fixture(scope="module")
def forked():
    """Processes that have imported torch already."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["helpers.elastic.mini_job"])
    return context


@pytest.mark.parametrize(
    ("kind", "reason"), [("SIGKILL", "a process has ended"), ("SIGSTOP", "rank 1 is dead"), ("hang", "rank 1 is hung")]
)
def test_every_rank_ends_like_one_process_whatever_death_rank_1_dies(forked, tmp_path, kind, reason):
    history = mini_job.run(3, tmp_path, 20, [(kind, 1, 13)], forked)
    assert [one[3] for one in history] == [reason, ""]
    assert history[1][4][0][3] == 10, "the second generation begins with the checkpoint of step 10"
    assert compared_with_one_process(tmp_path, steps=20, num_ranks=3).startswith("equal")
    assert all(seconds >= 0 for seconds in restart_parts(history).values())


def test_a_job_that_dies_in_every_generation_gives_up(forked, tmp_path):
    with pytest.raises(RuntimeError, match="gave up after 1 restarts: a process has ended"):
        mini_job.run(2, tmp_path, 5, [("SIGKILL", 0, 2)] * 2, forked, max_restarts=1)


def end_at_once(*_):
    sys.exit(1)


def test_a_rank_that_dies_before_it_has_loaded_does_not_block_the_agent(monkeypatch, tmp_path):
    monkeypatch.setattr(mini_job, "train", end_at_once)
    with pytest.raises(RuntimeError, match="gave up after 0 restarts: a process has ended"):
        mini_job.run(2, tmp_path, 5, context=multiprocessing.get_context("fork"), max_restarts=0)


def test_a_copy_of_the_file_alone_passes_the_labs_check_of_the_verdict(tmp_path):
    path = standalone(mini, tmp_path)

    def verdict(beats, ranks, started, now, limits):
        return runpy.run_path(path)["verdict"](beats, ranks, started, now, limits)

    answer = grade("12.verdict", verdict)
    assert answer.passed, answer.text()


def test_a_copy_of_the_save_alone_survives_every_crash_of_the_labs_disk(tmp_path):
    """The names open, os and torch of the copy lead to the simulated disk; the order of the calls is the copy's own."""
    path = standalone(crash_safe, tmp_path)

    def save(disk, name, data, tell):
        copied = runpy.run_path(path)["save"]
        files = {}

        def open_on_disk(part, mode):
            file = disk.open(part)
            file.fileno = lambda: part
            files[part] = file
            return file

        system = SimpleNamespace(
            replace=disk.replace,
            fsync=lambda handle: disk.fsync(files[handle]) if handle in files else disk.fsync_folder(),
            open=lambda folder, flags: folder,
            close=lambda handle: None,
            path=SimpleNamespace(abspath=lambda path: f"/{path}", dirname=lambda path: "/"),
            O_RDONLY=0,
        )
        torch_names = SimpleNamespace(save=lambda state, file: file.write(state))
        copied.__globals__.update(open=open_on_disk, os=system, torch=torch_names)
        copied(data, name)
        tell()

    answer = grade("12.save", save)
    assert answer.passed, answer.text()
