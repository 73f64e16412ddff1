"""Names the mistake in a wrong answer: the known mistake that leaves on the same inputs what the learner's answer left.

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

Where a check failed, `with_mistakes` runs the mistakes on the grader's ranks, on the inputs of the failed cases, in the
smallest world that failed; those that leave the learner's outputs there have to do so in the largest one, too. Those
that leave the same messages as well are preferred. Where the outputs are right, only those count, because the messages
must be wrong. A *world* is a number of ranks that run an answer together, and a *case* is one set of inputs for them.
"""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from helpers.devices import FillUninitialized
from helpers.grading.kit.histories import is_same
from helpers.grading.registry import lab_of, task_of
from helpers.grading.run_on_ranks import RunningCase, as_plain_data, case_seed
from helpers.grading.task import RankContext, Task
from helpers.learner.words import Words
from helpers.learner.yaml_file import Fields, read_yaml
from helpers.ranks import RankError, Ranks
from helpers.ranks.processes.limits import load_per_core

if TYPE_CHECKING:
    from helpers.grading.verdict import WorldResult

SECONDS = 3.0  # that all mistakes may take in one world, on an idle machine
MARKED = re.compile(r"[-+=]( |$)")  # a line of an edit
COMMENT = re.compile(r" +# .*$")
FIELDS = {"who", "hint", "base", "edit", "text", "not_run"}
Message = tuple[str, str, int, str]  # the operation, how it reduces or "", its bytes, and its process group
Left = tuple[Any, list[Message]]  # what a case left on a rank: the outputs and the messages


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


# -- naming a mistake ------------------------------------------------------------------------------------------------
def with_mistakes(
    task: Task, results: Sequence[WorldResult], ranks: Callable[[], Ranks], seed: int
) -> list[WorldResult]:
    """The results, of which those that failed name the mistakes that leave what the learner's answer left.

    ranks: gives the ranks on which the mistakes run. seed: that of the check.
    """
    failed, known = [one for one in results if one.run and one.failed], mistakes_of(task.key)
    mistakes = [one for one in known.mistakes if one.is_run]
    if not failed or not mistakes:
        return list(results)
    for result in {result.size: result for result in (failed[0], failed[-1])}.values():
        mistakes = matching(task, known, mistakes, result, ranks(), seed) if mistakes else []
    keys = tuple({one.hint for one in mistakes})
    return [replace(one, mistakes=(*one.mistakes, *keys)) if one.failed else one for one in results]


def matching(
    task: Task, known: TaskMistakes, mistakes: Sequence[Mistake], result: WorldResult, ranks: Ranks, seed: int
) -> list[Mistake]:
    """Those of the mistakes that leave what the learner's answer left on every rank, in each case that failed."""
    failed = {judgement.case for judgement in result.failed}
    cases = [case for case in task.variations.cases(seed) if case.number in failed]
    inputs = [task.inputs(seed, result.size, case) for case in cases]
    left = [[_left(result, rank, case.number) for rank in range(len(inputs[0]))] for case in cases]
    texts, numbers = [known.answer, *(one.text for one in mistakes)], [case.number for case in cases]
    world = ranks[: len(inputs[0])]
    before, world.timeout = world.timeout, SECONDS * load_per_core()
    try:
        arguments = (task.key, f"{known.imports}\n\n{known.others}", texts, numbers, inputs, left, seed)
        is_answer_same, *are_same = world.run(_same_on_rank, *arguments)[0]
    except RankError:  # a mistake that hangs or kills a rank here
        return []
    finally:
        world.timeout = before
    if is_answer_same == "all":  # the answer is right, but has broken a promise to its caller
        return []
    same = {how: [one for one, its in zip(mistakes, are_same, strict=True) if its == how] for how in ("all", "outputs")}
    # Where the outputs are right, the messages are wrong, so they decide.
    return same["all"] or ([] if is_answer_same else same["outputs"])


def _left(result: WorldResult, rank: int, case: int) -> Left:
    """What the learner's answer left on this rank in this case."""
    return result.run.outputs[rank][case], _messages(result.run.events[rank][case])


def _messages(events: Sequence[Mapping[str, Any]]) -> list[Message]:
    return [(event["op"], event["reduce_op"] or "", event["payload_bytes"], event["group"]) for event in events]


# -- on a rank -------------------------------------------------------------------------------------------------------
def _same_on_rank(
    key: str,
    above: str,
    texts: Sequence[str],
    numbers: Sequence[int],
    inputs: Sequence[Sequence[dict]],
    left: Sequence[Sequence[Left]],
    seed: int,
) -> list[str]:
    """For each text, what it has in common with `left` on all ranks: "all", "outputs" (not the messages) or "".

    numbers: of the cases. inputs and left: as [case][rank].
    """
    task, rank, names = task_of(key), dist.get_rank(), {"__name__": "mistakes"}
    exec(compile(above, "mistakes.yaml", "exec"), names)
    same = []
    for text in texts:
        own = dict(names)
        exec(compile(text, "mistakes.yaml", "exec"), own)
        common = torch.tensor([1.0, 1.0])  # whether the outputs are the same, and whether the messages are
        for number, of_ranks, left_on_ranks in zip(numbers, inputs, left, strict=True):
            common *= _in_common(task, own[task.name], number, of_ranks[rank], left_on_ranks[rank], seed)
            dist.all_reduce(common, op=dist.ReduceOp.MIN)
            if not common[0]:
                break  # most texts end here, after one case
        same.append("" if not common[0] else "all" if common[1] else "outputs")
    return same


def _in_common(task: Task, submitted: Any, number: int, inputs: dict, left: Left, seed: int) -> torch.Tensor:
    """Whether this function or class leaves the same outputs, and whether it leaves the same messages, as 1 or 0.

    It gets copies of the inputs, since the next one must not find what this one changed.
    """
    context = RankContext(dist.get_rank(), dist.get_world_size())
    try:
        with FillUninitialized():
            case = RunningCase(task, submitted, copy.deepcopy(inputs), context, case_seed(seed, number) + context.rank)
            while case.advance():
                pass
        outputs, messages = as_plain_data(case.outputs), _messages(case.events)
    except Exception:  # a mistake that raises leaves nothing
        return torch.zeros(2)
    return torch.tensor([float(is_same(outputs, left[0])), float(messages == left[1])])
