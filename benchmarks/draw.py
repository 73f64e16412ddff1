"""Drawing a pipeline of 4 ranks and 64 micro-batches, turning a dial, and starting the calculators.

`python -m benchmarks.draw`. Goals from the issues: a Scene to SVG in 5 ms; `import helpers.predict, helpers.draw` in
0.5 s, without torch.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable

from benchmarks.paired import write_table
from helpers.draw import timeline_scene, to_png, to_svg
from helpers.records import Span, Timeline
from helpers.widgets import OverlapExplorer

NUM_RANKS, NUM_MICROBATCHES = 4, 64
FORWARD, BACKWARD, MESSAGE = 1e-3, 2e-3, 0.4e-3  # seconds
_TIMED_IMPORT = (
    "import sys, time; start = time.perf_counter(); "
    "import helpers.predict, helpers.predict.time.data_parallel, helpers.draw; "
    "print(time.perf_counter() - start, 'torch' in sys.modules)"
)


def pipeline() -> Timeline:
    """All forwards, then all backwards, each followed by a message: 4 x 64 x 4 spans."""
    spans = []
    for rank in range(NUM_RANKS):
        now = rank * FORWARD
        for kind, seconds in (("forward", FORWARD), ("backward", BACKWARD)):
            for number in range(NUM_MICROBATCHES):
                end = now + seconds
                spans.append(_span(rank, "compute", f"{kind[0].upper()}{number}", kind, now, end))
                spans.append(_span(rank, "communication", "send", "communication", end, end + MESSAGE))
                now = end
    return Timeline(spans=spans, source="predicted", title="GPipe")


def _span(rank: int, lane: str, name: str, kind: str, start: float, end: float) -> Span:
    return Span(rank=rank, lane=lane, name=name, kind=kind, start=start, end=end, num_bytes=8 * (kind != lane))


def median_milliseconds(work: Callable[[], object], repeats: int = 30) -> float:
    """Median of `repeats` calls, after one that does not count."""
    work()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds) * 1e3


def import_seconds(repeats: int = 7) -> tuple[float, bool]:
    """Median seconds of the imports, each in a fresh interpreter; whether torch came along."""
    lines = [subprocess.check_output([sys.executable, "-c", _TIMED_IMPORT], text=True).split() for _ in range(repeats)]
    return statistics.median(float(seconds) for seconds, _ in lines), any(torch == "True" for _, torch in lines)


def turn(explorer: OverlapExplorer) -> None:
    explorer.bucket.value = "1 MiB" if explorer.bucket.value == "25 MiB" else "25 MiB"


def main() -> None:
    timeline = pipeline()
    scene = timeline_scene(timeline)
    explorer = OverlapExplorer()
    seconds, has_torch = import_seconds()
    what = f"{NUM_RANKS} ranks x {NUM_MICROBATCHES} micro-batches, {len(timeline.spans)} spans"
    rows = [
        (f"Timeline to Scene, {what}", f"{median_milliseconds(lambda: timeline_scene(timeline)):.1f} ms", "reported"),
        ("Scene to SVG text", f"{median_milliseconds(lambda: to_svg(scene)):.1f} ms", "5 ms"),
        ("size of that SVG text", f"{len(to_svg(scene)) / 1e3:.0f} kB", "reported"),
        ("Scene to PNG", f"{median_milliseconds(lambda: to_png(scene), 5):.0f} ms", "reported"),
        ("size of that PNG", f"{len(to_png(scene)) / 1e3:.0f} kB", "reported"),
        ("one turn of OverlapExplorer's dial", f"{median_milliseconds(lambda: turn(explorer)):.1f} ms", "reported"),
        (
            "import helpers.predict, helpers.draw",
            f"{seconds:.2f} s{', with torch' if has_torch else ', no torch'}",
            "0.5 s",
        ),
    ]
    table = [dict(zip(("what", "measured", "goal"), row, strict=True)) for row in rows]
    print(write_table("draw", table, "python -m benchmarks.draw").read_text())


if __name__ == "__main__":
    main()
