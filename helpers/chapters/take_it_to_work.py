"""Provides JobFolder, in which the page notebooks/take_it_to_work.ipynb writes scripts and runs commands on them.

The page shows what a learner would type in a terminal and what the command answers. JobFolder runs such a line in a
temporary folder and prints both. It leaves out what the job itself prints and the paths of this machine, so that every
run of the page prints the same text.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

_PACKAGES = re.compile(r"/\S*?/site-packages/")  # where pip has installed a package on this machine


class JobFolder:
    """A temporary folder for scripts. `path` is where it lies; `close` removes it."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.path = Path(self._folder.name)
        # Two ranks share the cores of this machine, and the profiler's own log would be mixed into the outputs.
        self._environ = {**os.environ, "OMP_NUM_THREADS": "1", "KINETO_LOG_LEVEL": "99"}

    def write(self, name: str, script: str) -> None:
        """Save a script under this name."""
        (self.path / name).write_text(script.lstrip("\n"), encoding="utf-8")

    def terminal(self, line: str, *, begins: str | tuple[str, ...] = "", lines: int | None = None) -> None:
        """Run a line such as "python -m helpers doctor" in the folder, and print it and its answer.

        begins: how the first line of the answer begins, in any of the course's languages; what the job prints before
        it is left out. lines: how many lines of the answer are printed, None for all.
        """
        command = [sys.executable, *shlex.split(line)[1:]]
        output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        answer = self.plain(subprocess.run(command, cwd=self.path, env=self._environ, **output).stdout).splitlines()
        first = next((place for place, text in enumerate(answer) if text.startswith(begins)), 0)
        print(f"$ {line}", *answer[first:][:lines], sep="\n")

    def start(self, line: str) -> subprocess.Popen[str]:
        """Start a line in the folder and return at once; read what it prints from `stdout` of the process."""
        command = [sys.executable, *shlex.split(line)[1:]]
        output = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
        return subprocess.Popen(command, cwd=self.path, env=self._environ, **output)

    def plain(self, text: str) -> str:
        """The text without the paths of this folder and of this machine's packages."""
        return _PACKAGES.sub("site-packages/", text.replace(f"{self.path}/", "").replace(str(self.path), "."))

    def close(self) -> None:
        """Remove the folder with everything in it."""
        self._folder.cleanup()
