"""Writes what a teacher gets at the end of a run: the HTML report, CSV files for gradebooks, a table for the terminal.

The HTML report is one file that needs nothing else. It shows learners and tasks, why tasks fail, what a teacher should
look at, similar answers, answers in words by question, and every verdict. The CSV files are keyed by learner:

grades.csv   everything: learner, name, file, total, attempts, each task, each answer in words (empty: for a person),
             remarks
moodle.csv   for Moodle's Grades > Import > CSV file: map "ID number" or "Username" to the user, the others to
             grade items; "Identifier" and "Grade" are the columns of an assignment's offline grading worksheet
canvas.csv   for Canvas's Gradebook > Import: Student, ID, SIS User ID, SIS Login ID, Section, then one assignment, with
             the row Points Possible

An answer in words (`written`) is graded by hand. A flag marks something unusual in a notebook that a teacher should
read; it takes no points. Attempts are how often a learner ran the check of a task, if their progress file says so.

`results` has one GradedSubmission per learner, and in this file `one` is always one of them.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from helpers.classroom.plain_text import MAX_LISTED, one_line
from helpers.classroom.results import GradedSubmission, GradedTask, flags_of, flags_summary
from helpers.classroom.similarity import SimilarPair
from helpers.classroom.submissions import attempts_summary
from helpers.learner.document import (
    Content,
    Element,
    code_block,
    element,
    folded,
    heading,
    link,
    listed,
    page,
    paragraph,
    section,
    small,
    span,
    strong,
    table,
)
from helpers.learner.words.wrapping import aligned
from helpers.quantities.units import format_seconds

MARKS = {"passed": "✓", "failed": "✗", "missing": "–", "not graded": "?"}
FLAG = "⚑"
LEGEND = {
    "passed": "passed",
    "failed": "the check says no",
    "missing": "not in the notebook",
    "not graded": "nothing could be run",
}
MAX_PAIRS = 100  # pairs of similar answers that are shown; of any others the report says only how many there are
MAX_NAME = 40  # characters of a learner's name in the table for the terminal
MAX_REASON = 160  # characters of a verdict that stand for a reason in the table of reasons
# Learner to key of a task to number of attempts, for the learners who handed in a progress file.
Attempts = Mapping[str, Mapping[str, int]]


def report_html(
    results: Sequence[GradedSubmission],
    *,
    title: str,
    isolation_text: str,
    rubrics: dict[str, str],
    is_complete: bool,
    attempts: Attempts,
    pairs: Sequence[SimilarPair],
) -> str:
    """The whole HTML page.

    isolation_text: how learners' code was isolated. rubrics: the id of a question, such as "03_ddp.explain", to its
    rubric. is_complete: whether the run was not interrupted. pairs: similar answers.
    """
    return page(
        element(
            "main",
            heading(title, 1),
            _summary(results, isolation_text, is_complete),
            _task_map(results, attempts),
            _reasons(results),
            _to_look_at(results),
            _similar_answers(results, pairs),
            _written_answers(results, rubrics),
            _verdicts(results),
        ),
        title=title,
        kind="report",
    )


def _summary(results: Sequence[GradedSubmission], isolation_text: str, is_complete: bool) -> Iterator[Element]:
    passed = sum(bool(one.tasks) and all(task.state == "passed" for task in one.tasks) for one in results)
    ungraded = sum(any(task.state == "not graded" for task in one.tasks) or not one.tasks for one in results)
    flagged = sum(bool(flags_of(one)) for one in results)
    yield paragraph(
        f"{len(results)} submissions: {passed} passed every task, {ungraded} could not be graded, {flagged} "
        "have a flag. A flag takes no points."
    )
    if not is_complete:
        interrupted = strong("The run was interrupted: these are the results so far.")
        yield paragraph(interrupted, " The same command goes on.")
    yield paragraph(isolation_text, class_="soft")


def _task_map(results: Sequence[GradedSubmission], attempts: Attempts) -> Iterator[Element]:
    keys = task_keys(results)
    yield heading("Learners and tasks", id="map")
    marks = [[span(MARKS[state], class_=_css(state)), f"{text}. "] for state, text in LEGEND.items()]
    yield paragraph(marks, span(FLAG, class_="flag"), "flagged: read it, below.", class_="legend")
    rows = []
    for number, one in enumerate(results):
        tasks = {task.key: task for task in one.tasks}
        own_attempts = attempts.get(one.learner)
        total = f"{one.points:g} / {one.max_points:g}" if one.tasks else "?"
        flags = flags_summary(flags_of(one), one.more_flags)
        numbers = [element("td", text, class_="number") for text in (total, attempts_summary(own_attempts))]
        cells = [_cell(tasks.get(key), own_attempts) for key in keys]
        rows.append([link(_name(one), f"#learner-{number}"), numbers[0], *cells, flags, numbers[1]])
    yield _wide_table(["learner", "points", *keys, "flags", "attempts"], rows)
    yield paragraph(
        "Attempts are known of those who handed in their progress file; it is their own word.", class_="soft"
    )


def _wide_table(head: Sequence[Content], rows: Iterable[Sequence[Content]]) -> Element:
    """A table that scrolls sideways on a narrow screen; the first cell of a row is its heading."""
    return section(table(head, rows, has_row_heads=True), class_="wide")


def _name(one: GradedSubmission) -> str:
    return one.name or one.learner


def _cell(task: GradedTask | None, attempts: Mapping[str, int] | None) -> Element:
    """A learner's cell for one task: empty if the learner's lab does not have the task."""
    if task is None:
        return element("td")
    # The most certain flag comes first.
    flag = [" ", span(f"{FLAG} {task.flags[0].certainty}", class_="flag")] if task.flags else None
    attempted = f" · attempts: {attempts[task.key]}" if attempts else ""
    points = f"{MARKS[task.state]} {task.points:g}/{task.max_points:g}"
    title = (task.hint or LEGEND[task.state]) + attempted
    return element("td", points, flag, " ", small(task.state), class_=f"task {_css(task.state)}", title=title)


def _reasons(results: Sequence[GradedSubmission]) -> Iterator[Element]:
    yield heading("What the class finds hard", id="why")
    rows = []
    for key in task_keys(results):
        tasks = [task for one in results for task in one.tasks if task.key == key]
        num_passed = sum(task.state == "passed" for task in tasks)
        rows.append((num_passed / len(tasks), key, num_passed, tasks))
    shown = []
    for _, key, num_passed, tasks in sorted(rows, key=lambda row: row[:2]):  # the hardest task first
        reasons = Counter(_reason(task) for task in tasks if task.state != "passed")
        items = listed(f"{count} × {reason}" for reason, count in reasons.most_common())
        shown.append([key, f"{num_passed} of {len(tasks)}", items])
    yield table(["task", "passed", "why not"], shown, has_row_heads=True)


def _reason(task: GradedTask) -> str:
    """Why a task was not passed: the hint for a known mistake, or what the verdict says below its first line."""
    if task.state != "failed":
        return LEGEND[task.state]
    if task.hint:
        return task.hint
    lines = [line.strip() for line in task.text.splitlines()]  # the first line only says that the task failed
    return lines[1][:MAX_REASON] if len(lines) > 1 else task.text[:MAX_REASON]


def _to_look_at(results: Sequence[GradedSubmission]) -> Iterator[Element]:
    yield heading("To look at yourself", id="look")
    rows = [[_name(one), *remark] for one in results for remark in _remarks(one)]
    if not rows:
        yield paragraph("Nothing.")
        return
    certain, likely, look = (element("em", name) for name in ("certain", "likely", "look"))
    yield paragraph(
        "A line here is a reason to read the notebook, not a judgement of the person, and it took no points. ",
        certain, ": the learner's own line names it. ", likely, ": honest answers do not go this way. ",
        look, ": unusual, and perhaps honest.",
    )  # fmt: skip
    yield _wide_table(["learner", "task", "where", "what", "how sure"], rows)


def _remarks(one: GradedSubmission) -> Iterator[tuple[str, str, str, str]]:
    """Rows of (task, location, text, certainty): each flag, then the problems and notes, which have only a text.

    Of more than MAX_LISTED flags the others are counted.
    """
    flags = flags_of(one)
    yield from ((flag.key, flag.location, flag.reason, flag.certainty) for flag in flags[:MAX_LISTED])
    if others := _num_unlisted(one):
        yield "", "", f"and {others:,} more flags", ""
    yield from (("", "", text, "") for text in (*one.problems, *one.notes))


def remarks_of(one: GradedSubmission) -> list[str]:
    """What `_remarks` lists, as sentences."""
    flags = [flag.text for flag in flags_of(one)[:MAX_LISTED]]
    others = [f"And {count:,} more flags."] if (count := _num_unlisted(one)) else []
    return [*flags, *others, *one.problems, *one.notes]


def _num_unlisted(one: GradedSubmission) -> int:
    """How many flags there are beyond MAX_LISTED."""
    return max(0, len(flags_of(one)) - MAX_LISTED) + sum(one.more_flags.values())


def _similar_answers(results: Sequence[GradedSubmission], pairs: Sequence[SimilarPair]) -> Iterator[Element]:
    names = {one.learner: _name(one) for one in results}
    yield heading("Similar answers", id="similar")
    if not pairs:
        yield paragraph("None.")
        return
    yield paragraph(
        "These are the same but for names, comments, formatting and the order of statements. It accuses nobody: "
        "people learn together, and some answers have few forms. What is the lab's own, the solution's, or written by "
        "more than a third of the class is not counted. Ask both about a line of it (",
        element("code", "grade viva"),
        ").",
    )
    for pair in pairs[:MAX_PAIRS]:
        both = " and ".join(names[learner] for learner in pair.learners)
        summary = [f"{pair.key}: {both} ", small(f"{pair.share:.0%} of the pieces equal")]
        yield folded(summary, section(map(code_block, pair.texts), class_="two"))
    if len(pairs) > MAX_PAIRS:
        yield paragraph(f"And {len(pairs) - MAX_PAIRS} more, less equal than these.")


def _written_answers(results: Sequence[GradedSubmission], rubrics: dict[str, str]) -> Iterator[Content]:
    """Answers in words, question by question, so that a teacher keeps one rubric in mind at a time."""
    for name in written_ids(results):
        yield heading(f"To be graded by hand: {name}")
        yield code_block(rubrics.get(name, "no rubric"))
        pairs = [(one, answer) for one in results for answer in one.written if f"{one.lab}.{answer.grade_id}" == name]
        for one, answer in pairs:
            if not answer.is_empty:
                yield heading([f"{_name(one)} ", small(f"__ / {answer.max_points:g}")], 3)
                yield code_block(answer.text.strip())
        if empty := [_name(one) for one, answer in pairs if answer.is_empty]:
            yield paragraph(f"(nothing written): {', '.join(empty)}")


def _verdicts(results: Sequence[GradedSubmission]) -> Iterator[Element]:
    yield heading("Verdicts")
    for number, one in enumerate(results):
        time = f"{format_seconds(one.seconds)}, {one.peak_bytes / 1e6:.0f} MB" if one.peak_bytes else "not run"
        yield folded(
            [f"{_name(one)} ", small(f"{one.file} · {time}")],
            listed(remarks_of(one)),
            code_block("\n".join(task.text or f"{task.key}  {task.state}" for task in one.tasks)),
            [[heading(answer.grade_id, 4), code_block(answer.text.strip())] for answer in one.written],
            id=f"learner-{number}",
        )


def _css(state: str) -> str:
    """The CSS class of a state: "not-graded" for "not graded"."""
    return state.replace(" ", "-")


# -- CSV files ---------------------------------------------------------------------------------------------------------
def write_tables(results: Sequence[GradedSubmission], out: Path, attempts: Attempts) -> list[Path]:
    """Write the three CSV files into `out`. Returns their paths."""
    rows = {"grades.csv": grades(results, attempts), "moodle.csv": moodle(results), "canvas.csv": canvas(results)}
    for name, lines in rows.items():
        with open(out / name, "w", newline="", encoding="utf-8", errors="backslashreplace") as file:
            writer = csv.writer(file, quoting=csv.QUOTE_ALL)  # a spreadsheet may split at other signs than the comma
            writer.writerows([_without_formula(cell) for cell in line] for line in lines)
    return [out / name for name in rows]


def grades(results: Sequence[GradedSubmission], attempts: Attempts) -> Iterable[list]:
    """The rows of grades.csv."""
    keys, written = task_keys(results), written_ids(results)
    yield ["learner", "name", "file", "lab", "points", "of", "attempts", *keys, *written, "remarks"]
    for one in results:
        points = {task.key: task.points for task in one.tasks}
        remarks = " ".join(remarks_of(one))
        tasks = [_number(points[key]) if key in points else "" for key in keys]
        totals = [_number(one.points), _number(one.max_points), attempts_summary(attempts.get(one.learner))]
        by_hand = [""] * len(written)  # a person fills these in
        yield [one.learner, one.name, one.file, one.lab, *totals, *tasks, *by_hand, remarks]


def moodle(results: Sequence[GradedSubmission]) -> Iterable[list]:
    """The rows of moodle.csv."""
    keys = task_keys(results)
    yield ["Identifier", "Full name", "ID number", "Username", "Grade", "Maximum grade", *keys]
    for one in results:
        points = {task.key: _number(task.points) for task in one.tasks}
        # In files from Moodle, `learner` is the number of the participant; otherwise it is the name of the user.
        is_from_moodle = one.source == "moodle"
        identifier = f"Participant {one.learner}" if is_from_moodle else ""
        user = "" if is_from_moodle else one.learner
        total = [_number(one.points), _number(one.max_points)]
        yield [identifier, one.name, user, user, *total, *(points.get(key, "") for key in keys)]


def canvas(results: Sequence[GradedSubmission]) -> Iterable[list]:
    """The rows of canvas.csv."""
    labs = sorted({one.lab for one in results if one.lab})
    max_points = {lab: max(one.max_points for one in results if one.lab == lab) for lab in labs}
    yield ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", *labs]
    # Canvas itself writes this row with four spaces before the words.
    yield ["    Points Possible", "", "", "", "", *(_number(max_points[lab]) for lab in labs)]
    for one in results:
        is_from_canvas = one.source == "canvas"
        ids = [one.learner, "", ""] if is_from_canvas else ["", one.learner, one.learner]  # ID, SIS User ID, SIS Login
        yield [one.name or one.learner, *ids, "", *(_number(one.points) if lab == one.lab else "" for lab in labs)]


def task_keys(results: Sequence[GradedSubmission]) -> list[str]:
    """The keys of all graded tasks, in their order."""
    return list(dict.fromkeys(task.key for one in results for task in one.tasks))


def written_ids(results: Sequence[GradedSubmission]) -> list[str]:
    """The ids of all questions to be answered in words, such as "03_ddp.explain"."""
    return list(dict.fromkeys(f"{one.lab}.{answer.grade_id}" for one in results for answer in one.written))


def _number(points: float) -> str:
    return f"{points:g}"


def _without_formula(cell: str) -> str:
    """The cell, quoted if a spreadsheet would take it for a formula: learners choose the names of their files.

    Spreadsheets in some languages also take the wide forms of these signs, and some cut off spaces in front.
    """
    return "'" + cell if cell.strip()[:1] in tuple("=+-@＝＋－＠") or cell[:1] in ("\t", "\r", "\n") else cell


# -- terminal ----------------------------------------------------------------------------------------------------------


def terminal_table(results: Sequence[GradedSubmission], attempts: Attempts) -> str:
    """One line per learner with points, the mark of each task, attempts and flags."""
    keys = task_keys(results)
    head = ["learner", "points", *(_short_key(key, keys) for key in keys), "attempts", "flags"]
    rows = [head, *(_terminal_row(one, keys, attempts) for one in results)]
    return "\n".join(line.rstrip() for line in aligned(rows, left=len(head)))


def _terminal_row(one: GradedSubmission, keys: Sequence[str], attempts: Attempts) -> list[str]:
    marks = {task.key: MARKS[task.state] for task in one.tasks}
    points = f"{one.points:g}/{one.max_points:g}" if one.tasks else "?"
    summaries = [attempts_summary(attempts.get(one.learner)), flags_summary(flags_of(one), one.more_flags)]
    name = one_line(one.name or one.learner, MAX_NAME)
    return [name, points, *(marks.get(key, "") for key in keys), *map(one_line, summaries)]


def _short_key(key: str, keys: Sequence[str]) -> str:
    """ "average" for "03.average" if all keys are of one lab, otherwise the key."""
    lab, _, name = key.partition(".")
    return name if all(other.startswith(f"{lab}.") for other in keys) else key
