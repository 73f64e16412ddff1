"""Answers to tasks that need no torch, judged by the Python of a web page: no torch, no processes, no other library."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from helpers.grading import chapters_with_tasks, exercises_of, grade, task_of, tasks_of
from helpers.grading.mistakes import mistakes_of
from helpers.grading.named_mistakes import used_definitions
from helpers.grading.run_in_process import InProcessRunner
from tests.grading import chapters
from tests.grading.conftest import SEED

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools" / "book"), str(ROOT / "tools" / "book" / "page")]
import exercises  # noqa: E402
import pyodide  # noqa: E402

TASKS = {
    key: task for number in chapters_with_tasks() for key, task in (tasks_of(number) | exercises_of(number)).items()
}
KEYS = [key for key, task in TASKS.items() if not task.needs_torch]
SECONDS = re.compile(r"· [\d.,]+ \w+(?= ·|$)", re.MULTILINE)  # of a check, in the last line of its text
# Python without any installed package: what it imports comes from the archive of the page or from the standard library.
COMMAND = [sys.executable, "-I", "-S", "-c"]
PAGE = """
import json, sys

class Refused:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("multiprocessing", "_multiprocessing", "mmap", "subprocess", "socket"):
            raise ImportError(f"a page has no {name}")

sys.meta_path.insert(0, Refused())
sys.path[:0] = [sys.argv[1] + "/page", sys.argv[1]]
import exercises

cases = json.load(sys.stdin)
print(json.dumps({"keys": exercises.keys(), "judged": [exercises.judge(*case) for case in cases]}))
"""


def right_answer(key: str) -> str:
    """The lab's own, or the one that is folded in the chapter, with what it uses of the cells above."""
    known = mistakes_of(key)
    return f"{used_definitions(known.imports + known.others, [known.answer])}\n\n{known.answer}"


def wrong_answer(key: str) -> str:
    """With the first mistake of the task that a check can run."""
    known = mistakes_of(key)
    text = next(one.text for one in known.mistakes if one.is_run)
    return f"{used_definitions(known.imports + known.others, [text])}\n\n{text}"


RAISES = (
    "def cost(num_parameters, world_size, stage, num_microbatches):\n    print('so far')\n    return 1 / (stage - 1)\n"
)


@pytest.fixture(scope="module")
def in_page(tmp_path_factory):
    """What the page's Python says: its keys, and by (key, source) the result of a check in English at SEED."""
    folder = tmp_path_factory.mktemp("course")
    pyodide.write_package(folder / "course.zip", ROOT)
    zipfile.ZipFile(folder / "course.zip").extractall(folder)
    sources = [(key, write(key)) for key in KEYS for write in (right_answer, wrong_answer)]
    sources += [(one.key, one.text.replace(one.imports, "")) for one in chapters.EXERCISES if one.key in KEYS]
    sources.append(("08.cost", RAISES))
    cases = json.dumps([[key, source, "en", SEED] for key, source in sources])
    done = subprocess.run([*COMMAND, PAGE, folder], input=cases, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    return answer["keys"], dict(zip(sources, answer["judged"], strict=True))


def in_notebook(key: str, source: str, ranks) -> str:
    """What an ordinary check of the same code says on ranks, without its seconds."""
    submitted = exercises.definition(task_of(key), source)
    return SECONDS.sub("", grade(key, submitted, seed=SEED, lang="en", ranks=ranks).text())


def test_the_page_finds_the_tasks_that_need_no_torch(in_page):
    assert in_page[0] == exercises.keys() == KEYS
    assert len({one.key for one in chapters.EXERCISES} & set(KEYS)) >= 15, "exercises of chapters"
    assert all(TASKS[key].runs_on == "process" or TASKS[key].world_sizes == (1,) for key in KEYS)


@pytest.mark.parametrize("key", KEYS)
def test_a_right_answer_passes_in_the_page(key, in_page):
    judged = in_page[1][key, right_answer(key)]
    assert judged["passed"] and judged["text"].startswith(f"{key}  passed"), judged["text"]


@pytest.mark.parametrize("one", [one for one in chapters.EXERCISES if one.key in KEYS], ids=lambda one: one.key)
def test_the_folded_answer_needs_nothing_of_the_cells_above(one, in_page):
    judged = in_page[1][one.key, one.text.replace(one.imports, "")]
    assert judged["passed"], judged["text"]


@pytest.mark.parametrize("key", KEYS)
def test_a_wrong_answer_reads_in_the_page_as_in_the_notebook(key, in_page, ranks):
    judged = in_page[1][key, wrong_answer(key)]
    assert not judged["passed"]
    assert SECONDS.sub("", judged["text"]) == in_notebook(key, wrong_answer(key), ranks)


def test_an_exception_reads_in_the_page_as_in_the_notebook(in_page, ranks):
    judged = in_page[1]["08.cost", RAISES]
    assert SECONDS.sub("", judged["text"]) == in_notebook("08.cost", RAISES, ranks)
    assert "ZeroDivisionError" in judged["text"] and "at cell line 3: `return 1 / (stage - 1)`" in judged["text"]
    assert judged["printed"].startswith("so far\n")


def test_a_task_that_needs_torch_is_refused():
    with pytest.raises(ValueError, match="03.average needs torch"):
        InProcessRunner(task_of("03.average"), print)
