"""Defines the question of a guess as plain data, and reads the declared answers of each chapter from YAML.

A chapter asks for a guess before it shows a result. The notebook calls `helpers.widgets.guess`, which calls
`make_question`. The answers are in one YAML file per chapter in this folder and not in the notebook, where a learner
would read them:

    08.stage2:
      answer: 7                     # a number in the question's unit; a choice; or a list, for an order
      zh: 每个 rank 上每个参数占多少字节？
      spoils: [four and one and two]  # optional: other texts that would give it away, besides the number with its unit

Where there are choices or an order, `zh` is `{question: …, choices: […]}`. The choices are in the order of the call in
the notebook. The things to put in order are in the order of `answer`, while the call may have them in any order, so
that its code does not give the answer away. A "declaration" is one such entry.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from helpers.learner.words import Words
from helpers.learner.yaml_file import read_yaml

FOLDER = Path(__file__).parent
DECLARATION_FIELDS = {"answer", "zh", "spoils"}  # that an entry of a file may have
KINDS = ("memory", "traffic", "time", "count")  # what a question is about, by which a learner's guesses are judged
TIME_UNITS = ("s", "ms", "µs", "us", "ns", "min", "h")
LONGEST_KEY = 60  # characters of a key that is made from a question's text
DeclaredAnswer = float | str | tuple[str, ...]  # a number, a choice, an order


# -- declared answers ------------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class Declaration:
    """What a chapter declares about a question."""

    key: str
    answer: DeclaredAnswer  # a number, a choice, or the texts of an order
    zh: str = ""  # the question in Chinese
    zh_choices: tuple[str, ...] = ()  # its choices in Chinese, in the order in which the notebook has them
    spoils: tuple[str, ...] = ()  # texts that would give the answer away; a test searches the chapter for them

    @property
    def chapter(self) -> str:
        """The chapter's number, "08"."""
        return self.key.partition(".")[0]


def declaration(key: str) -> Declaration | None:
    """What is declared for this key, None where nothing is. Raises ValueError for a file that is written wrongly."""
    return all_declarations().get(key)


def declarations_in(chapter: str) -> tuple[Declaration, ...]:
    """The questions of a chapter, "08", in the order of its file, which is the order of the chapter."""
    return tuple(one for one in all_declarations().values() if one.chapter == chapter)


@cache
def all_declarations(folder: Path = FOLDER) -> dict[str, Declaration]:
    """Every declaration by its key. Raises ValueError, with file and key, for what is written wrongly."""
    declarations: dict[str, Declaration] = {}
    for path in sorted(folder.glob("*.yaml")):
        for key, entry in (read_yaml(path) or {}).items():
            one = _read_declaration(path, key, entry)
            if one.key in declarations:
                raise ValueError(f"{path.name}: {one.key} is declared twice")
            declarations[one.key] = one
    return declarations


def _read_declaration(path: Path, key: object, entry: object) -> Declaration:
    """One entry of a file. Raises ValueError for a wrong key, field or value."""
    chapter, fields = path.stem.partition("_")[0], DECLARATION_FIELDS
    if not isinstance(key, str) or not key.startswith(f"{chapter}."):
        raise ValueError(f'{path.name}: the key {key!r} should be a text such as "{chapter}.name", like the file')
    if not isinstance(entry, dict) or "answer" not in entry or set(entry) - fields:
        raise ValueError(f"{path.name}: {key} needs `answer`, and may have {', '.join(sorted(fields))}; got {entry!r}")
    zh, choices = _read_chinese(path, key, entry.get("zh", ""))
    spoils = tuple(map(str, _as_list(entry.get("spoils", ()))))
    answer = _read_answer(path, key, entry["answer"])
    return Declaration(key=key, answer=answer, zh=zh, zh_choices=choices, spoils=spoils)


def _read_answer(path: Path, key: str, answer: Any) -> DeclaredAnswer:
    """The answer of an entry: numbers become floats, and a list an order."""
    if isinstance(answer, list) and len(answer) > 1:
        return tuple(map(str, answer))
    if isinstance(answer, bool) or not isinstance(answer, int | float | str) or answer == "":
        raise ValueError(
            f"{path.name}: the answer of {key} is {answer!r}; write a number, a choice in quotes, or a list"
        )
    return answer if isinstance(answer, str) else float(answer)


def _read_chinese(path: Path, key: str, zh: Any) -> tuple[str, tuple[str, ...]]:
    """The question and its choices."""
    if isinstance(zh, str):
        return zh, ()
    if not isinstance(zh, dict) or set(zh) - {"question", "choices"} or "question" not in zh:
        raise ValueError(f"{path.name}: zh of {key} is {zh!r}; write a text, or {{question: …, choices: […]}}")
    return str(zh["question"]), tuple(map(str, _as_list(zh.get("choices", ()))))


def _as_list(value: Any) -> list:
    return list(value) if isinstance(value, list | tuple) else [value]


# -- questions -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class Question:
    """One question. Words are texts in every language of the course."""

    key: str
    text: Words
    form: str = "number"  # or "between" (a range, given by two numbers), "choice", "order"
    kind: str = "count"  # one of KINDS
    unit: str = ""
    options: tuple[Words, ...] = ()  # the choices, or the things to put in order, as they are shown
    truth: DeclaredAnswer | None = None  # the declared answer, None where none is declared
    wrong: str = ""  # what the author of the question should correct, or ""


def make_question(
    text: str,
    *,
    unit: str = "",
    kind: str = "",
    key: str = "",
    choices: Sequence[str] | None = None,
    order: Sequence[str] | None = None,
    between: bool = False,
) -> Question:
    """The question that a call of `guess` asks, with what its chapter declares. The parameters are those of `guess`.

    Never raises for a question that is asked wrongly, because a learner reads it: `wrong` says what is wrong.
    """
    key = key or key_of(text)
    known, file_error = _find_declaration(key)
    form = "choice" if choices else "order" if order else "between" if between else "number"
    options = tuple(map(str, choices or order or ()))
    wrong = file_error or _problem(key, kind, form, options, known and known.answer)
    # Without a translation of every choice, the Chinese page shows the English ones.
    chinese = known.zh_choices if known and len(known.zh_choices) == len(options) else options
    if form == "order" and known and isinstance(known.answer, tuple):  # the call may have another order than the answer
        in_chinese = dict(zip(known.answer, chinese, strict=False))
        chinese = [in_chinese.get(option, option) for option in options]
    shown = [Words(en=en, zh=zh) for en, zh in zip(options, chinese, strict=True)]
    if form == "order":
        # The key is the seed, so that every run shows the same order.
        random.Random(key).shuffle(shown)
    return Question(
        key=key, text=Words(en=text, zh=(known and known.zh) or text), form=form, unit=unit, options=tuple(shown),
        kind=kind if kind in KINDS else _kind_of(unit), truth=None if known is None or wrong else known.answer,
        wrong=wrong,
    )  # fmt: skip


def key_of(text: str) -> str:
    """A key made from the words of a question. A long or not English one ends in six digits of its hash."""
    slug = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    if len(slug) <= LONGEST_KEY and slug and text.isascii():
        return slug
    return f"{slug[:LONGEST_KEY].strip('-') or 'guess'}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"


def _find_declaration(key: str) -> tuple[Declaration | None, str]:
    """The declaration, if any, and what is wrong with the files, or ""."""
    try:
        return declaration(key), ""
    except ValueError as error:
        return None, str(error)


def _kind_of(unit: str) -> str:
    """The kind of a question whose author named none: "memory" for bytes such as "MB" or "GiB".

    Bytes can be traffic as well, which the unit does not tell, so the author must name the kind "traffic".
    """
    return "memory" if re.match(r"([kKMGT]i?)?B\b", unit) else "time" if unit in TIME_UNITS else "count"


def _problem(key: str, kind: str, form: str, options: Sequence[str], answer: DeclaredAnswer | None) -> str:
    """What the author of the question should correct, or ""."""
    if kind and kind not in KINDS:
        return f"{key}: the kind is {kind!r}; expected one of {', '.join(KINDS)}"
    if form == "choice" and (len(options) < 2 or len(set(options)) < len(options)):
        return f"{key}: the choices are {', '.join(options)}; give two or more, each once"
    if form == "order" and len(set(options)) < 2:
        return f"{key}: there is one thing to put in order; give two or more"
    if answer is None:
        return ""
    is_order = form == "order" and sorted(options) == sorted(answer if isinstance(answer, tuple) else ())
    # Whether the form of the question can have this answer; a number fits the forms "number" and "between".
    fits = {"choice": answer in options, "order": is_order}
    if not fits.get(form, isinstance(answer, float)):
        return f"{key}: the declared answer {answer!r} is none that can be given here"
    return ""
