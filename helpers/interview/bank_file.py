"""Reading `bank/NN_topic.yaml` into cards. Everything wrong in a file is one sentence: file, line, field, fix.

The format is written down in `bank/FORMAT.md`. YAML is imported when a bank is first read, so that importing this
module costs nothing.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from helpers.interview.cards import LEVELS, Card, Cell, Check, Choices, Prediction, Source
from helpers.learner.words import LANGUAGES, Words

BANK = Path(__file__).parent / "bank"
CARD_FIELDS = {"required": ("id", "level", "question", "answer", "shown_by")}
CARD_FIELDS["known"] = (
    *CARD_FIELDS["required"],
    "longer",
    "usual_mistake",
    "follow_ups",
    "verify",
    "choices",
    "predict",
    "archive",
)
CHECK_FIELDS = {
    "required": ("call", "value", "says"),
    "known": ("call", "value", "says", "args", "kwargs", "attribute"),
}
PREDICTION_FIELDS = {"required": ("ask", "says"), "known": ("ask", "says", "tolerance", "how")}
NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
CHINESE = re.compile(r"[\u4e00-\u9fff]")
MARK = r"[\u3000-\u303f\uff00-\uff0f\uff1a-\uff20]"  # 。、「 ，：（ and the like
WIDE = r"[\u3000-\u303f\u4e00-\u9fff\uff00-\uffef]"
JOIN = re.compile(
    rf"({WIDE}(?:\*\*)?)\s*\n\s*(?=(?:\*\*)?{WIDE})|({MARK}(?:\*\*)?)\s*\n\s*|\s*\n\s*(?=(?:\*\*)?{MARK})"
)


class Fields(dict):
    """A YAML mapping that remembers its line and its file, to say where something is wrong."""

    where: str = ""


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
    return _cards_of(path, (state.st_mtime_ns, state.st_size))


@functools.lru_cache(maxsize=64)
def _cards_of(path: Path, state: tuple[int, int]) -> tuple[Card, ...]:
    """The cards of a file, read once for each state of it: a notebook asks for the bank in one cell after the other."""
    document, chapter = read_yaml(path), path.stem
    if not isinstance(document, Fields) or set(document) != {"chapter", "cards"}:
        raise ValueError(f"{path.name}: the file must hold exactly `chapter:` and `cards:` at its top")
    where = f"{path.name} {document.where}"
    if document["chapter"] != chapter:
        raise ValueError(f"{where}: `chapter` is {document['chapter']!r} but the file is named {chapter}.yaml")
    if not isinstance(document["cards"], list) or not document["cards"]:
        raise ValueError(f"{where}: `cards` must be a list with at least one card")
    return tuple(read_card(fields, path.name) for fields in document["cards"])


def load_all(folder: Path = BANK) -> tuple[Card, ...]:
    """Every card of every chapter; raises ValueError when two cards share an id."""
    cards = [card for chapter in chapters(folder) for card in load_bank(chapter, folder)]
    seen: dict[str, Card] = {}
    for card in cards:
        if card.id in seen:
            raise ValueError(f"{card.where}: the id {card.id!r} is taken by {seen[card.id].where}; choose another")
        seen[card.id] = card
    return tuple(cards)


def read_entries(
    path: Path, under: str, read: Callable[[Any, str], Any], called: Callable[[Any], Iterable[str]]
) -> tuple[Any, ...]:
    """The entries of a file that holds one list under `under`: each is `read(fields, where)`, and no two that
    `called` gives the same name. Raises ValueError with file and line."""
    document = read_yaml(path)
    if not isinstance(document, dict) or set(document) != {under} or not isinstance(document[under], list):
        raise ValueError(f"{path.name}: the file must hold a list under `{under}:` and nothing else")
    entries, taken = [], {}
    for fields in document[under]:
        where = f"{path.name} {getattr(fields, 'where', '')}".strip()
        entries.append(read(fields, where))
        for name in called(entries[-1]):
            if name.casefold() in taken:
                raise ValueError(f"{where}: {name!r} is taken by {taken[name.casefold()]}; choose another")
            taken[name.casefold()] = where
    return tuple(entries)


def read_yaml(path: Path) -> Any:
    """The file as Python data, each mapping a `Fields`; raises ValueError where the YAML itself is broken."""
    import yaml

    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader=_loader_class())
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else "?"
        raise ValueError(
            f"{path.name} line {line}: this is not YAML ({getattr(error, 'problem', error)}); quote a text that holds "
            "`: ` or starts with a backtick or an asterisk, or write it as a block with `|`"
        ) from None


@functools.cache
def _loader_class() -> type:
    """A safe loader whose mappings know their line and refuse a field given twice, and which reads 1e-3 as a number."""
    import yaml

    class BankLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # libyaml's parser is several times faster
        def mapping(self, node: Any) -> Fields:
            fields = Fields(self.construct_pairs(node, deep=True))
            fields.where = f"line {node.start_mark.line + 1}"
            if len(fields) < len(node.value):
                raise yaml.MarkedYAMLError(problem="a field is given twice", problem_mark=node.start_mark)
            return fields

    BankLoader.add_constructor("tag:yaml.org,2002:map", BankLoader.mapping)
    exponent = re.compile(r"[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+")
    BankLoader.add_implicit_resolver("tag:yaml.org,2002:float", exponent, list("-+0123456789"))
    return BankLoader


def read_card(fields: Any, file: str) -> Card:
    """One card from its YAML mapping; raises ValueError with file, line and field."""
    where = f"{file} {getattr(fields, 'where', '')}".strip()
    check_fields(fields, CARD_FIELDS, where, "card")
    if not isinstance(fields["id"], str) or not NAME.fullmatch(fields["id"]):
        raise ValueError(f"{where}: `id` is {fields['id']!r}; use lower case letters, digits and hyphens")
    where = f"{where} ({fields['id']})"
    if fields["level"] not in LEVELS:
        raise ValueError(f"{where}: `level` is {fields['level']!r}; it must be one of {', '.join(LEVELS)}")
    if fields.get("archive", True) is not True:
        raise ValueError(f"{where}: `archive` is {fields['archive']!r}; write true, or leave it out")
    optional = {name: read_text(fields[name], where, name) for name in ("longer", "usual_mistake") if name in fields}
    verify = tuple(read_check(item, where) for item in read_list(fields, "verify", where))
    return Card(
        id=fields["id"],
        chapter=Path(file).stem,
        level=fields["level"],
        question=read_text(fields["question"], where, "question"),
        answer=read_text(fields["answer"], where, "answer"),
        shown_by=read_shown_by(fields["shown_by"], where),
        follow_ups=tuple(read_text(item, where, "follow_ups") for item in read_list(fields, "follow_ups", where)),
        verify=verify,
        choices=read_choices(fields["choices"], where) if "choices" in fields else None,
        predict=read_prediction(fields["predict"], verify, where) if "predict" in fields else None,
        archive="archive" in fields,
        where=where,
        **optional,
    )


def check_fields(fields: Any, names: dict[str, tuple[str, ...]], where: str, what: str) -> None:
    """Raise ValueError when a mapping lacks a required field or has one that nobody reads."""
    if not isinstance(fields, dict):
        raise ValueError(f"{where}: a {what} must be a mapping with the fields {', '.join(names['required'])}")
    for name in names["required"]:
        if name not in fields:
            raise ValueError(f"{where}: the field `{name}` of this {what} is missing; add it (see bank/FORMAT.md)")
    unknown = sorted(str(name) for name in set(fields) - set(names["known"]))
    if unknown:
        raise ValueError(
            f"{where}: `{unknown[0]}` is no field of a {what}; the known ones are {', '.join(names['known'])}"
        )


def read_list(fields: dict, name: str, where: str) -> list:
    """An optional list field."""
    items = fields.get(name, [])
    if not isinstance(items, list):
        raise ValueError(f"{where}: `{name}` must be a list; start each entry with a hyphen")
    return items


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
    """Lines of a paragraph joined: with a space, or with nothing between Chinese characters, bold ones too, and beside
    a full-width mark, which brings its own space."""
    paragraphs = re.split(r"\n\s*\n", text.strip()) if "\n" in text else [text]
    joined = [JOIN.sub(lambda found: found[1] or found[2] or "", paragraph) for paragraph in paragraphs]
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in joined)


def read_shown_by(value: Any, where: str) -> Cell | Source:
    """The cell or the source that shows the answer."""
    if isinstance(value, dict) and set(value) == {"source", "url"}:
        return Source(source=str(value["source"]), url=str(value["url"]))
    notebook, hash_sign, anchor = str(value).partition("#")
    if isinstance(value, dict) or not (notebook and hash_sign and anchor):
        raise ValueError(
            f"{where}: `shown_by` is {value!r}; write notebook#cell, such as 03_ddp#prove, "
            "or a mapping with `source:` and `url:`"
        )
    return Cell(notebook=notebook, anchor=anchor)


def read_check(fields: Any, where: str) -> Check:
    """One entry of `verify`."""
    check_fields(fields, CHECK_FIELDS, where, "check under `verify`")
    if not str(fields["call"]).startswith("helpers."):
        raise ValueError(f"{where}: `verify.call` is {fields['call']!r}; it must be a dotted name under helpers.")
    if isinstance(fields["value"], bool) or not isinstance(fields["value"], int | float):
        raise ValueError(f"{where}: `verify.value` is {fields['value']!r}; it must be the number that the call returns")
    if not isinstance(fields.get("args", []), list) or not isinstance(fields.get("kwargs", {}), dict):
        raise ValueError(f"{where}: `verify.args` must be a list and `verify.kwargs` a mapping")
    return Check(
        call=fields["call"],
        value=fields["value"],
        says=str(fields["says"]),
        args=tuple(fields.get("args", [])),
        kwargs=dict(fields.get("kwargs", {})),
        attribute=fields.get("attribute"),
    )


def read_choices(fields: Any, where: str) -> Choices:
    """The card as multiple choice: one right answer and two to four wrong ones, no two alike."""
    if not isinstance(fields, dict) or set(fields) != {"right", "wrong"}:
        raise ValueError(f"{where}: `choices` must hold `right:` and `wrong:` and nothing else")
    wrong = tuple(read_text(item, where, "choices.wrong") for item in read_list(fields, "wrong", where))
    if not 2 <= len(wrong) <= 4:
        raise ValueError(f"{where}: `choices.wrong` has {len(wrong)} entries; write two to four")
    right = read_text(fields["right"], where, "choices.right")
    for language in LANGUAGES:
        texts = [text.in_(language) for text in (right, *wrong)]
        if len(set(texts)) < len(texts):
            raise ValueError(f"{where}: two of `choices` read the same in `{language}`; make each another answer")
    return Choices(right=right, wrong=wrong)


def read_prediction(fields: Any, verify: tuple[Check, ...], where: str) -> Prediction:
    """The card as "predict the number": a number that one of its checks holds, and how far a guess may be off."""
    check_fields(fields, PREDICTION_FIELDS, where, "question under `predict`")
    says, tolerance = str(fields["says"]), fields.get("tolerance", 0.05)
    if says not in [check.says for check in verify]:
        raise ValueError(f"{where}: `predict.says` is {says!r}, which no check under `verify` says; add that check")
    if isinstance(tolerance, bool) or not isinstance(tolerance, int | float) or not 0 <= tolerance < 1:
        raise ValueError(
            f"{where}: `predict.tolerance` is {tolerance!r}; write a share from 0 to below 1, such as 0.05"
        )
    ask, how = read_text(fields["ask"], where, "predict.ask"), str(fields.get("how", ""))
    return Prediction(ask=ask, says=says, tolerance=float(tolerance), how=how)
