"""Jobs that never import us: they run as they would alone, and what stands still is named."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap

import psutil
import pytest
import torch

from helpers.commands.jobs import hang, probe
from helpers.commands.jobs.hang import watch_job
from helpers.commands.jobs.launch import command_of

NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="here it would get its GPU")


@pytest.fixture
def job(tmp_path):
    """watch_job() of a script with this text."""

    def run(text, *arguments, by=(), **how):
        script = tmp_path / "train.py"
        script.write_text(textwrap.dedent(text))
        return watch_job([*by, str(script), *arguments], **{"limit": 2.0, **how})

    return run


ALONE = """
    import json, os, sys
    rank = os.environ["RANK"]
    with open(f"{sys.argv[1]}.{rank}", "w") as out:
        marks = getattr(sys, "marks", None), __name__, sys.argv[2:], sys.path[0] == os.path.dirname(sys.argv[0])
        json.dump([*marks, any("ranks-job" in path for path in sys.path), os.environ["WORLD_SIZE"]], out)
    sys.exit(7 * int(rank))
"""


def test_a_script_runs_as_it_would_alone(job, tmp_path, monkeypatch):
    """Its main, its arguments, its path, another's sitecustomize, and its exit code."""
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.marks = 'loaded'")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = job(ALONE, str(tmp_path / "out"), "-x", "3")
    for rank in "01":
        seen = json.loads((tmp_path / f"out.{rank}").read_text())
        assert seen == ["loaded", "__main__", ["-x", "3"], True, False, "2"]
    assert (found.outcome, found.code, found.exit_code) == ("ended", 7, 7)
    assert (found.cause.kind, found.cause.ranks) == ("exited", (1,)) and "exit code 7" in str(found)


LINES = """
    import os, sys, torch.distributed as dist
    dist.init_process_group("gloo")
    if os.environ["RANK"] == "0":
        print("half of", end=" ")
    dist.barrier()
    if os.environ["RANK"] == "1":
        print("another", "line")
    dist.barrier()
    if os.environ["RANK"] == "0":
        print("a line")
    dist.barrier()
    os._exit(0)  # nobody flushes
"""


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_lines_of_two_ranks_stay_whole_and_come_at_once(job, capfd, monkeypatch, unbuffered):
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    job(LINES, nproc=2)
    assert {"half of a line", "another line"} <= set(capfd.readouterr().out.splitlines())


HANGS = """
    import os, time, threading
    if os.environ["RANK"] == "1":
        child = os.fork()
        if child == 0:
            time.sleep(1000)  # in the worker
        os.waitpid(child, 0)
    threading.Lock().acquire()
    lock = threading.Lock(); lock.acquire(); lock.acquire()
"""


def test_a_standstill_is_seen_in_stacks_and_its_processes_are_ended(job):
    found = job(HANGS, nproc=2)
    assert (found.outcome, found.exit_code, found.cause.kind, found.cause.ranks) == ("hang", 3, "worker", (1,))
    assert "train.py line 6: `time.sleep(1000)  # in the worker`" in str(found).splitlines()[1]
    assert "train.py line 9" in str(found) and "Every rank's stack" in str(found)
    pids = [one.report["pid"] for more in (found.state.ranks.values(), *found.state.children.values()) for one in more]
    assert len(pids) == 3 and not any(map(psutil.pid_exists, pids))


WORKS = """
    import time
    begin = time.thread_time()
    while time.thread_time() - begin < {seconds}:
        sum(range(1000))
"""


def test_who_works_is_not_said_to_hang(job):
    """Longer than the limit, on all ranks: each computes, and no clock on the wall counts what it waits for a core."""
    found = job(WORKS.format(seconds=1.0), limit=0.3)
    assert (found.outcome, found.cause.kind) == ("ended", "ended") and "no rank hung" in str(found)


TRAINS = """
    import os, sys, torch, torch.distributed as dist
    dist.init_process_group("gloo")
    rank, other = dist.get_rank(), dist.new_group([0, 1])
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    for step in range(5):
        model(torch.ones(2, 4)).sum().backward()
        if rank == 1 and step == 3:
            dist.barrier(group=other)
        metric = torch.ones(1)
        dist.all_reduce(metric)
    dist.barrier(group=other)
"""


@pytest.mark.timeout(400)
def test_rank_line_and_torchs_analyzer_are_right_under_ddp(job):
    """Two communicators in two orders; a command such as torchrun's is taken as it is."""
    found = job(TRAINS, by=("torchrun", "--standalone", "--nproc-per-node=2"))
    said, text = found.torch, str(found)
    assert (found.outcome, found.cause.kind, found.cause.ranks) == ("hang", "groups", (0, 1))
    assert (said.number, said.ranks) == (found.cause.divergence.number, (1,))
    assert "ranks 0, 1 wait for each other in a circle of groups" in text
    assert "only rank 1 has ever called from train.py line 9" in text
    assert "rank 1 waits in barrier of group 1 (ranks 0, 1), train.py line 9" in text
    assert "rank 0 waits in all_reduce, train.py line 11: `dist.all_reduce(metric)`" in text


EARLY_STOP = """
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    score = torch.ones(4)
    for epoch in range(5):
        dist.all_reduce(score)
        if dist.get_rank() == 0 and epoch == 2:
            break
    dist.barrier()
"""
SAVES_BY_ITS_OWN_LOSS = """
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    for epoch in range(3):
        loss = torch.tensor(float(2 + epoch))
        dist.reduce(loss, 0)  # the sum is on rank 0 alone
        if epoch == 0 or epoch == 2 and dist.get_rank() == 1:
            dist.all_gather_object([None, None], "a shard")
    dist.destroy_process_group()
"""
LISTS_DIFFER = """
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    rank, x = dist.get_rank(), [torch.zeros(8) for _ in range(3)]
    lists = [[dist.isend, dist.isend, dist.irecv], [dist.irecv, dist.irecv]]
    works = dist.batch_isend_irecv([dist.P2POp(op, x[i], 1 - rank) for i, op in enumerate(lists[rank])])
    for work in works:
        work.wait()
    dist.barrier()
"""
BOTH_SEND = """
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    x, peer = torch.ones(8), 1 - dist.get_rank()
    if peer == 1:
        dist.send(x, peer)
        dist.send(x, peer)
    else:
        dist.recv(x, peer)
        dist.send(x, peer)
"""


@pytest.mark.parametrize(
    ("script", "kind", "lines"),
    [
        (
            EARLY_STOP,
            "parted",
            [
                "  rank 0 calls barrier at train.py line 9: `dist.barrier()`",
                "  rank 1 calls all_reduce of [(4,)] at train.py line 6: `dist.all_reduce(score)`",
                "In the flight recorder, only rank 0 has ever called from train.py line 9: `dist.barrier()`.",
            ],
        ),
        (
            SAVES_BY_ITS_OWN_LOSS,
            "finished",
            [
                "rank 0 ended (its process ended with exit code 0) while rank 1 still waited for it.",
                "rank 1 then lost the connection to another rank, train.py line 8: `dist.all_gather_object(",
            ],
        ),
        (
            LISTS_DIFFER,
            "unanswered",
            [
                "rank 0 has a receive from rank 1 that no send of rank 1 meets",
                "rank 0 has posted 1 receive, and rank 1 has posted 0 sends.",
                "rank 0 waits for a message from rank 1, train.py line 8: `work.wait()`\n  posted at train.py line 6:",
                "rank 1 waits in barrier, train.py line 9: `dist.barrier()`",
                "(Not looked at: the values in tensors, the roots (src, dst) of collectives, the sizes of messages ",
            ],
        ),
        (
            BOTH_SEND,
            "ring",
            [
                "rank 0 waits until rank 1 receives a message, train.py line 7: `dist.send(x, peer)`",
                "rank 1 waits until rank 0 receives a message, train.py line 10: `dist.send(x, peer)`",
            ],
        ),
    ],
)
def test_two_ranks_that_part_and_messages_that_do_not_meet(job, script, kind, lines):
    found = job(script)
    text = str(found)
    assert found.cause.kind == kind and [line for line in lines if line not in text] == []


def test_an_exception_that_a_rank_handles_while_it_waits_is_named(job):
    found = job("""
        import torch, torch.distributed as dist
        dist.init_process_group("gloo")
        try:
            if dist.get_rank() == 1:
                raise ValueError("no such shard")
            dist.all_reduce(torch.ones(4))
        finally:
            dist.barrier()
    """)
    assert "rank 1 waits in barrier, train.py line 9" in str(found)
    assert "\n  while it handles ValueError: no such shard, raised at train.py line 6: `raise" in str(found)


def test_ranks_that_wait_for_one_that_never_connects_are_seen_to_hang(job):
    found = job("""
        import os, torch.distributed as dist
        dist.init_process_group("gloo", rank=int(os.environ["RANK"]), world_size=3)
    """)
    assert found.outcome == "hang" and "ranks 0, 1 wait in init_process_group, train.py line 3" in str(found)


def test_the_probe_adds_nothing_to_what_a_script_sees_of_a_message(job, tmp_path):
    """Neither a frame in a traceback nor a reference that keeps a tensor alive."""
    found = job(
        """
        import gc, sys, traceback, weakref, torch, torch.distributed as dist
        dist.init_process_group("gloo")
        x = torch.ones(4)
        dist.send(x, 1) if dist.get_rank() == 0 else dist.recv(x, 0)
        seen = weakref.ref(x)
        del x
        gc.collect()
        work = dist.barrier(async_op=True)
        try:
            work.wait("no time")
        except TypeError as error:
            frames = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
        work.wait()
        sys.exit(0 if seen() is None and frames == [__file__] else 7)
        """,
        nproc=2,
    )
    assert (found.outcome, found.code) == ("ended", 0)


def test_what_stands_behind_the_two_dashes_is_the_jobs():
    given = hang.parser("hang", "").parse_args("--nproc 3 -- train.py --nproc 5 -- --limit 1".split())
    assert (given.nproc, given.limit, given.command) == (3, 30.0, ["train.py", "--nproc", "5", "--", "--limit", "1"])


# -- bad input, and the end ------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('raise KeyError("lr")', "raised KeyError: 'lr'\n  at train.py line 1: `raise KeyError("),
        ("import no_such_package", "No module named 'no_such_package'"),
        (
            "\ndef train(:\n    pass",
            "invalid syntax (train.py, line 2)\n  at train.py line 2: `def train(:`",
        ),
        ("import sys; sys.exit('give --config')", "ranks 0, 1 ended without a traceback ("),
        pytest.param("import torch; torch.ones(1).cuda()", "It asks for a GPU, but torch finds none", marks=NO_GPU),
    ],
)
def test_a_script_that_fails_at_once_gets_a_sentence(job, text, said):
    assert said in str(job(text))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("hang", "no script was given"),
        ("hang -- nowhere.py", "`nowhere.py` does not exist"),
        ("hang -- -m nowhere", "`-m nowhere` does not exist"),
        ("hang --nproc 0 -- train.py", "expected 1 or more"),
        ("hang --nproc 2 -- torchrun train.py", "itself sets how many"),
        ("hang --limit 0 -- train.py", "expected seconds above 0"),
        ("hang --pid 4194304", "no such process"),
        ("profile --active 0 -- train.py", "1 or more that are active"),
    ],
)
def test_bad_input_is_a_sentence(line, said, capsys):
    from helpers.__main__ import main

    assert main(line.split()) == 2
    assert said in capsys.readouterr().err


def test_torchrun_is_this_interpreters_and_a_script_gets_two_ranks(tmp_path):
    assert command_of(["torchrun", "--nproc-per-node=2", "train.py"], None)[0][1:3] == ["-m", "torch.distributed.run"]
    (tmp_path / "train.py").touch()
    assert command_of([str(tmp_path / "train.py")], None)[1] == 2


def test_pyspy_looks_into_a_job_that_hangs_already(monkeypatch, tmp_path):
    monkeypatch.setattr(hang.shutil, "which", lambda name: None)
    with pytest.raises(ValueError, match=f"pip install py-spy. Then py-spy dump --pid {os.getpid()}"):
        hang.stacks_of_process(os.getpid())
    spy = tmp_path / "py-spy"
    spy.write_text("#!/bin/sh\necho stacks of $3\n")
    spy.chmod(0o755)
    monkeypatch.setattr(hang.shutil, "which", lambda name: str(spy))
    assert hang.stacks_of_process(os.getpid()) == f"stacks of {os.getpid()}\n"


def test_an_interrupt_says_where_the_ranks_are_and_leaves_none(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(1000)\n")
    command = [sys.executable, "-m", "helpers", "hang", "--nproc", "1", "--", str(script)]
    ours = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    rank = int(ours.stdout.readline())
    ours.send_signal(signal.SIGTERM)
    said = ours.communicate()[0]
    assert ours.returncode == 130 and "You stopped the job" in said and not probe.is_alive(rank)
