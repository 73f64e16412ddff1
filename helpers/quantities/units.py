"""Formats bytes, seconds, counts and ratios as text with their units, and reads sizes such as "64 MB".

GB is 1e9 bytes and GiB is 2**30 bytes; the text says which. A number is printed with three digits.
"""

from __future__ import annotations

import re

DECIMAL = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
_BINARY = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
SECONDS = ((60.0, "min"), (1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


def _three_digits(value: float) -> str:
    """42.76 as 42.8, 3.14 as 3.14, 128.4 as 128. The limits are those from which a value is rounded up to 10 or 100."""
    digits = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:,.{digits}f}"


def _scaled(value: float, units: tuple, smallest: str) -> str:
    """A value in the largest unit that it reaches. units: (size, name), largest first. smallest: the name of 1."""
    for size, unit in units:
        if abs(value) >= size * 0.99995:  # which three digits round up to the full unit
            return f"{_three_digits(value / size)} {unit}"
    return f"{value:,.0f} {smallest}"


def format_bytes(num_bytes: float, *, binary: bool = False) -> str:
    """Bytes as "42.8 MB" (decimal) or, with `binary=True`, as "40.8 MiB"."""
    return _scaled(num_bytes, _BINARY if binary else DECIMAL, "B")


def parse_bytes(size: str | int, what: str = "size") -> int:
    """Bytes of "64 MB", "1.5 GiB" or a whole number. ValueError for other text.

    what: the name of the caller's argument, for the message.
    """
    units = {unit.lower(): scale for scale, unit in (*DECIMAL, *_BINARY, (1, "B"))}
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]+)\s*", size) if isinstance(size, str) else None
    num_bytes = size if isinstance(size, int) and not isinstance(size, bool) else 0
    if match and match[2].lower() in units:
        num_bytes = int(float(match[1]) * units[match[2].lower()])
    if num_bytes < 1:
        raise ValueError(
            f'{what}={size!r} is no size above 0: give a text such as "64 MB" or "1.5 GiB", or a whole number of bytes'
        )
    return num_bytes


def format_seconds(seconds: float) -> str:
    """Seconds as "3.10 ms", "1.90 s" or "12.0 µs"."""
    return _scaled(seconds, SECONDS, "s") if seconds else "0 s"


def format_count(count: float) -> str:
    """A count as "10,698,240", or with three digits where it is not a whole number."""
    return f"{count:,.0f}" if float(count).is_integer() else _three_digits(count)


def format_ratio(ratio: float | None) -> str:
    """A ratio as "1.02"; a dash where there is none."""
    return "–" if ratio is None else f"{ratio:,.2f}"


def format_value(value: float | None, unit: str) -> str:
    """A value in the unit "bytes", "seconds" or "count"; a dash where there is none."""
    formats = {"bytes": format_bytes, "seconds": format_seconds, "count": format_count}
    if unit not in formats:
        raise ValueError(f"the unit is {unit!r}; expected one of {', '.join(formats)}.")
    return "–" if value is None else formats[unit](value)


class DerivedBytes(int):
    """Bytes that follow from a formula and were not measured, which its text says: "42.8 MB (derived)"."""

    def __repr__(self) -> str:
        return f"{format_bytes(int(self))} (derived)"

    __str__ = __repr__
