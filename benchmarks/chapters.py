"""How long each chapter takes from a fresh kernel to its last cell, and the whole of `make test`.

`python -m benchmarks.chapters` runs copies of the notebooks; `--make-test` also times `make test` (some minutes).
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.paired import write_table
from tools.run_notebooks import execute

ROOT = Path(__file__).resolve().parent.parent
LONG = {"03_ddp": 90}  # seconds; it runs torchrun
GOAL, MAKE_TEST_GOAL = 60, 15 * 60


def chapter_row(path: Path, folder: Path) -> dict:
    copy = Path(shutil.copy(path, folder))
    seconds = execute(copy, cell_timeout=120)
    return {"what": path.name, "measured": f"{seconds:.0f} s", "goal": f"{LONG.get(path.stem, GOAL)} s"}


def make_test_row() -> dict:
    start = time.monotonic()
    subprocess.run(["make", "test"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return {
        "what": "`make test`, set-up done",
        "measured": f"{time.monotonic() - start:.0f} s",
        "goal": f"{MAKE_TEST_GOAL} s",
    }


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        rows = [chapter_row(path, Path(folder)) for path in sorted((ROOT / "notebooks").glob("*.ipynb"))]
    if "--make-test" in sys.argv:
        rows.append(make_test_row())
    command = " ".join(["python -m benchmarks.chapters", *sys.argv[1:]])
    print(write_table("chapters", rows, command).read_text())


if __name__ == "__main__":
    main()
