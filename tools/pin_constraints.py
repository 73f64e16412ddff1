"""Write constraints.txt: the exact version of every package the course needs, as installed in this environment.

Run it as maintainer after an upgrade whose `make test` passed: `.venv/bin/python tools/pin_constraints.py`.
Torch's local part (+cpu, +cu130) is dropped, so that one file serves laptops and GPU boxes.
"""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "rank-by-rank"
# What torch's CUDA build brings is pinned by torch itself, and a laptop has none of it.
CUDA_ONLY = ("nvidia-", "cuda-", "triton")
HEADER = f"""\
# The tested versions: all that {PACKAGE}[book,class,dev] needs, directly or not. Written by tools/pin_constraints.py.
"""


def canonical(name: str) -> str:
    """The one spelling of a package's name: "PyYAML" -> "pyyaml", "jupyter_core" -> "jupyter-core"."""
    return re.sub(r"[-_.]+", "-", name).lower()


def needed(package: str = PACKAGE, extras: frozenset[str] = frozenset({"book", "class", "dev"})) -> dict[str, str]:
    """Name -> installed version of everything `package[extras]` needs here, itself excluded.

    Raises importlib.metadata.PackageNotFoundError, naming the package, if one of them is not installed.
    """
    found: dict[str, str] = {}
    waiting = [(package, extras)]
    seen = set()
    while waiting:
        name, extras = waiting.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        distribution = metadata.distribution(name)
        found[name] = distribution.version.split("+")[0]
        waiting += _requirements(distribution, extras)
    found.pop(package, None)
    return dict(sorted(found.items()))


def _requirements(distribution: metadata.Distribution, extras: frozenset[str]) -> list[tuple[str, frozenset[str]]]:
    """The (name, extras) pairs that `distribution[extras]` asks for on this machine, CUDA's own left out."""
    wanted = []
    for text in distribution.requires or []:
        requirement = Requirement(text)
        marker = requirement.marker
        if marker and not any(marker.evaluate({"extra": extra}) for extra in extras or {""}):
            continue
        name = canonical(requirement.name)
        if not name.startswith(CUDA_ONLY):
            wanted.append((name, frozenset(requirement.extras)))
    return wanted


def main() -> None:
    pins = needed()
    lines = [f"{name}=={version}" for name, version in pins.items()]
    (ROOT / "constraints.txt").write_text(HEADER + "\n".join(lines) + "\n", encoding="utf-8")
    print(f"constraints.txt: {len(pins)} packages")


if __name__ == "__main__":
    main()
