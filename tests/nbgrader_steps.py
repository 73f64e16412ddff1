"""Several commands of nbgrader in one process, since each of its own needs seconds to start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

IN_ONE_PROCESS = """
import contextlib, json, os, sys
from jupyter_core.application import NoStart
from nbgrader.apps.nbgraderapp import NbGraderApp
for folder, words in json.loads(sys.argv[1]):
    os.chdir(folder)
    print("nbgrader", *words, flush=True)
    app = NbGraderApp()
    app.initialize(words)
    with contextlib.suppress(NoStart):
        app.start()
    type(app.subapp).clear_instance()
"""


def run_steps(steps: Sequence[tuple[Path, Sequence[str]]], home: Path) -> None:
    """Each is a folder and what stands behind `nbgrader`. home: the one place where it finds settings."""
    own = {name: str(home) for name in ("HOME", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_CONFIG_PATH")}
    own["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # it calls `alembic` by name
    typed = json.dumps([(str(folder), list(words)) for folder, words in steps])
    command = [sys.executable, "-c", IN_ONE_PROCESS, typed]
    done = subprocess.run(command, env=os.environ | own, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
