"""Reads YAML into Python data and into dataclasses, with errors that name the file, the line and the field.

    read_yaml(path), read_texts(path)  a file as Python data; read_texts reads every value as text
    read_list(path, "terms", Term)     the entries of a file that holds one list, each as a Term
    read_record(Card, fields)          one mapping as a Card
    level: Literal["junior", "senior"]    says what a field may hold; the annotation alone decides how it is read

A field may be a text, a number, True, `Words` (a text in both languages), a name out of a `Literal`, another dataclass,
a tuple or a dict of these, or `Annotated[type, reader]` with a function (value, where, name of the field) -> value. A
field with a default may be left out. The dataclass itself checks in `__post_init__` what concerns several fields. In
every function here, `where` says in which file and line a value stands. YAML is imported when a file is first read,
because importing this module should cost nothing.

A file that begins with a bracket is read as JSON, which is a subset of YAML. The web edition stores every file so,
because a browser has no libyaml, and without it PyYAML takes many seconds for the interview cards.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from collections.abc import Callable, Iterable, Mapping
from os.path import basename
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from helpers.learner.words import LANGUAGES, Words

CHINESE = re.compile(r"[\u4e00-\u9fff]")
CHINESE_MARK = r"[\u3000-\u303f\uff00-\uff0f\uff1a-\uff20]"  # 。、「 ，：（ and the like
WIDE = r"[\u3000-\u303f\u4e00-\u9fff\uff00-\uffef]"  # a Chinese character or mark
LINE_BREAK = re.compile(  # between two wide characters or beside a Chinese mark, a line break is no space; **: bold
    rf"({WIDE}(?:\*\*)?)\s*\n\s*(?=(?:\*\*)?{WIDE})|({CHINESE_MARK}(?:\*\*)?)\s*\n\s*|\s*\n\s*(?=(?:\*\*)?{CHINESE_MARK})"
)
T = TypeVar("T")


# -- a file ----------------------------------------------------------------------------------------------------------
class Fields(dict):
    """A YAML mapping that remembers where it stands, such as "glossary.yaml line 7", so that an error can name it."""

    where: str = ""


def read_yaml(path: Path) -> Any:
    """The file as Python data, in which each mapping is a `Fields`. Raises ValueError where the YAML is broken.

    The mappings of a file in JSON know their file, but not their line.
    """
    if (document := _read_json(path)) is not None:
        return document
    import yaml

    try:
        with open(path, encoding="utf-8") as file:
            return yaml.load(file, Loader=_loader_class())
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else "?"
        raise ValueError(
            f"{path.name} line {line}: this is not YAML ({getattr(error, 'problem', error)}); quote a text that holds "
            "`: ` or starts with a backtick or an asterisk, or write it as a block with `|`"
        ) from None


def read_texts(path: Path) -> Any:
    """The file as Python data in which every value is a text, so that `on` is no truth value and 03 no number."""
    if (document := _read_json(path)) is not None:
        return document
    import yaml  # 20 ms, which an import of this module should not cost

    return yaml.load(path.read_text(encoding="utf-8"), getattr(yaml, "CBaseLoader", yaml.BaseLoader))


def _read_json(path: Path) -> Any:
    """The content of a file in JSON; None for another file."""
    text = path.read_text(encoding="utf-8")
    if not text.startswith(("{", "[")):
        return None
    return json.loads(text, object_hook=functools.partial(_fields, path.name))


def _fields(where: str, values: dict | list[tuple]) -> Fields:
    """A mapping, or its pairs, as `Fields` that stand at `where`."""
    fields = Fields(values)
    fields.where = where
    return fields


@functools.cache
def _loader_class() -> type:
    """A safe loader whose mappings know their line and refuse a field given twice, and which reads 1e-3 as a number."""
    import yaml

    class LoaderWithLines(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # libyaml's parser is several times faster
        def mapping(self, node: Any) -> Fields:
            where = f"{basename(node.start_mark.name)} line {node.start_mark.line + 1}"
            fields = _fields(where, self.construct_pairs(node, deep=True))
            if len(fields) < len(node.value):
                raise yaml.MarkedYAMLError(problem="a field is given twice", problem_mark=node.start_mark)
            return fields

    LoaderWithLines.add_constructor("tag:yaml.org,2002:map", LoaderWithLines.mapping)
    exponent = re.compile(r"[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+")
    LoaderWithLines.add_implicit_resolver("tag:yaml.org,2002:float", exponent, list("-+0123456789"))
    return LoaderWithLines


def read_list(
    path: Path,
    key: str,
    kind: Callable[[Any], T],
    names_of: Callable[[T], Iterable[str]] = lambda entry: [getattr(entry, dataclasses.fields(entry)[0].name)],
) -> tuple[T, ...]:
    """The entries of a file that holds one list under `key`.

    kind: the dataclass of an entry, or a function that makes an entry of its `Fields`. names_of: what no other entry
    may be called, by default the value of the first field. Raises ValueError with file and line.
    """
    document = read_yaml(path)
    if not isinstance(document, dict) or set(document) != {key} or not isinstance(document[key], list):
        raise ValueError(f"{path.name}: the file must hold a list under `{key}:` and nothing else")
    entries, taken = [], {}
    for fields in document[key]:
        entries.append(read_record(kind, fields, path.name) if isinstance(kind, type) else kind(fields))
        where = getattr(fields, "where", path.name)
        for name in map(str, names_of(entries[-1])):
            if name.casefold() in taken:
                raise ValueError(f"{where}: {name!r} is taken by {taken[name.casefold()]}; choose another")
            taken[name.casefold()] = where
    return tuple(entries)


# -- a mapping -------------------------------------------------------------------------------------------------------
def read_record(kind: type[T], fields: Any, where: str = "", name: str = "", **given: Any) -> T:
    """One YAML mapping as an object of the dataclass `kind`.

    An error of an entry names it by the value of its first field. name: of the field that holds the mapping, "" for an
    entry of a file. given: fields that the YAML does not have; a field `where` is filled with file, line and name.
    Raises ValueError where a field is missing, unknown or has a wrong value, and where the object refuses its values.
    """
    hints = _hints(kind)
    known = {one.name: one for one in dataclasses.fields(kind) if one.name not in {*given, "where"}}
    required = [key for key, one in known.items() if one.default is one.default_factory is dataclasses.MISSING]
    where = getattr(fields, "where", where)
    if not isinstance(fields, dict):
        raise ValueError(f"{where}: {_quoted(name)}this must be a mapping with the fields {', '.join(required)}")
    prefix = f"{name}." if name else ""
    for key in required:
        if key not in fields:
            raise ValueError(f"{where}: the field `{prefix}{key}` is missing; add it")
    if unknown := sorted(str(key) for key in set(fields) - set(known)):
        raise ValueError(f"{where}: `{prefix}{unknown[0]}` is no field here; the known ones are {', '.join(known)}")
    first = next(iter(known))
    if not name and first in fields:
        where += f" ({read_value(hints[first], fields[first], where, first)})"
    values = {key: read_value(hints[key], value, where, prefix + key) for key, value in fields.items()}
    try:
        return kind(**values, **given, **({"where": where} if "where" in hints else {}))
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    """Maps each field of a dataclass to its annotation."""
    return get_type_hints(kind, include_extras=True)


def _quoted(name: str) -> str:
    return f"`{name}`: " if name else ""


# -- a value ---------------------------------------------------------------------------------------------------------
def read_value(kind: Any, value: Any, where: str, name: str) -> Any:
    """A value as the annotation `kind` wants it. Raises ValueError, which names file, line and field, for another."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return kind.__metadata__[0](value, where, name)
    if len(inner) == 2 and inner[1] is NoneType:  # `kind | None`, of which None is the default
        return read_value(inner[0], value, where, name)
    if origin is Literal:
        return one_of(*inner)(value, where, name)
    if origin is tuple:
        return tuple(read_value(inner[0], item, where, name) for item in _list(value, where, name))
    if origin is dict:
        check(isinstance(value, dict), value, where, name, "write a mapping")
        return {key: read_value(inner[1], item, where, f"{name}.{key}") for key, item in value.items()}
    if kind is Words:
        return read_words(value, where, name)
    if dataclasses.is_dataclass(kind):
        return read_record(kind, value, where, name)
    if kind is bool:
        return check(value is True, value, where, name, "write true, or leave it out")
    if kind in (int, float):
        is_number = isinstance(value, int | kind) and not isinstance(value, bool)
        return check(is_number, value, where, name, "it must be a number, written without quotes")
    return str(value) if kind is str else value


def check(is_right: bool, value: T, where: str, name: str, advice: str) -> T:
    """The value itself. Raises ValueError, which ends in the advice, if it is not right."""
    if not is_right:
        raise ValueError(f"{where}: `{name}` is {value!r}; {advice}")
    return value


def _list(value: Any, where: str, name: str) -> list:
    if not isinstance(value, list):
        raise ValueError(f"{where}: `{name}` must be a list; start each entry with a hyphen")
    return value


def read_words(value: Any, where: str, name: str) -> Words:
    """A text in both languages."""
    if not isinstance(value, dict) or value.keys() != LANGUAGES.keys():
        every = " and ".join(f"`{lang}:`" for lang in LANGUAGES)
        raise ValueError(f"{where}: `{name}` must hold {every} and nothing else")
    for language, text in value.items():
        is_text = isinstance(text, str) and bool(text.strip())
        check(is_text, text, where, f"{name}.{language}", "write a text there, in quotes if it is a number")
    if not re.search(WIDE, value["zh"]):
        raise ValueError(f"{where}: `{name}.zh` holds no Chinese character; translate it")
    return Words(**value).map(unfold)


def unfold(text: str) -> str:
    """Each paragraph as one line.

    Lines are joined with a space, but with nothing between Chinese characters and beside a full-width mark, which
    brings its own space.
    """
    if "\n" not in text:
        return " ".join(text.split())
    paragraphs = re.split(r"\n\s*\n", text.strip())
    joined = [LINE_BREAK.sub(lambda match: match[1] or match[2] or "", paragraph) for paragraph in paragraphs]
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in joined)


def one_of(*known: str) -> Callable[[Any, str, str], str]:
    """A reader of one of these names."""
    return lambda value, where, name: check(value in known, value, where, name, f"it must be one of {', '.join(known)}")


def named(known: Mapping[str, T]) -> Callable[[Any, str, str], T]:
    """A reader of a name, which returns what the name stands for."""
    return lambda value, where, name: known[one_of(*known)(value, where, name)]


def _read_code(value: Any, where: str, name: str) -> str:
    return str(value).strip("\n")


def _read_same_words(value: Any, where: str, name: str) -> Words:
    return read_words(value, where, name) if isinstance(value, dict) else Words.of(str(value))


Code = Annotated[str, _read_code]  # code or what it prints, without the line breaks around it
AnyWords = Annotated[Words, _read_same_words]  # in both languages, or one text for both, such as arithmetic
