"""Checks of a spec's fields, each answered with a sentence: what was given, and what it must be."""

from __future__ import annotations


def check_positive(owner: str, name: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise ValueError(f"{owner}: {name} is {value!r}, but it must be a number above 0")


def check_count(owner: str, name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{owner}: {name} is {value!r}, but it must be a whole number of at least 1")


def check_counts(owner: str, **counts: int) -> None:
    """`check_count` for several fields by name."""
    for name, value in counts.items():
        check_count(owner, name, value)


def check_one_of(owner: str, name: str, value: object, known: tuple) -> None:
    if value not in known:
        raise ValueError(f"{owner}: {name} is {value!r}, but it must be one of {', '.join(map(repr, known))}")


def check_plain(owner: str, *specs: object, names: tuple[str, ...] = ()) -> None:
    """For a formula that does not know `names`, or nothing of what specs call RARE: ValueError where one is given."""
    for spec in specs:
        for name in names or spec.RARE:
            if getattr(spec, name) != getattr(type(spec), name):
                raise ValueError(f"{owner}: {name}={getattr(spec, name)!r} is not modelled here; leave it out")


def check_divides(owner: str, part: str, divisor: int, whole: str, number: int) -> None:
    if number % divisor:
        raise ValueError(f"{owner}: {part}={divisor} does not divide {whole}={number}; choose one that does")
