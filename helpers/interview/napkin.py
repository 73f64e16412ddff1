"""Makes the napkin sheet: 20 formulas and 20 numbers for an interview on one page of A4, computed when it is made.

    python -m helpers napkin --lang zh -o napkin.html     then print it from a browser
    napkin()                                              in a notebook

The formulas, and the call that computes each number, are in napkin.yaml. `Words` is a text in two languages; `Words.of`
is the same text in both.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, Literal

from helpers.interview.cards import NumberCall, compute
from helpers.learner.document import Content, element, heading, page, paragraph, section, table
from helpers.learner.words import LANGUAGES, Words
from helpers.learner.words import language as chosen_language
from helpers.learner.yaml_file import AnyWords, read_record, read_yaml
from helpers.quantities.units import format_bytes, format_count, format_seconds
from helpers.specs import GPU, GPUS, LINKS, PRESETS, ROUTED, Link, ModelSpec

FILE = Path(__file__).with_name("napkin.yaml")


def gpu(name: str) -> GPU:
    """A GPU of helpers.specs by its name, for the calls in napkin.yaml."""
    return GPUS[name]


def link(name: str) -> Link:
    """A network link of helpers.specs by its name."""
    return LINKS[name]


def model(name: str) -> ModelSpec:
    """A model of helpers.specs by its name, with experts or without."""
    return {**PRESETS, **ROUTED}[name]


def _power(value: float) -> str:
    """6.3e+24 as "6.3 × 10²⁴"."""
    digits, _, exponent = f"{value:.1e}".partition("e+")
    return f"{digits} × 10" + str(int(exponent)).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))


FORMATS: dict[str, Callable[[float], Words]] = {
    "bytes": lambda value: Words.of(format_bytes(value)),
    "small": lambda value: Words.of(f"{value:g} B"),  # a few bytes, perhaps with decimals
    "rate": lambda value: Words.of(f"{format_bytes(value)}/s"),
    "flops": lambda value: Words.of(f"{value / 1e12:,.0f} TFLOP/s"),
    "flop": lambda value: Words.of(f"{_power(value)} FLOP"),
    "seconds": lambda value: Words.of(format_seconds(value)),
    "hours": lambda value: Words(en=f"{value / 3600:.1f} h", zh=f"{value / 3600:.1f} 小时"),
    "days": lambda value: Words(en=f"{value:.0f} days", zh=f"{value:.0f} 天"),
    "percent": lambda value: Words.of(f"{100 * value:.0f} %"),
    "ratio": lambda value: Words.of(f"{value:.4g} P"),  # times P, the bytes of all parameters
    "count": lambda value: Words.of(format_count(value)),
    "params": lambda value: Words(en=f"{value / 1e9:.1f} billion", zh=f"{value / 1e8:,.0f} 亿"),
}


@dataclass(frozen=True, kw_only=True)
class NapkinNumber(NumberCall):
    """The call that computes a number, and how it is printed."""

    unit: Literal[*FORMATS]

    @functools.cached_property
    def text(self) -> Words:
        """The computed number, as it is printed."""
        return FORMATS[self.unit](compute(self))


@dataclass(frozen=True, kw_only=True)
class NapkinRow:
    """One line of the sheet. formula: "" for a plain number. given: the values that the formula is computed for."""

    name: AnyWords
    value: NapkinNumber
    formula: str = ""
    given: str = ""


@functools.cache
def _document(path: Path = FILE) -> Mapping[str, Any]:
    """The YAML file as Python data."""
    return read_yaml(path)


def rows(section: str) -> tuple[NapkinRow, ...]:
    """The lines of a section, "formulas" or "numbers"."""
    return tuple(read_record(NapkinRow, fields, FILE.name, section) for fields in _document()[section])


class NapkinSheet:
    """The page. `html` is a complete document, which a notebook shows in a frame."""

    def __init__(self, language: str | None = None):
        self.language = chosen_language(language)

    @property
    def html(self) -> str:
        """The page as a complete HTML document."""
        says = {name: text[self.language] for name, text in _document()["says"].items()}
        return page(
            heading(says["title"], 1),
            paragraph(says["subtitle"]),
            heading(says["formulas"]),
            table((), map(self._line, rows("formulas"))),
            heading(says["numbers"]),
            section(table((), map(self._line, rows("numbers"))), class_="two"),
            title=says["title"],
            kind="napkin",
            lang=self.language,
        )

    def _line(self, row: NapkinRow) -> list[Content]:
        """The cells of one line. The classes f, g and v style formula, given values and result."""
        middle = [element("td", row.formula, class_="f"), element("td", row.given, class_="g")] if row.formula else []
        value = element("td", row.value.text.in_(self.language), class_="v")
        return [row.name.in_(self.language), *middle, value]

    def __repr__(self) -> str:
        return "\n".join(f"{row.name.in_(self.language)}: {row.value.text.in_(self.language)}" for row in self.rows)

    @property
    def rows(self) -> tuple[NapkinRow, ...]:
        """All forty lines."""
        return rows("formulas") + rows("numbers")

    def _repr_html_(self) -> str:
        return f'<iframe style="width:100%;height:60em;border:0" srcdoc="{escape(self.html)}"></iframe>'


def napkin(language: str | None = None) -> NapkinSheet:
    """The sheet in a language, or in the one that the learner chose."""
    return NapkinSheet(language)


def main(arguments: Sequence[str]) -> int:
    """`python -m helpers napkin`; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m helpers napkin", description="20 formulas and 20 numbers on A4")
    parser.add_argument("--lang", choices=LANGUAGES, help="of the sheet")
    parser.add_argument("-o", "--output", type=Path, default=Path("napkin.html"), help="napkin.html, if not given")
    options = parser.parse_args(arguments)
    try:
        options.output.write_text(napkin(options.lang).html, encoding="utf-8")
    except OSError as error:
        reason = error.strerror or error
        print(f"{options.output} could not be written: {reason}; give -o a file in a folder of yours", file=sys.stderr)
        return 2
    print(options.output)
    return 0
