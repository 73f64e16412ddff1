"""Words: one text in every language, and which language the learner reads: errors, explorers, hints, quiz and grader.

The fields of Words are the list of languages; there is no other.
"""

from __future__ import annotations

import os
import string
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Words:
    """The same text in each language, with braces to fill.

    Beside what `str.format` knows, `{n:?s}` is an s unless n is 1 (or [1]), `{n:?has|have}` chooses, and
    `{names:*, | and }` joins a list, the last one by what stands behind the bar. A value that is Words itself gives
    each its own language.
    """

    en: str = field(metadata={"name": "English"})
    zh: str = field(metadata={"name": "简体中文"})

    @classmethod
    def of(cls, text: Words | str) -> Words:
        """A text that is the same in every language, such as code; Words stay as they are."""
        return text if isinstance(text, Words) else cls(**dict.fromkeys(LANGUAGES, text))

    def format(self, *values: object, **named: object) -> Words:
        """Every language with its braces filled."""
        return Words(**{lang: _Formatter(lang).format(self.in_(lang), *values, **named) for lang in LANGUAGES})

    def say(self, lang: str | None, *values: object, **named: object) -> str:
        """One language with its braces filled, None: the one that was chosen."""
        lang = language(lang)
        return _Formatter(lang).format(self.in_(lang), *values, **named)

    def in_(self, lang: str | None = None) -> str:
        """The text in "en" or "zh", None: in the language that was chosen."""
        return getattr(self, language(lang))

    def __str__(self) -> str:
        return self.in_()

    def map(self, change: Callable[[str], str]) -> Words:
        """Every language changed."""
        return Words(**{lang: change(text) for lang, text in asdict(self).items()})

    def __add__(self, other: Words | str) -> Words:
        return Words.of("").join([self, other])

    def join(self, parts: Iterable[Words | str]) -> Words:
        """The parts, with this between them."""
        every = [Words.of(part) for part in parts]
        return Words(**{lang: between.join(part.in_(lang) for part in every) for lang, between in asdict(self).items()})


VARIABLE = "RANKS_LANGUAGE"
_READING: ContextVar[str | None] = ContextVar("reading", default=None)
LANGUAGES = {one.name: one.metadata["name"] for one in fields(Words)}


class _Formatter(string.Formatter):
    def __init__(self, lang: str):
        self.lang = lang

    def format_field(self, value: Any, spec: str) -> str:
        if spec.startswith("*"):
            *most, last = (self.format_field(one, "") for one in value)
            between, _, before_last = spec[1:].partition("|")
            return (before_last or between).join([*([between.join(most)] if most else []), last])
        if spec.startswith("?"):
            one, bar, many = spec[1:].rpartition("|")
            return one if value in (1, [1], (1,)) else many
        return super().format_field(value.in_(self.lang) if isinstance(value, Words) else value, spec)


# -- which one is read -----------------------------------------------------------------------------------------------
def language(given: str | None = None) -> str:
    """What the caller gave, else RANKS_LANGUAGE, else what the progress file keeps, else "en".

    Raises ValueError, with the languages there are, for another one.
    """
    name = "language" if given else VARIABLE
    chosen = given or _READING.get() or os.environ.get(VARIABLE) or kept() or "en"
    if chosen not in LANGUAGES:
        known = " and ".join(f'"{lang}" ({said})' for lang, said in LANGUAGES.items())
        raise ValueError(f"{name} is {chosen!r}: there are {known}")
    return chosen


def was_chosen() -> bool:
    """Whether anything chose a language, so that `language()` is no default."""
    return bool(_READING.get() or os.environ.get(VARIABLE) or kept())


@contextmanager
def reading(lang: str | None) -> Iterator[None]:
    """Within, this is the language that was chosen; None changes nothing."""
    before = _READING.set(lang or _READING.get())
    try:
        yield
    finally:
        _READING.reset(before)


def kept(path: str | os.PathLike | None = None) -> str | None:
    """The language that the progress file keeps, None where none was chosen. path: of the file, if not in the home."""
    from helpers.learner import progress  # here, not above: importing words costs nothing then

    with suppress(OSError, RuntimeError):  # RuntimeError: there is no home
        path = Path(path or progress.default_path())
        state = path.stat()
        return _kept(path, (state.st_mtime_ns, state.st_size))
    return None


@lru_cache(maxsize=8)
def _kept(path: Path, state: tuple[int, int]) -> str | None:
    """Read once for each state of the file."""
    from helpers.learner import progress

    chosen = [entry.key for entry in progress.read(path).entries if entry.kind == "language"]
    return chosen[-1] if chosen and chosen[-1] in LANGUAGES else None


def keep(chosen: str, path: str | os.PathLike | None = None) -> None:
    """Keep a language in the progress file. ValueError for one that is not there, OSError where the file is not."""
    from helpers.learner import progress

    progress.record("language", language(chosen), True, path=path)
