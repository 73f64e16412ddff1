"""Provides what every record type uses: checks that raise ValueError with a sentence, and JSON in both directions.

`owner` is the name of the record whose field is checked; the message begins with it.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import ClassVar


def check_one_of(owner: str, name: str, given: object, known: tuple[str, ...]) -> None:
    """Raise ValueError unless `given`, the field `name` of `owner`, is one of `known`."""
    if given not in known:
        raise ValueError(f"{owner}: {name} is {given!r}, but it must be one of {', '.join(map(str, known))}")


def check_number(owner: str, name: str, given: float) -> None:
    """Raise ValueError unless `given`, the field `name` of `owner`, is 0 or more."""
    if not given >= 0:
        raise ValueError(f"{owner}: {name} is {given!r}, but it must be 0 or more")


def check_order(owner: str, start: float, end: float) -> None:
    """Raise ValueError where `end` lies before `start` (seconds)."""
    if not end >= start:
        raise ValueError(f"{owner} ends at {end!r} s, before its start at {start!r} s; are they swapped?")


def check_items(owner: str, given: tuple, kind: type) -> None:
    """Raise ValueError unless every item of `given` is a `kind`."""
    wrong = next((item for item in given if not isinstance(item, kind)), None)
    if wrong is not None:
        raise ValueError(f"{owner} holds a {type(wrong).__name__}, but it must hold {kind.__name__} records only")


class Json:
    """Adds `to_json` and `from_json` to a frozen dataclass.

    A subclass lists in `_nested_records` which of its fields are tuples of other records, and of which type.
    """

    _nested_records: ClassVar[dict[str, type]] = {}

    def to_json(self) -> str:
        """This record as JSON text. Floats survive to the last bit."""
        return json.dumps({"record": type(self).__name__, **asdict(self)})

    @classmethod
    def from_json(cls, text: str):
        """The record that `to_json` wrote. A field with a default may be missing. ValueError for any other text."""
        data = json.loads(text)
        if not isinstance(data, dict) or data.pop("record", None) != cls.__name__:
            raise ValueError(f"this JSON text holds no {cls.__name__}; give the text that {cls.__name__}.to_json wrote")
        try:
            for name in cls._nested_records.keys() & data.keys():
                data[name] = tuple(cls._nested_records[name](**item) for item in data[name])
            return cls(**data)
        except TypeError as error:
            raise ValueError(f"this JSON text holds a {cls.__name__} with other fields or types: {error}") from error
