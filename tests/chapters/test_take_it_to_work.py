"""The terminal of the page of tools for work: it prints a command's answer without the job's lines and local paths."""

import pytest

from helpers.chapters.take_it_to_work import JobFolder


@pytest.fixture
def folder():
    made = JobFolder()
    yield made
    made.close()
    assert not made.path.exists()


def test_a_line_is_printed_with_its_answer_from_the_first_line_that_begins_so(folder, capsys):
    folder.write("job.py", "\nprint('step 1')\nprint('The job ran in', __file__)\nprint('and ended')\nprint('more')\n")
    folder.terminal("python job.py", begins=("The job", "作业"), lines=2)
    assert capsys.readouterr().out == "$ python job.py\nThe job ran in job.py\nand ended\n"


def test_a_job_that_is_started_returns_at_once_and_its_lines_can_be_read(folder):
    folder.write("job.py", "import time\nprint('begun', flush=True)\ntime.sleep(60)\n")
    job = folder.start("python job.py")
    assert job.stdout.readline() == "begun\n" and job.poll() is None
    job.kill()
    job.communicate()


def test_paths_of_this_machine_are_left_out(folder):
    text = f"{folder.path}/job.py and /home/me/.venv/lib/python3/site-packages/torch/a.py in {folder.path}"
    assert folder.plain(text) == "job.py and site-packages/torch/a.py in ."
