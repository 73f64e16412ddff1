"""What no rehearsal can do. It runs as far as it can, and is told by name."""

from __future__ import annotations


def replace() -> None:
    pass
