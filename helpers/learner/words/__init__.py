"""Provides every text that a person reads, in each language of the course. Needs no torch.

FOUND = Words(en="found {n} card{n:?s}", zh="找到 {n} 张卡片")    FOUND.in_("zh"), FOUND.format(n=4), f"{FOUND}"
words = book("clock")                         the texts in clock.yaml of this folder, name -> {en, zh}
words("up"), words("minutes", n=5)            a text in the learner's language
words["up"]                                   a text in all languages, as Words
language()                                    RANKS_LANGUAGE, else what `make course LANGUAGE=zh` stored

LANGUAGES maps "en" and "zh" to the languages' names; the fields of `Words` are the list of languages, and there is no
other list. `use_language` is a context with another language, `store_language` stores the learner's choice, and
`is_language_chosen` says whether there is one. "Braces" are the placeholders of str.format.
"""

from __future__ import annotations

import os
import string
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field, fields
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
LANGUAGE_VARIABLE = "RANKS_LANGUAGE"  # of the environment
_LANGUAGE: ContextVar[str | None] = ContextVar("language", default=None)  # set by `use_language`


# -- a text ----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class Words:
    """The same text in each language, with braces to fill.

    Three formats are added to those of `str.format`. `{n:?s}` is "s" unless n is 1 (or [1]). `{n:?has|have}` is "has"
    if n is 1, else "have". `{names:*, | and }` joins a list with the text before the bar, and its last item with the
    text after the bar. A value that is `Words` itself appears in the language of the text.
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
        """One language with its braces filled; None is the learner's language."""
        lang = language(lang)
        return _Formatter(lang).format(self.in_(lang), *values, **named)

    def in_(self, lang: str | None = None) -> str:
        """The text in "en" or "zh", its braces not filled; None is the learner's language."""
        return getattr(self, language(lang))

    def __str__(self) -> str:
        return self.in_()

    def map(self, change: Callable[[str], str]) -> Words:
        """Every language changed by this function."""
        return Words(**{lang: change(self.in_(lang)) for lang in LANGUAGES})

    def __add__(self, other: Words | str) -> Words:
        return Words.of("").join([self, other])

    def join(self, parts: Iterable[Words | str]) -> Words:
        """The parts, with this text between them."""
        every = [Words.of(part) for part in parts]
        return Words(**{lang: between.join(part.in_(lang) for part in every) for lang, between in asdict(self).items()})


LANGUAGES = {one.name: one.metadata["name"] for one in fields(Words)}  # "zh" -> "简体中文"


class _Formatter(string.Formatter):
    """Fills the braces of a text in one language, with the three special formats of `Words`."""

    def __init__(self, lang: str):
        self.lang = lang

    def format_field(self, value: Any, spec: str) -> str:
        """What a placeholder becomes. spec: the text after its colon."""
        if spec.startswith("*"):
            *most, last = (self.format_field(one, "") for one in value)
            between, _, before_last = spec[1:].partition("|")
            return (before_last or between).join([*([between.join(most)] if most else []), last])
        if spec.startswith("?"):
            one, _, many = spec[1:].rpartition("|")
            return one if value in (1, [1], (1,)) else many
        return super().format_field(value.in_(self.lang) if isinstance(value, Words) else value, spec)


# -- texts by name ---------------------------------------------------------------------------------------------------
class Book(Mapping[str, Words]):
    """The texts of a YAML file by name, read when one is first used. `words["up"]` is Words, `words("up")` a string.

    An entry of the file is {en, zh}, or a string that is the same in every language. Names may be nested: what stands
    under "dial" is called "dial.ranks". Raises ValueError, with file and name, for an entry that lacks a language or
    has one too many, and KeyError for an unknown name.
    """

    # section: with it, only the texts under this name of the file.
    def __init__(self, path: Path, section: str = ""):
        self.path, self._section = path, section

    def section(self, name: str) -> Book:
        """The texts under a name, by the names that they have there."""
        return Book(self.path, name)

    def __call__(self, name: str, lang: str | None = None, /, **values: object) -> str:
        """The text of this name with its braces filled, in `lang`, else in the learner's language."""
        return self[name].say(lang, **values)

    @cached_property
    def entries(self) -> dict[str, Words]:
        """Every text by its name."""
        from helpers.learner.yaml_file import read_texts  # not at the top, because that module imports this one

        document = read_texts(self.path)
        return dict(self._flat("", document[self._section] if self._section else document))

    def _flat(self, name: str, value: Any) -> Iterator[tuple[str, Words]]:
        """(name, text) of all texts in a value of the file that is called `name`."""
        if isinstance(value, str):
            yield name, Words.of(value)
        elif not isinstance(value, dict):
            raise ValueError(f"{self.path.name}: `{name}` is {value!r}; write a text, or one for each language")
        elif value.keys() == LANGUAGES.keys() and all(isinstance(text, str) for text in value.values()):
            yield name, Words(**value)
        elif value.keys() & LANGUAGES.keys():
            raise ValueError(
                f"{self.path.name}: `{name}` has the languages {', '.join(value)}; write {', '.join(LANGUAGES)}"
            )
        else:
            for key, inner in value.items():
                yield from self._flat(f"{name}.{key}" if name else key, inner)

    def of(self, *names: str) -> dict[str, Words]:
        """The texts of these names, in the order of the file."""
        return {name: self[name] for name in self if name in names}

    def __getitem__(self, name: str) -> Words:
        return self.entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)


@cache
def book(name: str, folder: Path = FOLDER) -> Book:
    """The texts of `NAME.yaml` in `folder`, which is the folder of this file if none is given."""
    return Book(folder / f"{name}.yaml")


# -- the learner's language ------------------------------------------------------------------------------------------
def language(given: str | None = None) -> str:
    """What the caller gave, else RANKS_LANGUAGE, else what the progress file stores, else "en".

    Raises ValueError, with the known languages, for another one.
    """
    name = "language" if given else LANGUAGE_VARIABLE
    chosen = given or _chosen() or "en"
    if chosen not in LANGUAGES:
        known = " and ".join(f'"{lang}" ({title})' for lang, title in LANGUAGES.items())
        raise ValueError(f"{name} is {chosen!r}: there are {known}")
    return chosen


def is_language_chosen() -> bool:
    """Whether the learner chose a language, so that `language()` is no default."""
    return bool(_chosen())


def _chosen() -> str | None:
    """The language that the learner chose, or None."""
    return _LANGUAGE.get() or os.environ.get(LANGUAGE_VARIABLE) or stored_language()


@contextmanager
def use_language(lang: str | None) -> Iterator[None]:
    """Inside this context, `lang` is the learner's language; None changes nothing."""
    token = _LANGUAGE.set(lang or _LANGUAGE.get())
    try:
        yield
    finally:
        _LANGUAGE.reset(token)


def stored_language(path: str | os.PathLike | None = None) -> str | None:
    """The language in the progress file (`path`, else the one in the home), or None if none was chosen there."""
    from helpers.learner import progress  # not at the top, so that importing this module stays fast

    with suppress(OSError, RuntimeError):  # RuntimeError: there is no home
        path = Path(path or progress.default_path())
        state = path.stat()
        return _stored_language(path, (state.st_mtime_ns, state.st_size))
    return None


@lru_cache(maxsize=8)
def _stored_language(path: Path, state: tuple[int, int]) -> str | None:
    """The language in this file. `state` is its time and size: a file that has not changed is not read again."""
    from helpers.learner import progress

    chosen = [entry.key for entry in progress.read(path).entries if entry.kind == "language"]
    return chosen[-1] if chosen and chosen[-1] in LANGUAGES else None


def store_language(chosen: str, path: str | os.PathLike | None = None) -> None:
    """Store a language in the progress file. Raises ValueError for an unknown one, OSError if that fails."""
    from helpers.learner import progress

    progress.record("language", language(chosen), True, path=path)  # True: every line has a field `passed`
