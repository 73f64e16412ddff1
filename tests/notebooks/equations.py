"""Finds the worked arithmetic in a text, such as `2 · 7/8 · 14 GB = 24.5 GB`, and computes it again.

An equation is a row of numbers with units and nouns behind them, joined by + - × · / ÷ and brackets, then "=" and a
number. Units are factors (MB is 1e6, ms is 1e-3, "% of" is 0.01 times), and nouns such as "tokens" or "layers" are 1.
What has letters, powers or words between its numbers is not read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator

UNITS = {"": 1, "B": 1, "bit": 1 / 8, "FLOP": 1, "s": 1, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "ns": 1e-9, "%": 0.01}
UNITS |= {f"{p}{u}": f * s for p, f in zip("kMGTP", (1e3, 1e6, 1e9, 1e12, 1e15), strict=True)
          for u, s in (("B", 1), ("b", 1 / 8), ("FLOP", 1))}  # fmt: skip
UNITS |= {f"{p}iB": 2.0 ** (10 * n) for n, p in enumerate("KMGT", 1)}
UNITS |= {"million": 1e6, "billion": 1e9, "trillion": 1e12}
UNITS |= {f"{unit}/s": factor for unit, factor in UNITS.items() if unit and unit[-1] in "BbP"}
_NUMBER = r"\d+(?:,\d{3})*(?:\.\d+)?"
_UNIT = "|".join(sorted((re.escape(unit) for unit in UNITS if unit), key=len, reverse=True))
_NOUNS = r"(?: (?!(?:of|x)\b)[a-z][a-z-]*(?![\w/])){0,3}"
_UNITS = rf"(?: ?(?:{_UNIT})(?![\w/]))*"
_TERM = rf"{_NUMBER}{_UNITS}{_NOUNS}"
_OPERATOR = r"\s*(?:[+/÷×·*−–-]|\b(?:of|x)\b)\s*"
_CLOSED = rf"(?:\s*\){_UNITS})*"
_LEFT = re.compile(rf"(?:\(\s*)*{_TERM}{_CLOSED}(?:{_OPERATOR}(?:\(\s*)*{_TERM}{_CLOSED})+\s*$")
_RIGHT = re.compile(rf"\s*({_NUMBER})({_UNITS})(?!\s*[/÷×·*+]|.* per 1,000)")
_TOKEN = re.compile(rf"({_NUMBER})({_UNITS}){_NOUNS}|\)({_UNITS})|\b(?:of|x)\b|[-+/÷×·*−–()]")
_PYTHON = {"×": "*", "·": "*", "of": "*", "x": "*", "÷": "/", "−": "-", "–": "-"}
# More of it stands before: an operator, perhaps with a word behind it, or the middle of a word or of a number.
_OPEN = re.compile(r"(?:(?<![A-Za-z])-|[+/÷×·*−–(=^√²³⁰¹⁴-⁹₀-₉]|\b(?:of|per|x)\b)\s*(?:[A-Za-z]\w*\s+){0,2}$|[\w.,`]$")
TOLERANCE = 0.03  # the numbers on the left are rounded, too


def equations(text: str) -> Iterator[tuple[str, str, str]]:
    """(left side, number on the right side, its units) of each equation."""
    text = re.sub(r"\*\*|<[^>]*>|\\", "", text)
    for line in text.splitlines():
        for sign in re.finditer(r"(?<![=<>!≤≥:])=(?!=)", line):
            left, right = line[: sign.start()], _RIGHT.match(line, sign.end())
            found = next((match for start in range(len(left)) if (match := _LEFT.match(left, start))), None)
            if found and right and found[0].count("(") == found[0].count(")"):
                if not _OPEN.search(left[: found.start()]):
                    yield found[0].strip(), right[1], right[2]


def wrong_equations(text: str) -> list[str]:
    """A sentence for each equation whose left side has another value than its right side says."""
    return [
        f"{left} = {number}{units}, but it is {_value(left, _factor) / _factor(units):.4g}"
        for left, number, units in equations(text)
        # With units as factors; or, since "(80 + 160) = 240 ms" leaves them out on the left, without any.
        if not _agrees(number, _value(left, _factor) / _factor(units)) and not _agrees(number, _value(left, _one))
    ]


def _agrees(number: str, value: float) -> bool:
    printed, half_a_digit = float(number.replace(",", "")), 0.5 * 10.0 ** -len(number.partition(".")[2])
    return abs(value - printed) <= max(1.001 * half_a_digit, TOLERANCE * abs(printed))


def _factor(units: str) -> float:
    """The product of the units that stand behind a number."""
    return math.prod(UNITS[unit] for unit in re.findall(_UNIT, units))


def _one(units: str) -> float:
    return 1.0


def _value(expression: str, factor_of: Callable[[str], float]) -> float:
    parts, opened = [], []
    for token in _TOKEN.finditer(expression):
        number, text = (token[1] or "").replace(",", ""), token[0]
        if number:
            parts.append(f"({number}*{factor_of(token[2])!r})")
        elif text == "(":
            opened.append(len(parts))
            parts.append(text)
        elif text.startswith(")"):  # "(0.52 + 0.04) ms": the unit belongs to the whole bracket
            parts[opened.pop()] = "(("
            parts.append(f")*{factor_of(token[3])!r})")
        else:
            parts.append(_PYTHON.get(text, text))
    return eval("".join(parts), {"__builtins__": {}})  # digits, operators and brackets alone
