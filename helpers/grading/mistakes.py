"""Reads the known mistakes of a task. Where a check failed, named_mistakes.py runs them.

A lab's mistakes.yaml holds the mistakes that learners often make, each once, as an edit of the right answer:

    imports: |                     # what the lab's first cell defines, and what else the texts below need
      import torch.distributed as dist

    03.average:                    # the task
      answer: |                    # the lab's own answer
        def average_gradients(model):
            ...
      divided_twice:               # the name: the hint of hints.yaml that it gets, or that hint and _more
        who: Whoever finds ReduceOp.AVG and keeps the division of the first attempt.
        edit: |
          - dist.all_reduce(parameter.grad)
          + dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)

Also: `hint: divided_twice`, where the name says more; `base: NAME`, where a mistake above is what is edited; `text: |`
instead of `edit`, where the whole answer is shorter; and `not_run: true` where running it would name nothing, since it
hangs or raises (`Task.recognise_failure` knows it by how the run failed) or since the judge names it by what differs
from run to run, such as bytes and times. An answer and a text are written with what the imports and the other tasks'
answers define. A text may return `...` in place of a value in which those who make the mistake differ.

An edit is read as a diff is, without what stays around it. `- ` goes, `+ ` comes, `= ` stays and says where. A blank
line ends an edit, and the next begins. What goes and stays is a block of lines that the text must hold exactly once.
How far the block is indented does not count, only its lines among each other, and a comment at the end of a line of the
text may be left out.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from helpers.grading.registry import lab_of
from helpers.grading.task import Task
from helpers.learner.words import Words
from helpers.learner.yaml_file import Fields, read_yaml

MARKED = re.compile(r"[-+=]( |$)")  # a line of an edit
COMMENT = re.compile(r" +# .*$")
FIELDS = {"who", "hint", "base", "edit", "text", "not_run"}


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """One mistake of a task. name: its own. hint: the key of its hint; both are "" for the right answer.

    text: the function or class, with this mistake. who: makes it, and why. is_run: whether running it can name it.
    """

    name: str
    hint: str
    text: str
    who: str = ""
    is_run: bool = True


@dataclass(frozen=True, kw_only=True)
class TaskMistakes:
    """What a mistakes.yaml says of one task. imports: of the file. others: the answers to the file's other tasks."""

    imports: str = ""
    others: str = ""
    answer: str = ""
    mistakes: tuple[Mistake, ...] = ()


# -- mistakes.yaml ---------------------------------------------------------------------------------------------------
def mistakes_of(key: str) -> TaskMistakes:
    """The mistakes of the task "03.average"; none for a task that no file describes, such as one of a teacher's own."""
    path = mistakes_file(key.partition(".")[0])
    return read_mistakes(path).get(key, TaskMistakes()) if path.exists() else TaskMistakes()


def mistakes_file(number: str) -> Path:
    """The mistakes.yaml of lab or chapter "03"."""
    return Path(__file__).parent / lab_of(number).topic / "mistakes.yaml"


def hints_of(task: Task) -> Mapping[str, Words]:
    """A task's hints by the key of the mistake: its own, or those of its lab's files, the more specific ones first."""
    return task.hints or _hints_of_file(task.key)


@functools.cache
def _hints_of_file(key: str) -> Mapping[str, Words]:
    """The hints of hints.yaml, in its order, that the task's mistakes get."""
    return lab_of(key.partition(".")[0]).hints.of(*(one.hint for one in mistakes_of(key).mistakes))


@functools.cache
def read_mistakes(path: Path) -> dict[str, TaskMistakes]:
    """The file's tasks by their keys. Raises ValueError, with file and mistake, for what is not as it should be."""
    document = dict(read_yaml(path))
    imports = document.pop("imports", "")
    answers = {key: str(entries.get("answer", "")) for key, entries in document.items()}
    tasks = {}
    for key, entries in document.items():
        others = "\n\n".join(text for other, text in answers.items() if other != key)
        mistakes = tuple(_mistakes_in(path.parent.name, entries))
        tasks[key] = TaskMistakes(imports=imports, others=others, answer=answers[key], mistakes=mistakes)
    return tasks


def _mistakes_in(folder: str, entries: Fields) -> Iterator[Mistake]:
    """The mistakes of one task, in the order of the file."""
    if not entries.get("answer"):
        raise ValueError(f"{folder}/{entries.where}: a task has an `answer`, which its mistakes change")
    texts = {None: str(entries["answer"])}
    for name, fields in entries.items():
        if name == "answer":
            continue
        where = f"{folder}/{fields.where}, {name}"
        _check_fields(fields, where, texts)
        try:
            text = fields["text"] if "text" in fields else edited(texts[fields.get("base")], fields["edit"])
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
        texts[name] = text
        more = {"who": fields["who"], "is_run": "not_run" not in fields}
        yield Mistake(name=name, hint=fields.get("hint", name), text=text, **more)


def _check_fields(fields: Mapping[str, Any], where: str, texts: Mapping[str | None, str]) -> None:
    """Raise ValueError for a field that is missing, too much, or names nothing."""
    if unknown := fields.keys() - FIELDS:
        raise ValueError(f"{where}: {min(unknown)!r} is no field of a mistake; there are {', '.join(sorted(FIELDS))}")
    if not fields.get("who") or ("edit" in fields) == ("text" in fields):
        raise ValueError(f"{where}: a mistake has `who`, and either `edit` or `text`")
    if "base" in fields and (fields["base"] not in texts or "text" in fields):
        raise ValueError(f"{where}: `base` is {fields['base']!r}; name a mistake above, to edit")


# -- edits -----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class Edit:
    """lines[start:end] of a text become `new`, indented by `by` blanks."""

    start: int
    end: int
    new: list[str]
    by: int


def edited(text: str, edits: str) -> str:
    """The text with its edits, each found in the text as it was. Raises ValueError for what is not written as above."""
    lines = text.splitlines()
    found = sorted((find(block, lines) for block in edits.strip("\n").split("\n\n")), key=lambda edit: edit.start)
    for edit, after in pairwise(found):
        if edit.end > after.start:
            raise ValueError(f"two edits change the line {lines[after.start].strip()!r}; make them one")
    for edit in reversed(found):
        lines[edit.start : edit.end] = [(" " * edit.by + line).rstrip() for line in edit.new]
    return "\n".join(lines) + "\n"


def find(block: str, lines: list[str]) -> Edit:
    """Where the text holds this block, and what becomes of it."""
    marked = block.split("\n")
    for line in marked:
        if not MARKED.match(line):
            raise ValueError(f"an edit has the line {line!r}; each begins with '- ', '+ ' or '= '")
    old, new = ([line[2:] for line in marked if line[0] in marks] for marks in ("-=", "+="))
    if not old:
        raise ValueError(f"an edit says what comes and not where: {block!r}; add the line beside it with '= '")
    places = [start for start in range(len(lines) - len(old) + 1) if begins(lines[start:], old)]
    if len(places) != 1:
        text = "\n".join(old)
        raise ValueError(f"these lines stand {len(places)} times where they must stand once:\n{text}")
    (start,) = places
    return Edit(start=start, end=start + len(old), new=new, by=indent(lines[start]) - indent(old[0]))


def begins(lines: list[str], old: list[str]) -> bool:
    """Whether the lines begin with the old ones, all of them moved to the right alike."""
    by = " " * (indent(lines[0]) - indent(old[0]))
    return all((by + one).rstrip() in (line, COMMENT.sub("", line)) for one, line in zip(old, lines, strict=False))


def indent(line: str) -> int:
    return len(line) - len(line.lstrip())
