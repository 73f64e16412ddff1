"""Reads the interview cards from `bank/*.yaml`, and provides the readers of YAML fields that this package shares.

A card is a question with its answer. A text of it is a `Words`, in two languages with the fields en and zh. Everything
wrong in a file becomes one ValueError with file, line, field and how to fix it. `bank/FORMAT.md` describes the format.
`read_entries` and `read_record` also read the glossary, the myths, the drills and the rounds.

In every function, `fields` is one YAML mapping, and `where` says in which file and line it stands, for errors.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from helpers.interview.cards import LEVELS, Card, Check, Choices, NotebookCell, Prediction, Publication
from helpers.learner.words import LANGUAGES, Words
from helpers.learner.yaml_file import Fields, read_yaml

BANK = Path(__file__).parent / "bank"
CARD_ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
CHINESE = re.compile(r"[\u4e00-\u9fff]")
CHINESE_MARK = r"[\u3000-\u303f\uff00-\uff0f\uff1a-\uff20]"  # 。、「 ，：（ and the like
WIDE = r"[\u3000-\u303f\u4e00-\u9fff\uff00-\uffef]"  # a Chinese character or mark
LINE_BREAK = re.compile(  # between two wide characters or beside a Chinese mark, a line break is no space; **: bold
    rf"({WIDE}(?:\*\*)?)\s*\n\s*(?=(?:\*\*)?{WIDE})|({CHINESE_MARK}(?:\*\*)?)\s*\n\s*|\s*\n\s*(?=(?:\*\*)?{CHINESE_MARK})"
)
Reader = Callable[[Any, str, str], Any]  # (value, where it stands, name of the field) -> the value as Python has it


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
    path: Path, key: str, read: Callable[[Any, str], Any], names_of: Callable[[Any], Iterable[str]]
) -> tuple[Any, ...]:
    """The entries of a file that holds one list under `key`, each read by `read(fields, where)`.

    Raises ValueError with file and line where an entry is wrong, and where two entries share one of the names that
    `names_of` returns.
    """
    document = read_yaml(path)
    if not isinstance(document, dict) or set(document) != {key} or not isinstance(document[key], list):
        raise ValueError(f"{path.name}: the file must hold a list under `{key}:` and nothing else")
    entries, taken = [], {}
    for fields in document[key]:
        where = line_of(fields, path.name)
        entries.append(read(fields, where))
        for name in names_of(entries[-1]):
            if name.casefold() in taken:
                raise ValueError(f"{where}: {name!r} is taken by {taken[name.casefold()]}; choose another")
            taken[name.casefold()] = where
    return tuple(entries)


def line_of(fields: Any, file: str) -> str:
    """Where a mapping of this file stands: "file.yaml line 7"."""
    return f"{file} {getattr(fields, 'where', '')}".strip()


# -- a mapping -------------------------------------------------------------------------------------------------------
def read_record(
    fields: Any, readers: Mapping[str, Reader], where: str, what: str, *, optional: Collection[str] = (), name: str = ""
) -> tuple[str, dict[str, Any]]:
    """Where one YAML mapping stands, for errors, and its fields, each as its reader returns it.

    readers: the known fields, of which all but the `optional` ones are required. where: file and line. what: how an
    error calls the mapping, such as "card". name: the field whose value errors add to `where`, "" for none. Raises
    ValueError where a field is missing, unknown or refused by its reader.
    """
    check_fields(fields, [key for key in readers if key not in optional], readers, where, what)
    if name:
        readers[name](fields[name], where, name)  # raises here, before a wrong value stands in `where`
        where = f"{where} ({fields[name]})"
    return where, {key: reader(fields[key], where, key) for key, reader in readers.items() if key in fields}


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
def read_as_is(value: Any, where: str, name: str) -> Any:
    """The value itself."""
    return value


def read_string(value: Any, where: str, name: str) -> str:
    """A text that is the same in every language; a number becomes its digits."""
    return str(value)


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


def read_texts(value: Any, where: str, name: str) -> tuple[Words, ...]:
    """A list of texts in both languages."""
    return tuple(read_text(item, where, name) for item in read_items(value, where, name))


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


def one_of(*known: str) -> Reader:
    """A reader of one of these names."""

    def read(value: Any, where: str, name: str) -> str:
        if value not in known:
            raise ValueError(f"{where}: `{name}` is {value!r}; it must be one of {', '.join(known)}")
        return value

    return read


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
    where, card = read_record(fields, CARD_READERS, line_of(fields, file), "card", optional=OPTIONAL_IN_CARD, name="id")
    if "predict" in card:  # read last, because it must repeat a number of the card's checks
        card["predict"] = read_prediction(card["predict"], card.get("verify", ()), where)
    return Card(chapter=Path(file).stem, where=where, **card)


def _read_card_id(value: Any, where: str, name: str) -> str:
    if not isinstance(value, str) or not CARD_ID.fullmatch(value):
        raise ValueError(f"{where}: `id` is {value!r}; use lower case letters, digits and hyphens")
    return value


def _read_archive(value: Any, where: str, name: str) -> bool:
    """True, the only value that `archive` may have; it marks a card that interviewers no longer ask."""
    if value is not True:
        raise ValueError(f"{where}: `archive` is {value!r}; write true, or leave it out")
    return value


def _read_verify(value: Any, where: str, name: str) -> tuple[Check, ...]:
    return tuple(read_check(item, where) for item in read_items(value, where, name))


def read_check(fields: Any, where: str) -> Check:
    """One entry of `verify`: a number in the answer, and the call that computes it.

    A test makes the call, and compares the number with what the answer says.
    """
    what, optional = "check under `verify`", ("args", "kwargs", "attribute")
    _, check = read_record(fields, CHECK_READERS, where, what, optional=optional)
    args, kwargs = check.get("args", []), check.get("kwargs", {})
    if not str(check["call"]).startswith("helpers."):
        raise ValueError(f"{where}: `verify.call` is {check['call']!r}; it must be a dotted name under helpers.")
    if not _is_number(check["value"]):
        raise ValueError(f"{where}: `verify.value` is {check['value']!r}; it must be the number that the call returns")
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        raise ValueError(f"{where}: `verify.args` must be a list and `verify.kwargs` a mapping")
    return Check(**check | {"args": tuple(args), "kwargs": dict(kwargs)})


def read_choices(fields: Any, where: str, name: str = "choices") -> Choices:
    """The card as multiple choice: one right answer and two to four wrong ones, no two alike."""
    if not isinstance(fields, dict) or set(fields) != {"right", "wrong"}:
        raise ValueError(f"{where}: `choices` must hold `right:` and `wrong:` and nothing else")
    wrong = tuple(read_text(item, where, "choices.wrong") for item in read_items(fields["wrong"], where, "wrong"))
    if not 2 <= len(wrong) <= 4:
        raise ValueError(f"{where}: `choices.wrong` has {len(wrong)} entries; write two to four")
    right = read_text(fields["right"], where, "choices.right")
    for language in LANGUAGES:
        texts = [text.in_(language) for text in (right, *wrong)]
        if len(set(texts)) < len(texts):
            raise ValueError(f"{where}: two of `choices` read the same in `{language}`; make each another answer")
    return Choices(right=right, wrong=wrong)


def read_prediction(fields: Any, verify: tuple[Check, ...], where: str) -> Prediction:
    """The card as "predict the number": a number that one of its checks holds, and how far a guess may be off.

    verify: the checks of the card. In the YAML `says` is the number as printed, and `how` its computation.
    """
    known = ("ask", "says", "tolerance", "how")  # of which the first two are required
    check_fields(fields, known[:2], known, where, "question under `predict`")
    says, tolerance = str(fields["says"]), fields.get("tolerance", 0.05)
    if says not in [check.says for check in verify]:
        raise ValueError(f"{where}: `predict.says` is {says!r}, which no check under `verify` says; add that check")
    if not _is_number(tolerance) or not 0 <= tolerance < 1:
        raise ValueError(
            f"{where}: `predict.tolerance` is {tolerance!r}; write a share from 0 to below 1, such as 0.05"
        )
    ask, how = read_text(fields["ask"], where, "predict.ask"), str(fields.get("how", ""))
    return Prediction(ask=ask, says=says, tolerance=float(tolerance), how=how)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)  # True is an int in Python


# The fields of a card and of a check, with the function that reads each.
CARD_READERS = {
    "id": _read_card_id, "level": one_of(*LEVELS), "question": read_text, "answer": read_text,
    "shown_by": read_shown_by, "longer": read_text, "usual_mistake": read_text, "follow_ups": read_texts,
    "verify": _read_verify, "choices": read_choices, "predict": read_as_is, "archive": _read_archive,
}  # fmt: skip
OPTIONAL_IN_CARD = ("longer", "usual_mistake", "follow_ups", "verify", "choices", "predict", "archive")
CHECK_READERS = {"call": read_as_is, "value": read_as_is, "says": read_string, "args": read_as_is, "kwargs": read_as_is}
CHECK_READERS |= {"attribute": read_as_is}
