"""Holding the numbers of an answer to the functions that compute them."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from typing import Any

from helpers.interview.cards import Card, Check
from helpers.learner.words import LANGUAGES

UNITS = {
    "": 1.0, "x": 1.0, "×": 1.0, "%": 0.01,
    "B": 1.0, "byte": 1.0, "bytes": 1.0,
    "kB": 1e3, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12,
    "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
    "GB/s": 1e9, "s": 1.0, "ms": 1e-3, "µs": 1e-6, "us": 1e-6, "min": 60.0, "h": 3600.0,
}  # fmt: skip
PRINTED = re.compile(r"(?P<number>-?[0-9][0-9,]*(?:\.(?P<decimals>[0-9]+))?)\s*(?P<unit>[^\s0-9]*)")


def function_named(dotted: str) -> Callable[..., Any]:
    """The function of a dotted name such as "helpers.quantities.costs.seconds". ValueError when the name leads to none."""
    module_name, _, name = dotted.rpartition(".")
    try:
        return getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"`{dotted}` cannot be called: {error}; write the full dotted name of a function") from None


def compute(check: Check) -> Any:
    """What the check's call returns. Raises ValueError when the dotted name does not lead to a function."""
    function = function_named(check.call)
    result = function(*map(build, check.args), **{key: build(value) for key, value in check.kwargs.items()})
    return getattr(result, check.attribute) if check.attribute else result


def build(argument: Any) -> Any:
    """An argument as the call wants it: `{make: helpers.specs.Link, latency: …}` becomes the object, the rest stays."""
    if isinstance(argument, list):
        return [build(item) for item in argument]
    if not isinstance(argument, dict):
        return argument
    values = {key: build(value) for key, value in argument.items()}
    if "make" not in values:
        return values
    module_name, _, name = values.pop("make").rpartition(".")
    return getattr(importlib.import_module(module_name), name)(**values)


def problems(card: Card) -> list[str]:
    """Where the card's numbers disagree with its text or its functions, one sentence each; [] when all is right."""
    found = [sentence for check in card.verify for sentence in check_problems(card, check)]
    if card.predict and card.predict.how and not rounds_to(card.predict.says, worked_out(card.predict.how)):
        found.append(f"{card.where}: `predict.how` is {card.predict.how!r}, which is not {card.predict.says!r}")
    return found


def check_problems(card: Card, check: Check) -> list[str]:
    """The same for one check: the call returns `value`, `says` rounds it, and both answers print `says`."""
    found = []
    value = compute(check)
    if abs(value - check.value) > 1e-9 * max(abs(value), abs(check.value)):
        found.append(f"{card.where}: {check.call} returns {value!r}, the card expects {check.value!r}")
    if not rounds_to(check.says, value):
        found.append(f"{card.where}: the text says {check.says!r}, {check.call} returns {value!r}")
    for language in LANGUAGES:
        if not stands_in(check.says, card.full_answer(language)):
            found.append(f"{card.where}: the answer in `{language}` does not contain {check.says!r}")
    return found


def worked_out(how: str) -> float:
    """What "2 × 3/4 × 1,000,000 × 4 B" comes to, in bytes, seconds or as a plain number. ValueError otherwise."""
    match = re.fullmatch(r"([0-9.,+\-×/() ]+?)\s*([A-Za-zµ%/]*)", how)
    if not match or match[2] not in UNITS:
        raise ValueError(f"`how` is {how!r}; write numbers, + - × / and brackets, and at the end a unit")
    return eval(match[1].replace(",", "").replace("×", "*")) * UNITS[match[2]]


def rounds_to(says: str, value: float) -> bool:
    """Whether a printed number such as "64.2 MB" is `value` rounded to the digits that it shows."""
    match = PRINTED.fullmatch(says.strip())
    if not match or match["unit"] not in UNITS:
        raise ValueError(f"`says` is {says!r}; write a number and a unit out of {', '.join(filter(None, UNITS))}")
    half_digit = 0.5 * 10.0 ** -len(match["decimals"] or "")
    return abs(float(match["number"].replace(",", "")) - value / UNITS[match["unit"]]) <= half_digit * (1 + 1e-9)


def stands_in(says: str, text: str) -> bool:
    """Whether the printed number stands in the text as a whole: "4 MB" does not stand in "64 MB"."""
    return re.search(r"(?<![0-9.,])" + re.escape(says.strip()) + r"(?![0-9A-Za-z]|[.,][0-9])", text) is not None
