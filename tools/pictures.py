"""Makes every picture that README.md and the guides in docs/ show: `make pictures`, or `python tools/pictures.py`.

It runs the script below under torchrun and on the course's ranks. In docs/pictures.yaml it records what both printed,
together with the chapters and sentences that the pictures name, and then it draws. `--draw-only` draws from the record
that is there. tests/test_pictures.py compares the record with the course, so a stale picture fails a test.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from helpers.learner.course import chapter_title  # noqa: E402
from tools import moving_picture  # noqa: E402

DOCS = ROOT / "docs"
RECORD, MOVING = DOCS / "pictures.yaml", DOCS / "first_minute.gif"
SILENT_SECONDS = 30  # how long to wait for another line of torchrun
SCRIPT = """\
import torch
import torch.distributed as dist

def train():
    batches = [3, 3, 2, 3][dist.get_rank()]  # rank 2 has one batch fewer
    for step in range(batches):
        gradient = torch.ones(1000)
        dist.all_reduce(gradient)
        if dist.get_rank() == 0:
            print("step", step + 1, "done", flush=True)
    dist.barrier()

if __name__ == "__main__":
    dist.init_process_group("gloo")
    train()
"""
SHOWN_LINES = range(4, 12)  # of the script, in the moving picture
COMMAND = "torchrun --nproc-per-node=4 train.py"
CALL = "Ranks(4).run(train)"


def script_in(folder: Path) -> Any:
    """The script as the file train.py in `folder`, imported."""
    path = folder / "train.py"
    path.write_text(SCRIPT, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("train", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def message_of_ranks(ranks: Any, folder: Path) -> tuple[str, float]:
    """The course's error for the script on four ranks, and after how many seconds it came."""
    from helpers.chapters.start_here import failure_of

    train, start = script_in(folder).train, time.monotonic()
    error = failure_of(ranks, train)
    return str(error), time.monotonic() - start


def lines_of_torchrun(folder: Path, silence: float) -> list[str]:
    """Every line that the job prints until none has come for `silence` seconds. Raises if it ends before that."""
    from helpers.observe.torchrun import LIMIT, end_torchrun, lines_of, start_torchrun

    job, lines, latest = start_torchrun(folder / "train.py", 4), [], 0.0
    try:
        for line in lines_of(job, time.monotonic() + LIMIT):  # None where no line came for a moment
            if line is not None:
                lines.append(line.rstrip())
                latest = time.monotonic()
            elif lines and time.monotonic() - latest >= silence:
                return lines
    finally:
        end_torchrun(job)
    raise AssertionError(f"torchrun ended by itself: {lines}")


def titles() -> list[str]:
    """ "08 ZeRO" and so on: every chapter with a number, by the title of its notebook."""
    import nbformat

    found = sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))
    return [f"{path.name[:2]} · {chapter_title(nbformat.read(path, 4).cells)}" for path in found]


def explorers() -> dict[str, Any]:
    """Pictures of explorers by the name of their file, as they are when they are opened."""
    from helpers.widgets import MemoryExplorer, StrategyExplorer

    return {"memory.png": MemoryExplorer(), "strategy.png": StrategyExplorer()}


def record() -> dict[str, Any]:
    """Everything that the pictures quote."""
    from helpers.ranks import Ranks

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with Ranks(4) as ranks:
            message, seconds = message_of_ranks(ranks, folder)
        lines = lines_of_torchrun(folder, SILENT_SECONDS)
    skips, wait = (int(re.search(rf"{call} .*?line (\d+)", message)[1]) for call in ("barrier", "all_reduce"))
    numbered = [[number, SCRIPT.splitlines()[number - 1]] for number in SHOWN_LINES]
    return {
        "code": numbered,
        "torchrun": {"command": COMMAND, "lines": lines, "silent_seconds": SILENT_SECONDS},
        "ranks": {
            "call": CALL, "message": message, "seconds": round(seconds, 1), "line": skips, "waiting_line": wait,
        },
        "chapters": titles(),
        "explorers": {name: explorer.sentence for name, explorer in explorers().items()},
    }  # fmt: skip


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--draw-only", action="store_true", help="draw from docs/pictures.yaml, run nothing")
    if not options.parse_args().draw_only:
        text = yaml.safe_dump(record(), sort_keys=False, allow_unicode=True, width=120)
        RECORD.write_text("# Written by `make pictures`: what the pictures in this folder show.\n" + text, "utf-8")
    recording = yaml.safe_load(RECORD.read_text("utf-8"))
    MOVING.write_bytes(moving_picture.draw(recording))
    from helpers.draw import to_png

    for name, explorer in explorers().items():
        (DOCS / name).write_bytes(to_png(explorer.scene, scale=2))
    print(f"docs/: {MOVING.name} ({MOVING.stat().st_size / 1e6:.2f} MB), {', '.join(explorers())}")


if __name__ == "__main__":
    main()
