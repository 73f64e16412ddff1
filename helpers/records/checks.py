"""What every record shares: checks that answer with a sentence, and JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import ClassVar


def check_one_of(owner: str, name: str, given: object, known: tuple[str, ...]) -> None:
    if given not in known:
        raise ValueError(f"{owner}: {name} is {given!r}, but it must be one of {', '.join(map(str, known))}")


def check_number(owner: str, name: str, given: float) -> None:
    if not given >= 0:
        raise ValueError(f"{owner}: {name} is {given!r}, but it must be 0 or more")


def check_order(owner: str, start: float, end: float) -> None:
    if not end >= start:
        raise ValueError(f"{owner} ends at {end!r} s, before its start at {start!r} s; are they swapped?")


def check_items(owner: str, given: tuple, kind: type) -> None:
    wrong = next((item for item in given if not isinstance(item, kind)), None)
    if wrong is not None:
        raise ValueError(f"{owner} holds a {type(wrong).__name__}, but it must hold {kind.__name__} records only")


class Json:
    """`to_json` and `from_json` for a frozen dataclass. `_holds`: the fields that are tuples of records."""

    _holds: ClassVar[dict[str, type]] = {}

    def to_json(self) -> str:
        """This record as JSON text. Floats survive to the last bit."""
        return json.dumps({"record": type(self).__name__, **asdict(self)})

    @classmethod
    def from_json(cls, text: str):
        """The record that `to_json` wrote, also before a field with a default was added. ValueError for other text."""
        data = json.loads(text)
        if not isinstance(data, dict) or data.pop("record", None) != cls.__name__:
            raise ValueError(f"this JSON text holds no {cls.__name__}; give the text that {cls.__name__}.to_json wrote")
        try:
            for name in cls._holds.keys() & data.keys():
                data[name] = tuple(cls._holds[name](**item) for item in data[name])
            return cls(**data)
        except TypeError as error:
            raise ValueError(f"this JSON text holds a {cls.__name__} with other fields or types: {error}") from error
