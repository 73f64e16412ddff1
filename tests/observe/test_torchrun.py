"""Jobs under plain torchrun: what they say, their silence, a node that dies, and that nothing of them is left."""

import json
import os
import tempfile

import psutil
import pytest

from helpers.observe.torchrun import JobGeneration, JobOutput, _read_lines, node_dies, torchrun, undisturbed

SILENT = """
import os, time
print("noise")
print(f"rank {os.environ['RANK']} {os.environ['WORD']} {os.getpid()}")
time.sleep(600)
"""


def test_a_silent_job_is_ended_with_all_its_processes():
    job = torchrun(SILENT, ranks=2, silence=1, env={"WORD": "lives"})
    assert [line.split()[:3] for line in job.lines] == [["rank", "0", "lives"], ["rank", "1", "lives"]]
    assert job.is_silent and str(job).endswith("no line for 1 s, so we stopped the job.")
    for line in job.lines:
        with pytest.raises(ProcessLookupError):
            os.kill(int(line.split()[3]), 0)


def test_a_job_that_ends_says_with_which_code_and_one_that_never_speaks_is_given_up():
    job = torchrun("print('rank 0 speaks')\nraise SystemExit(3)", ranks=1)
    assert job.lines == ("rank 0 speaks",) and job.returncode == 1 and "ended with code 1" in str(job)
    with pytest.raises(TimeoutError, match="neither ended nor fell silent"):
        torchrun("import time; time.sleep(600)", ranks=1, limit=1)


RAISES = """
import os, torch.distributed as dist
dist.init_process_group("gloo")
print(f"rank {os.environ['RANK']} is ready")
int("no" if os.environ["RANK"] == "1" else 0)
dist.barrier()
"""


def test_the_errors_of_ranks_and_whom_torchrun_blames():
    raised = torchrun(RAISES, ranks=2, silence=60)
    assert raised.errors[0].startswith("rank 1: ValueError: invalid literal") and raised.blamed == 1
    assert "root cause (first observed failure) is rank 1" in str(raised)


def test_two_ranks_that_write_at_once_do_not_tear_each_others_lines():
    words = "import os\nfor _ in range(300):\n    print('rank', os.environ['RANK'], *'abcdefgh')"
    job = torchrun(words, ranks=2, silence=60)
    assert job.lines == ("rank 0 a b c d e f g h",) * 300 + ("rank 1 a b c d e f g h",) * 300


def test_words_of_a_result():
    assert str(JobOutput(lines=("rank 0: a",), seconds=2.04, returncode=0)).endswith(
        "code 0, 2.0 s after the first line."
    )


@pytest.fixture
def left(monkeypatch, tmp_path):
    """left(): the processes of this test's jobs, whose folders lie in its own."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def find() -> list[int]:
        every = psutil.process_iter(["cmdline"])
        return [one.pid for one in every if str(tmp_path) in " ".join(one.info["cmdline"] or ())]

    return find


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_agents_lose_a_node_go_on_with_one_and_have_it_back(left):
    job = node_dies(at_step=4, back_at=6, steps=7, save_every=2)
    starts = [(one.ranks, one.after, one.last_step) for one in job.generations]
    assert starts == [(2, 0, 3), (1, 2, 5), (2, 4, 7)]
    assert job.losses == pytest.approx(undisturbed(7), abs=1e-10) and job.done_again == 2
    assert job.returncodes == (-9, 0, 0) or job.returncodes == (0, -9, 0), "either agent may have held rank 1"
    assert str(job).splitlines()[1] == "generation 1: 1 rank, steps 3 to 5"
    assert not left()


def test_without_restarts_a_job_that_never_ends_is_given_up_and_nothing_of_it_is_left(left):
    with pytest.raises(TimeoutError, match="had not ended after 0.3 s. Its ranks said "):
        node_dies(max_restarts=0, limit=0.3)
    assert not left()
    with pytest.raises(ValueError, match="max_restarts=-1: give 0 or more"):
        node_dies(max_restarts=-1)


@pytest.mark.parametrize("when", [{"at_step": 0}, {"at_step": 13}, {"back_at": 6}, {"back_at": 13}])
def test_a_death_or_a_return_at_no_step_is_a_sentence(when):
    with pytest.raises(ValueError, match="give steps from 1 to 12, first the death"):
        node_dies(**when)


def test_what_happened_is_read_from_the_lines_of_rank_0():
    """A node that was early waits for the other, does no step, and is no generation."""
    said = [
        {"rank": 0, "ranks": 1, "after": 0},
        {"rank": 0, "ranks": 2, "after": 0},
        {"rank": 1, "step": 1, "loss": 4.0},
    ]
    said += [
        {"rank": 0, "step": 1, "loss": 4.0},
        {"rank": 0, "ranks": 1, "after": 0},
        {"rank": 0, "step": 1, "loss": 4.0},
    ]
    job = _read_lines([json.dumps(one) for one in said], (0, -9), 1.0)
    assert job.generations == (
        JobGeneration(number=0, ranks=2, after=0, last_step=1),
        JobGeneration(number=1, ranks=1, after=0, last_step=1),
    )
    assert job.losses == {1: 4.0} and job.done_again == 1 and len(job.lines[1]) == 1


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_two_agents_on_one_machine_lose_a_node_twenty_times_and_never_hang():
    expected = undisturbed()
    for _ in range(20):
        job = node_dies()
        assert [one.ranks for one in job.generations] == [2, 1]
        assert job.losses == pytest.approx(expected, abs=1e-10)
