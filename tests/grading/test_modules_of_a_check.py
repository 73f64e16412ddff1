"""Which modules of the course a check loads: a reader who follows an answer through a check has to know these alone."""

from __future__ import annotations

import subprocess
import sys

import pytest

from helpers.grading import task_of
from helpers.grading.mistakes import mistakes_of

CHECK = """

if __name__ == "__main__":
    import sys

    from helpers.grading import check

    check({key!r}, {name}, progress_file=sys.argv[1])
    print(*(module for module in sys.modules if module.partition(".")[0] == "helpers"))
"""
# Raise a number only for a module that every answer needs. Where a part of the checks needs it, import it there.
MOST = {"03.average": 55, "06.gpipe": 64, "08.stage1": 57}  # 06 needs the schedules of pipelines


@pytest.mark.parametrize("key", MOST)
def test_a_right_answer_passes_through_few_modules(key, tmp_path):
    known = mistakes_of(key)
    script = tmp_path / "lab.py"
    check = CHECK.format(key=key, name=task_of(key).name)
    script.write_text("\n\n".join([known.imports, known.others, known.answer, check]))
    command = [sys.executable, str(script), str(tmp_path / "progress.jsonl")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    modules = done.stdout.split()
    assert len(modules) <= MOST[key], "\n".join(sorted(modules))
    unneeded = ("helpers.devices.cards", "helpers.ranks.nccl", "helpers.grading.mistakes")
    assert not [name for name in modules if name.startswith(unneeded)]
