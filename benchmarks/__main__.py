"""`make bench`: run every measurement in this folder, or those named, each in its own process, one at a time.

A measurement is a file with `if __name__ == "__main__":` that ends with `write_table(...)`. Two at once would
measure each other, so they wait for one another.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
NOT_MEASUREMENTS = {"__init__", "__main__", "measured_steps", "paired", "traces"}


def measurements(folder: Path = FOLDER) -> list[str]:
    """Names of the measurements in `folder`, sorted. A leading underscore marks a helper of several."""
    names = sorted(path.stem for path in folder.glob("*.py"))
    return [name for name in names if name not in NOT_MEASUREMENTS and not name.startswith("_")]


def chosen(wishes: list[str], known: list[str]) -> list[str]:
    """The measurements to run: those wished for, or all. Raises ValueError for a name that is not there."""
    if unknown := [wish for wish in wishes if wish not in known]:
        raise ValueError(f"no measurement is called {', '.join(unknown)}: there are {', '.join(known) or 'none yet'}")
    return wishes or known


def run(name: str) -> bool:
    """Run one measurement and say how long it took; whether it ended well."""
    print(f"\n── {name}", flush=True)
    start = time.monotonic()
    code = subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], cwd=FOLDER.parent).returncode
    print(f"── {name}: {'done' if code == 0 else f'failed with exit code {code}'}, {time.monotonic() - start:.0f} s")
    return code == 0


def main(arguments: list[str] | None = None) -> int:
    try:
        names = chosen(sys.argv[1:] if arguments is None else arguments, measurements())
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    failed = [name for name in names if not run(name)]
    print(f"\ntables: {FOLDER.name}/results/" + (f" · failed: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
