"""Speed-up over emulated links beside the predicted one: `python -m benchmarks.scaling`.

Emulated: real ranks, messages and values under our DDP with overlap; cards are paced and the wire holds messages back.
Goal: the measured speed-up within 15 % of the predicted one (aim: 10 %).
"""

from __future__ import annotations

from statistics import median

from benchmarks.paired import write_table
from helpers.chapters.scaling import emulated_speedup
from helpers.specs import Link

GIGABITS, TIMES, MUST, AIM = (10, 25, 100), 3, 0.15, 0.10


def rows_of(gigabits: int, kind: str) -> list[dict[str, object]]:
    """2 and 4 cards over one link, each played so many times."""
    found = [emulated_speedup(Link.from_gigabits(gigabits), kind=kind) for _ in range(TIMES)]
    rows = []
    for place, gpus in list(enumerate(found[0].gpus))[1:]:
        played = [one.speedups[place] for one in found]
        said, off = found[0].predicted[place], [one / found[0].predicted[place] - 1 for one in played]
        worst = max(map(abs, off))
        rows.append(
            {
                "link (Gb/s)": gigabits,
                "scaling": kind,
                "emulated cards": gpus,
                "speed-up, predicted": said,
                f"speed-up, emulated (median of {TIMES})": median(played),
                "emulated over predicted, worst (%)": 100 * max(off, key=abs),
                "goal (15, aim 10)": "aim met" if worst <= AIM else "met" if worst <= MUST else "missed",
            }
        )
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    rows = [row for kind in ("weak", "strong") for gigabits in GIGABITS for row in rows_of(gigabits, kind)]
    print(write_table("scaling", rows, "python -m benchmarks.scaling"))


if __name__ == "__main__":
    main()
