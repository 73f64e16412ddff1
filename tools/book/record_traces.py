"""Record the traces that the explorer of chapter 10 shows on its page, with the chapter's own code, on live ranks.

Writes data/10_profiling.zip, which the build reads. Some seconds.
"""

from __future__ import annotations

import json
import sys
import tempfile
import zipfile
from pathlib import Path

import nbformat

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(HERE)]
from explorer_block import TRACES  # noqa: E402

from helpers.chapters.profiling import slow_job  # noqa: E402
from helpers.ranks import Ranks  # noqa: E402


def training_function():
    """The function `train(job, folder)` of the chapter, which each rank runs."""
    notebook = nbformat.read(ROOT / "notebooks" / "10_profiling.ipynb", as_version=4)
    source = next(cell.source for cell in notebook.cells if "def train(job, folder):" in cell.source)
    names: dict = {"__name__": "__main__"}  # so that the ranks get the function by value
    exec(source, names)
    return names["train"]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, Ranks(4) as ranks:
        ranks.run(training_function(), slow_job, folder)
        TRACES.parent.mkdir(exist_ok=True)
        with zipfile.ZipFile(TRACES, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
            for path in sorted(Path(folder).glob("*.json")):
                trace = json.loads(path.read_text(encoding="utf-8"))
                trace.pop("traceName", None)  # a path of this machine
                name = f"{path.name.partition('.')[0]}.pt.trace.json"  # rank0.pt.trace.json
                archive.writestr(zipfile.ZipInfo(name), json.dumps(trace), zipfile.ZIP_DEFLATED)


if __name__ == "__main__":
    main()
