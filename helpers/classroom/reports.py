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

`results` has one GradedSubmission per learner, and in this file `one` is always one of them. The functions with a
leading underscore give pieces of HTML, which are joined by line breaks.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path

from helpers.classroom.plain_text import MAX_LISTED, one_line
from helpers.classroom.results import GradedSubmission, GradedTask, flags_of, flags_summary
from helpers.classroom.similarity import SimilarPair
from helpers.classroom.submissions import attempts_summary
from helpers.learner.words.wrapping import width
from helpers.quantities.units import format_seconds

MARKS = {"passed": "✓", "failed": "✗", "missing": "–", "not graded": "?"}
FLAG = "⚑"
LEGEND = {
    "passed": "passed",
    "failed": "the check says no",
    "missing": "not in the notebook",
    "not graded": "nothing could be run",
}
STYLE = Path(__file__).with_name("report.css").read_text(encoding="utf-8")
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
    parts = [
        f"<!doctype html><html lang='en'><head><meta charset='utf-8'><title>{escape(title)}</title>",
        "<meta name='viewport' content='width=device-width, initial-scale=1'>",
        f"<style>{STYLE}</style></head><body><main><h1>{escape(title)}</h1>",
        *_summary(results, isolation_text, is_complete),
        *_task_map(results, attempts),
        *_reasons(results),
        *_to_look_at(results),
        *_similar_answers(results, pairs),
        *_written_answers(results, rubrics),
        *_verdicts(results),
        "</main></body></html>",
    ]
    return "\n".join(parts)


def _summary(results: Sequence[GradedSubmission], isolation_text: str, is_complete: bool) -> Iterator[str]:
    passed = sum(bool(one.tasks) and all(task.state == "passed" for task in one.tasks) for one in results)
    ungraded = sum(any(task.state == "not graded" for task in one.tasks) or not one.tasks for one in results)
    flagged = sum(bool(flags_of(one)) for one in results)
    yield f"<p>{len(results)} submissions: {passed} passed every task, {ungraded} could not be graded, {flagged} "
    yield "have a flag. A flag takes no points.</p>"
    if not is_complete:
        yield "<p><strong>The run was interrupted: these are the results so far.</strong> The same command goes on.</p>"
    yield f"<p class='soft'>{escape(isolation_text)}</p>"


def _task_map(results: Sequence[GradedSubmission], attempts: Attempts) -> Iterator[str]:
    keys = task_keys(results)
    yield "<h2 id='map'>Learners and tasks</h2><p class='legend'>"
    yield " ".join(f"<span class='{_css(s)}'>{MARKS[s]}</span>{escape(text)}." for s, text in LEGEND.items())
    yield f"<span class='flag'>{FLAG}</span>flagged: read it, below.</p>"
    yield "<div class='wide'><table><thead><tr>"
    head = ["learner", "points", *keys, "flags", "attempts"]
    yield "".join(f"<th scope='col'>{escape(name)}</th>" for name in head) + "</tr></thead><tbody>"
    for number, one in enumerate(results):
        tasks = {task.key: task for task in one.tasks}
        own_attempts = attempts.get(one.learner)
        cells = "".join(_cell(tasks.get(key), own_attempts) for key in keys)
        total = f"{one.points:g} / {one.max_points:g}" if one.tasks else "?"
        link = f"<a href='#learner-{number}'>{escape(one.name or one.learner)}</a>"
        flags = escape(flags_summary(flags_of(one), one.more_flags))
        last = f"<td>{flags}</td><td class='number'>{attempts_summary(own_attempts)}</td>"
        yield f"<tr><th scope='row'>{link}</th><td class='number'>{total}</td>{cells}{last}</tr>"
    yield "</tbody></table></div>"
    yield "<p class='soft'>Attempts are known of those who handed in their progress file; it is their own word.</p>"


def _cell(task: GradedTask | None, attempts: Mapping[str, int] | None) -> str:
    """A learner's cell for one task: empty if the learner's lab does not have the task."""
    if task is None:
        return "<td></td>"
    text = f"{MARKS[task.state]} {task.points:g}/{task.max_points:g}"
    if task.flags:
        text += f" <span class='flag'>{FLAG} {task.flags[0].certainty}</span>"  # the most certain one comes first
    attempted = f" · attempts: {attempts[task.key]}" if attempts else ""
    title = escape((task.hint or LEGEND[task.state]) + attempted, quote=True)
    return f"<td class='task {_css(task.state)}' title='{title}'>{text} <small>{escape(task.state)}</small></td>"


def _reasons(results: Sequence[GradedSubmission]) -> Iterator[str]:
    yield "<h2 id='why'>What the class finds hard</h2><table><thead><tr><th scope='col'>task</th>"
    yield "<th scope='col'>passed</th><th scope='col'>why not</th></tr></thead><tbody>"
    rows = []
    for key in task_keys(results):
        tasks = [task for one in results for task in one.tasks if task.key == key]
        num_passed = sum(task.state == "passed" for task in tasks)
        rows.append((num_passed / len(tasks), key, num_passed, tasks))
    for _, key, num_passed, tasks in sorted(rows, key=lambda row: row[:2]):  # the hardest task first
        reasons = Counter(_reason(task) for task in tasks if task.state != "passed")
        items = "".join(f"<li>{count} × {escape(reason)}</li>" for reason, count in reasons.most_common())
        passed = f"{num_passed} of {len(tasks)}"
        yield f"<tr><th scope='row'>{escape(key)}</th><td>{passed}</td><td><ul>{items}</ul></td></tr>"
    yield "</tbody></table>"


def _reason(task: GradedTask) -> str:
    """Why a task was not passed: the hint for a known mistake, or what the verdict says below its first line."""
    if task.state != "failed":
        return LEGEND[task.state]
    if task.hint:
        return task.hint
    lines = [line.strip() for line in task.text.splitlines()]  # the first line only says that the task failed
    return lines[1][:MAX_REASON] if len(lines) > 1 else task.text[:MAX_REASON]


def _to_look_at(results: Sequence[GradedSubmission]) -> Iterator[str]:
    yield "<h2 id='look'>To look at yourself</h2>"
    listed = [(one, *row) for one in results for row in _remarks(one)]
    if not listed:
        yield "<p>Nothing.</p>"
        return
    yield "<p>A line here is a reason to read the notebook, not a judgement of the person, and it took no points. "
    yield "<em>certain</em>: the learner's own line names it. <em>likely</em>: honest answers do not go this way. "
    yield "<em>look</em>: unusual, and perhaps honest.</p><div class='wide'><table><thead><tr>"
    yield "".join(f"<th scope='col'>{head}</th>" for head in ("learner", "task", "where", "what", "how sure"))
    yield "</tr></thead><tbody>"
    for one, *row in listed:
        name = f"<th scope='row'>{escape(one.name or one.learner)}</th>"
        yield f"<tr>{name}{''.join(f'<td>{escape(text)}</td>' for text in row)}</tr>"
    yield "</tbody></table></div>"


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


def _similar_answers(results: Sequence[GradedSubmission], pairs: Sequence[SimilarPair]) -> Iterator[str]:
    names = {one.learner: escape(one.name or one.learner) for one in results}
    yield "<h2 id='similar'>Similar answers</h2>"
    if not pairs:
        yield "<p>None.</p>"
        return
    yield "<p>These are the same but for names, comments, formatting and the order of statements. It accuses nobody: "
    yield "people learn together, and some answers have few forms. What is the lab's own, the solution's, or written "
    yield "by more than a third of the class is not counted. Ask both about a line of it (<code>grade viva</code>).</p>"
    for pair in pairs[:MAX_PAIRS]:
        both = " and ".join(names[learner] for learner in pair.learners)
        share = f"{pair.share:.0%} of the pieces equal"
        yield f"<details><summary>{escape(pair.key)}: {both} <small>{share}</small></summary><div class='two'>"
        yield "".join(f"<pre>{escape(text)}</pre>" for text in pair.texts) + "</div></details>"
    if len(pairs) > MAX_PAIRS:
        yield f"<p>And {len(pairs) - MAX_PAIRS} more, less equal than these.</p>"


def _written_answers(results: Sequence[GradedSubmission], rubrics: dict[str, str]) -> Iterator[str]:
    """Answers in words, question by question, so that a teacher keeps one rubric in mind at a time."""
    for name in written_ids(results):
        yield f"<h2>To be graded by hand: {escape(name)}</h2><pre>{escape(rubrics.get(name, 'no rubric'))}</pre>"
        pairs = [(one, answer) for one in results for answer in one.written if f"{one.lab}.{answer.grade_id}" == name]
        for one, answer in pairs:
            if not answer.is_empty:
                yield f"<h3>{escape(one.name or one.learner)} <small>__ / {answer.max_points:g}</small></h3>"
                yield f"<pre>{escape(answer.text.strip())}</pre>"
        if empty := [escape(one.name or one.learner) for one, answer in pairs if answer.is_empty]:
            yield f"<p>(nothing written): {', '.join(empty)}</p>"


def _verdicts(results: Sequence[GradedSubmission]) -> Iterator[str]:
    yield "<h2>Verdicts</h2>"
    for number, one in enumerate(results):
        time = f"{format_seconds(one.seconds)}, {one.peak_bytes / 1e6:.0f} MB" if one.peak_bytes else "not run"
        yield f"<details id='learner-{number}'><summary>{escape(one.name or one.learner)} "
        yield f"<small>{escape(one.file)} · {time}</small></summary>"
        texts = remarks_of(one)
        yield "<ul>" + "".join(f"<li>{escape(text)}</li>" for text in texts) + "</ul>" if texts else ""
        verdicts = "\n".join(f"{task.text or task.key + '  ' + task.state}" for task in one.tasks)
        yield f"<pre>{escape(verdicts)}</pre>"
        yield from (f"<h4>{escape(a.grade_id)}</h4><pre>{escape(a.text.strip())}</pre>" for a in one.written)
        yield "</details>"


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
    widths = [max(width(row[column]) for row in rows) for column in range(len(head))]
    return "\n".join(_terminal_line(row, widths) for row in rows)


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


def _terminal_line(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = (cell + " " * (columns - width(cell)) for cell, columns in zip(row, widths, strict=True))
    return "  ".join(cells).rstrip()
