"""Reads the interview cards from `bank/*.yaml`, and YAML into dataclasses for all of this package.

A card is a question with its answer. A text of it is a `Words`, in two languages with the fields en and zh. Everything
wrong in a file becomes one ValueError with file, line, field and how to fix it. `bank/FORMAT.md` describes the format.
`read_record` reads a mapping into any dataclass; `read_entries` also reads the glossary, myths, drills and rounds.

In every function, `fields` is one YAML mapping, and `where` says in which file and line it stands, for errors.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import typing
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from helpers.interview.cards import Card, NotebookCell, Publication
from helpers.learner.words import LANGUAGES, Words
from helpers.learner.yaml_file import Fields, read_yaml

BANK = Path(__file__).parent / "bank"
CHINESE = re.compile(r"[\u4e00-\u9fff]")
CHINESE_MARK = r"[\u3000-\u303f\uff00-\uff0f\uff1a-\uff20]"  # 。、「 ，：（ and the like
WIDE = r"[\u3000-\u303f\u4e00-\u9fff\uff00-\uffef]"  # a Chinese character or mark
LINE_BREAK = re.compile(  # between two wide characters or beside a Chinese mark, a line break is no space; **: bold
    rf"({WIDE}(?:\*\*)?)\s*\n\s*(?=(?:\*\*)?{WIDE})|({CHINESE_MARK}(?:\*\*)?)\s*\n\s*|\s*\n\s*(?=(?:\*\*)?{CHINESE_MARK})"
)
T = TypeVar("T")


# -- the bank --------------------------------------------------------------------------------------------------------
def chapters(folder: Path = BANK) -> list[str]:
    """Names of the chapters that have a bank, in order: ["00_start_here", ...]."""
    return sorted(path.stem for path in Path(folder).glob("*.yaml"))


def load_bank(chapter: str, folder: Path = BANK) -> tuple[Card, ...]:
    """The cards of one chapter, in the order of the file.

    Raises ValueError with file, line and field when the chapter has no bank or its file does not follow FORMAT.md.
    """
    path = Path(folder) / f"{chapter}.yaml"
    if not path.exists():
        raise ValueError(f"there is no bank for {chapter!r}; the chapters with one are {', '.join(chapters(folder))}")
    state = path.stat()
    return _load_file(path, (state.st_mtime_ns, state.st_size))


def load_all(folder: Path = BANK) -> tuple[Card, ...]:
    """Every card of every chapter. Raises ValueError when two cards share an id."""
    cards = [card for chapter in chapters(folder) for card in load_bank(chapter, folder)]
    seen: dict[str, Card] = {}
    for card in cards:
        if card.id in seen:
            raise ValueError(f"{card.where}: the id {card.id!r} is taken by {seen[card.id].where}; choose another")
        seen[card.id] = card
    return tuple(cards)


@functools.lru_cache(maxsize=64)
def _load_file(path: Path, state: tuple[int, int]) -> tuple[Card, ...]:
    """The cards of a file. `state` is its time and size: a file that has not changed is not read again."""
    document, chapter = read_yaml(path), path.stem  # such as 03_ddp
    if not isinstance(document, Fields) or set(document) != {"chapter", "cards"}:
        raise ValueError(f"{path.name}: the file must hold exactly `chapter:` and `cards:` at its top")
    where = f"{path.name} {document.where}"
    if document["chapter"] != chapter:
        raise ValueError(f"{where}: `chapter` is {document['chapter']!r} but the file is named {chapter}.yaml")
    if not isinstance(document["cards"], list) or not document["cards"]:
        raise ValueError(f"{where}: `cards` must be a list with at least one card")
    return tuple(read_card(fields, path.name) for fields in document["cards"])


# -- a list in a file --------------------------------------------------------------------------------------------------
def read_entries(
    path: Path,
    key: str,
    read: type | Callable[[Any, str], Any],
    name: str,
    also: Callable[[Any], Iterable[str]] = lambda _: (),
) -> tuple[Any, ...]:
    """The entries of a file that holds one list under `key`, such as "terms".

    read: the dataclass of an entry, or a function that makes one of (fields, where). name: the field that names an
    entry. also: returns other names of an entry. Raises ValueError with file and line where an entry is wrong, and
    where two entries share a name.
    """
    document = read_yaml(path)
    if not isinstance(document, dict) or set(document) != {key} or not isinstance(document[key], list):
        raise ValueError(f"{path.name}: the file must hold a list under `{key}:` and nothing else")
    entries, taken = [], {}
    for fields in document[key]:
        where = line_of(fields, path.name)
        is_plain = isinstance(read, type)
        entries.append(read_record(read, fields, where, key[:-1], name=name) if is_plain else read(fields, where))
        for each in (str(getattr(entries[-1], name)), *also(entries[-1])):
            if each.casefold() in taken:
                raise ValueError(f"{where}: {each!r} is taken by {taken[each.casefold()]}; choose another")
            taken[each.casefold()] = where
    return tuple(entries)


def line_of(fields: Any, file: str) -> str:
    """Where a mapping of this file stands: "file.yaml line 7"."""
    return f"{file} {getattr(fields, 'where', '')}".strip()


# -- a mapping -------------------------------------------------------------------------------------------------------
def read_record(kind: type[T], fields: Any, where: str, what: str, /, *, name: str = "", **given: Any) -> T:
    """One YAML mapping as an object of a dataclass, whose annotations say how `read_value` reads each field.

    Fields without a default are required. where: file and line. what: how an error calls the mapping, such as "card".
    name: the field whose value errors add to `where`, "" for none. given: fields that are not in the file. A field
    `where` of the dataclass gets the `where` of errors. Raises ValueError where a field is missing, unknown or wrong,
    and where the dataclass itself refuses the values.
    """
    known = [each for each in dataclasses.fields(kind) if each.name not in (*given, "where")]
    required = [each.name for each in known if each.default is each.default_factory is dataclasses.MISSING]
    check_fields(fields, required, [each.name for each in known], where, what)
    hints = _hints(kind)
    if name:
        read_value(hints[name], fields[name], where, name)  # raises here, before a wrong value stands in `where`
        where = f"{where} ({fields[name]})"
    named = [each.name for each in known if each.name in fields]
    values = {key: read_value(hints[key], fields[key], where, key) for key in named}
    if "where" in hints:
        given["where"] = where
    try:
        return kind(**values, **given)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    """The annotations of a dataclass by field."""
    return typing.get_type_hints(kind, include_extras=True)


def read_value(hint: Any, value: Any, where: str, name: str) -> Any:
    """A value of a field as its annotation wants it.

    `Annotated[X, reader]` is read by `reader(value, where, name)`, `Words` is a text in both languages, a tuple a list,
    and a dataclass a mapping. A bool can only be true. Any and unions are taken as they are.
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return arguments[1](value, where, name)
    if NotebookCell in arguments:
        return read_shown_by(value, where, name)
    if len(arguments) == 2 and arguments[1] is type(None):
        return read_value(arguments[0], value, where, name)
    if origin is Literal:
        return _read_one_of(arguments, value, where, name)
    if origin is tuple:
        return tuple(read_value(arguments[0], item, where, name) for item in read_items(value, where, name))
    if origin is dict:
        if not isinstance(value, dict):
            raise ValueError(f"{where}: `{name}` must be a mapping")
        return {key: read_value(arguments[1], one, f"{where}, {key}", name) for key, one in value.items()}
    if hint is Words:
        return read_text(value, where, name)
    if dataclasses.is_dataclass(hint):
        line = f", {value.where}" if isinstance(value, Fields) else ""
        return read_record(hint, value, f"{where}{line}", f"entry of `{name}`")
    return _read_plain(hint, value, where, name)


def _read_plain(hint: Any, value: Any, where: str, name: str) -> Any:
    """A value that is no text in two languages and has no parts."""
    if hint is bool and value is not True:
        raise ValueError(f"{where}: `{name}` is {value!r}; write true, or leave it out")
    if hint in (int, float) and (not isinstance(value, int | float) or isinstance(value, bool)):
        raise ValueError(f"{where}: `{name}` is {value!r}; write a number")
    return str(value) if hint is str else value


def _read_one_of(known: tuple[str, ...], value: Any, where: str, name: str) -> str:
    if value not in known:
        raise ValueError(f"{where}: `{name}` is {value!r}; it must be one of {', '.join(known)}")
    return value


def check_fields(fields: Any, required: Iterable[str], known: Iterable[str], where: str, what: str) -> None:
    """Raise ValueError when a mapping lacks a required field or has one that is not known."""
    if not isinstance(fields, dict):
        raise ValueError(f"{where}: a {what} must be a mapping with the fields {', '.join(required)}")
    for name in required:
        if name not in fields:
            raise ValueError(f"{where}: the field `{name}` of this {what} is missing; add it (see bank/FORMAT.md)")
    if unknown := sorted(str(name) for name in set(fields) - set(known)):
        raise ValueError(f"{where}: `{unknown[0]}` is no field of a {what}; the known ones are {', '.join(known)}")


# -- a field: each reader gets (value, where, name of the field) -----------------------------------------------------
def read_code(value: Any, where: str, name: str) -> str:
    """Code or what it prints, without the line breaks around it."""
    return str(value).strip("\n")


def read_items(value: Any, where: str, name: str) -> list:
    """A list."""
    if not isinstance(value, list):
        raise ValueError(f"{where}: `{name}` must be a list; start each entry with a hyphen")
    return value


def read_strings(value: Any, where: str, name: str) -> tuple[str, ...]:
    """A list of texts that are the same in every language."""
    return tuple(map(str, read_items(value, where, name)))


def read_text(value: Any, where: str, name: str) -> Words:
    """A text in both languages."""
    if not isinstance(value, dict) or value.keys() != LANGUAGES.keys():
        every = " and ".join(f"`{lang}:`" for lang in LANGUAGES)
        raise ValueError(f"{where}: `{name}` must hold {every} and nothing else")
    for language, text in value.items():
        if not isinstance(text, str) or not text.strip():
            raise ValueError(
                f"{where}: `{name}.{language}` is {text!r}; write a text there, in quotes if it is a number"
            )
    if not CHINESE.search(value["zh"]):
        raise ValueError(f"{where}: `{name}.zh` holds no Chinese character; translate it")
    return Words(**value).map(unfold)


def unfold(text: str) -> str:
    """Each paragraph as one line.

    Lines are joined with a space, but with nothing between Chinese characters and beside a full-width mark, which
    brings its own space.
    """
    paragraphs = re.split(r"\n\s*\n", text.strip()) if "\n" in text else [text]
    joined = [LINE_BREAK.sub(lambda match: match[1] or match[2] or "", paragraph) for paragraph in paragraphs]
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in joined)


def read_shown_by(value: Any, where: str, name: str = "shown_by") -> NotebookCell | Publication:
    """The cell, "03_ddp#prove", or the publication, with `source` and `url`, that shows the answer."""
    if isinstance(value, dict) and set(value) == {"source", "url"}:
        return Publication(source=str(value["source"]), url=str(value["url"]))
    notebook, hash_sign, anchor = str(value).partition("#")
    if isinstance(value, dict) or not (notebook and hash_sign and anchor):
        raise ValueError(
            f"{where}: `shown_by` is {value!r}; write notebook#cell, such as 03_ddp#prove, "
            "or a mapping with `source:` and `url:`"
        )
    return NotebookCell(notebook=notebook, anchor=anchor)


# -- a card ----------------------------------------------------------------------------------------------------------
def read_card(fields: Any, file: str) -> Card:
    """One card from its YAML mapping. Raises ValueError with file, line and field."""
    card = read_record(Card, fields, line_of(fields, file), "card", name="id", chapter=Path(file).stem)
    if card.predict and card.predict.says not in [check.says for check in card.verify]:
        says = card.predict.says
        raise ValueError(
            f"{card.where}: `predict.says` is {says!r}, which no check under `verify` says; add that check"
        )
    return card
