"""What a chapter needs of others, and orders that respect it."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path

FILE = Path(__file__).with_name("needs.yaml")


@functools.cache
def _file() -> dict:
    import yaml  # 20 ms, which an import of this module should not cost

    return yaml.load(FILE.read_text(encoding="utf-8"), getattr(yaml, "CBaseLoader", yaml.BaseLoader))


def needs() -> dict[str, tuple[str, ...]]:
    """Chapter to the chapters that it needs: {"03": ("01",), …}."""
    return {chapter: tuple(before) for chapter, before in _file()["needs"].items()}


def week() -> tuple[str, ...]:
    """The chapters to take in a week before an interview, in an order in which none comes before what it needs."""
    return in_order(_file()["week"], needs())


def in_order(wanted: Sequence[str], of: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """The wanted chapters, each after everything that it needs, which is added where it is not wanted.

    Among those that are free the order of `wanted` counts. ValueError for a circle and for a chapter without an entry.
    """
    order: list[str] = []

    def take(chapter: str, waiting: tuple[str, ...]) -> None:
        if chapter in waiting:
            raise ValueError(f"{' needs '.join((*waiting, chapter))}: a circle; take one of these out of {FILE.name}")
        if chapter not in of:
            raise ValueError(f"chapter {chapter} has no entry in {FILE.name}; write what it needs, or []")
        for before in of[chapter]:
            take(before, (*waiting, chapter))
        if chapter not in order:
            order.append(chapter)

    for chapter in wanted:
        take(chapter, ())
    return tuple(order)


def check_order(order: Sequence[str], of: Mapping[str, Sequence[str]]) -> list[str]:
    """What is wrong with an order, a sentence for each chapter that comes before one that it needs; [] is good."""
    seen: set[str] = set()
    wrong = []
    for chapter in order:
        wrong += [f"{chapter} comes before {one}, which it needs" for one in of.get(chapter, ()) if one not in seen]
        seen.add(chapter)
    return wrong
