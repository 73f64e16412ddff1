"""Execute notebooks in place, one after the other, tidy them, and say how many seconds each took.

A notebook that fails is left as it was; the failing cell and the end of its error are printed.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

sys.path.insert(0, str(Path(__file__).resolve().parent))
from tidy_notebooks import machine_paths, notebooks, tidied  # noqa: E402


def execute(path: Path, *, cell_timeout: int) -> float:
    """Run the notebook in a fresh kernel, save it tidy, and return its seconds. Raises nbclient's errors."""
    notebook = nbformat.read(path, as_version=4)
    start = time.perf_counter()
    client = NotebookClient(
        notebook,
        timeout=cell_timeout,
        kernel_name="python3",
        store_widget_state=False,
        record_timing=False,
        resources={"metadata": {"path": str(path.resolve().parent)}},
    )
    client.execute()
    tidy = tidied(notebook)
    path.write_text(nbformat.writes(tidy) + "\n", encoding="utf-8")
    for finding in machine_paths(tidy):
        print(f"{path}: {finding} is a path of one machine; print a relative one")
    return time.perf_counter() - start


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="*", type=Path, help="notebooks or folders; default: notebooks/")
    parser.add_argument("--cell-timeout", type=int, default=120, help="seconds a cell may take")
    options = parser.parse_args(arguments)
    os.environ.setdefault("RANKS_UNATTENDED", "1")  # nobody guesses; what an author declared wrongly raises
    failed = False
    for path in notebooks(options.paths or [Path(__file__).resolve().parent.parent / "notebooks"]):
        try:
            seconds = execute(path, cell_timeout=options.cell_timeout)
            print(f"{path}: {seconds:.1f} s", flush=True)
        except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
            failed = True
            print(f"{path}: failed and left unchanged\n{str(error)[-2000:]}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
