"""Words by name, from a YAML file: name -> {en, zh}, or a text that is the same everywhere. Names may be nested."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from helpers.learner.words.text import LANGUAGES, Words

FOLDER = Path(__file__).parent


class Book(Mapping[str, Words]):
    """The words of a file, read when one is first asked for. `say["up"]` is Words, `say("up")` a text.

    What stands under a name in the file has its name before it: "dial.ranks". ValueError, with file and name, for an
    entry that lacks a language or has one too many, KeyError for a name that is not there.
    """

    def __init__(self, path: Path, section: str = ""):
        self.path, self._section = path, section

    def section(self, name: str) -> Book:
        """What stands under a name, by the names it has there."""
        return Book(self.path, name)

    def __call__(self, name: str, lang: str | None = None, /, **values: object) -> str:
        """In `lang`, else in the language that was chosen."""
        return self[name].say(lang, **values)

    @cached_property
    def entries(self) -> dict[str, Words]:
        import yaml  # 20 ms, which an import of this module should not cost

        loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)  # texts only: `on` is no truth value here
        whole = yaml.load(self.path.read_text(encoding="utf-8"), loader)
        return dict(self._flat("", whole[self._section] if self._section else whole))

    def _flat(self, name: str, value: Any) -> Iterator[tuple[str, Words]]:
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
        """Some of them, in the order of the file."""
        return {name: self[name] for name in self if name in names}

    def __getitem__(self, name: str) -> Words:
        return self.entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)


@cache
def book(name: str, folder: Path = FOLDER) -> Book:
    """The words of `NAME.yaml` in `folder`, this one if none is given."""
    return Book(folder / f"{name}.yaml")
