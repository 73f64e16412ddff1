"""Checks the fields of a specification; a failed check raises ValueError with what was given and what it must be.

`owner` is the name of the class or function whose field or argument is checked; the message begins with it.
"""

from __future__ import annotations


def check_positive(owner: str, name: str, value: float) -> None:
    """Raise ValueError unless `value`, the field `name` of `owner`, is a number above 0."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise ValueError(f"{owner}: {name} is {value!r}, but it must be a number above 0")


def check_count(owner: str, name: str, value: int) -> None:
    """Raise ValueError unless `value`, the field `name` of `owner`, is a whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{owner}: {name} is {value!r}, but it must be a whole number of at least 1")


def check_counts(owner: str, **counts: int) -> None:
    """`check_count` for several fields by name."""
    for name, value in counts.items():
        check_count(owner, name, value)


def check_one_of(owner: str, name: str, value: object, known: tuple) -> None:
    """Raise ValueError unless `value`, the field `name` of `owner`, is one of `known`."""
    if value not in known:
        raise ValueError(f"{owner}: {name} is {value!r}, but it must be one of {', '.join(map(repr, known))}")


def refuse_unmodelled_fields(owner: str, *specs: object, names: tuple[str, ...] = ()) -> None:
    """Raise ValueError where a spec (a ModelSpec or a Plan) sets a field that the formula `owner` does not model.

    names: the fields that are not modelled; by default all fields that the spec's class lists in RARE (experts,
    windows, fp8 and so on). A field counts as set where it differs from the default of its class.
    """
    for spec in specs:
        for name in names or spec.RARE:
            if getattr(spec, name) != getattr(type(spec), name):
                raise ValueError(f"{owner}: {name}={getattr(spec, name)!r} is not modelled here; leave it out")


def check_divides(owner: str, part: str, divisor: int, whole: str, number: int) -> None:
    """Raise ValueError unless `divisor`, named `part`, divides `number`, named `whole`, without remainder."""
    if number % divisor:
        raise ValueError(f"{owner}: {part}={divisor} does not divide {whole}={number}; choose one that does")
