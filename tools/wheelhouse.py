"""Download every wheel that set-up needs into wheelhouse/, for a room without internet.

The wheels fit machines with the same system, processor and Python minor version as this one. Copy the folder with
wheelhouse/ in it: `make course` then installs from there and asks no network.
"""

from __future__ import annotations

import argparse
import platform
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from install import CPU_INDEX, ROOT, SetupError, choose_torch, has_nvidia_gpu, pip_steps, run_pip  # noqa: E402


def download_steps(choice: str, *, cpu_index: str, target: Path, constraints: Path) -> list[list[str]]:
    """The pip commands that fill `target`: set-up's own steps, as downloads, and what builds this package."""
    nowhere = target / "not-there-yet"  # no wheelhouse to install from: ask the index
    first, rest = pip_steps(choice, cpu_index=cpu_index, wheelhouse=nowhere, constraints=constraints)
    torch_wheel = ["download", "-d", str(target), *first[1:]]
    # The wheel of torch that was just fetched satisfies "torch" below, so no second build is chosen.
    wanted = [argument.replace("[dev]", "[dev,class,book]") for argument in rest[1:] if argument != "-e"]
    return [torch_wheel, ["download", "-d", str(target), "--find-links", str(target), *wanted, first[-1], "setuptools"]]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--torch", default="auto")
    parser.add_argument("--cpu-index", default=CPU_INDEX)
    parser.add_argument("--target", type=Path, default=ROOT / "wheelhouse")
    options = parser.parse_args(arguments)
    try:
        choice = choose_torch(options.torch, system=platform.system(), machine=platform.machine(), gpu=has_nvidia_gpu())
        constraints = ROOT / "constraints.txt"
        for step in download_steps(choice, cpu_index=options.cpu_index, target=options.target, constraints=constraints):
            run_pip(Path(sys.executable), step)
    except SetupError as error:
        print(f"The wheelhouse is not complete. {error}", file=sys.stderr)
        return 1
    size = sum(path.stat().st_size for path in options.target.iterdir()) / 1e6
    print(f"{options.target.name}/: {len(list(options.target.iterdir()))} files, {size:.0f} MB")
    print(f"for {platform.system()} {platform.machine()} with Python {'.'.join(platform.python_version_tuple()[:2])}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
