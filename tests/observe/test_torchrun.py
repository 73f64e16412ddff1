"""A job under plain torchrun: what it says, its silence, and that nothing of it is left."""

import os

import pytest

from helpers.observe.torchrun import JobOutput, torchrun

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
