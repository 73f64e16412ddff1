"""The report for a teacher: one HTML file that needs nothing else.

The table of learners and tasks, why tasks fail, what to look at, similar answers, words by question, every verdict.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from html import escape

from helpers.classroom import attempts, flagged
from helpers.classroom.alike import Pair
from helpers.classroom.flagged import flags_of
from helpers.classroom.results import Graded, Result
from helpers.classroom.tables import task_keys, written_ids
from helpers.classroom.terminal import Attempts
from helpers.quantities.units import format_seconds

MARKS = {"passed": "✓", "failed": "✗", "missing": "–", "not graded": "?"}
FLAG = "⚑"
LEGEND = {
    "passed": "passed",
    "failed": "the check says no",
    "missing": "not in the notebook",
    "not graded": "nothing could be run",
}
STYLE = """
:root { color-scheme: light dark; --ink: #1c1f23; --paper: #ffffff; --soft: #5a626b; --line: #d4d9de;
  --passed: #d3efd9; --failed: #f8d6d2; --flag: #fbe6b8; --missing: #e6e9ed; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8eaed; --paper: #16181b; --soft: #a4acb5; --line: #3a4047;
  --passed: #1d4a2b; --failed: #5e2420; --flag: #57430f; --missing: #2a2f35; } }
@media print { :root { --ink: #000; --paper: #fff; --soft: #333; --line: #888; --passed: #e4f5e8; --failed: #fbe3e0;
  --flag: #fdf0cf; --missing: #eee; } details > *:not(summary) { display: block; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 70rem;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; } p { max-width: 46rem; }
.wide { overflow-x: auto; } table { border-collapse: collapse; margin: 1rem 0; }
th, td { border: 1px solid var(--line); padding: .3rem .6rem; text-align: left; vertical-align: top; }
thead th { position: sticky; top: 0; background: var(--paper); } td.number { text-align: right; }
td.passed, span.passed { background: var(--passed); } td.failed, span.failed { background: var(--failed); }
span.flag { background: var(--flag); padding: 0 .25rem; }
td.missing, td.not-graded, span.missing, span.not-graded { background: var(--missing); }
td.task { white-space: nowrap; }
.two { display: grid; grid-template-columns: 1fr 1fr; gap: 1rem; } .two pre { margin: 0; }
.legend span { padding: .1rem .5rem; margin-right: .4rem; border: 1px solid var(--line); }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: var(--missing);
  padding: .6rem .8rem; font-size: .85rem; }
details { border-top: 1px solid var(--line); padding: .4rem 0; } summary { cursor: pointer; }
small, .soft { color: var(--soft); }
a { color: inherit; }
"""


MOST_PAIRS = 100  # of similar answers; more say that something else is the matter


def page(
    results: Sequence[Result],
    *,
    title: str,
    isolation: str,
    rubrics: dict[str, str],
    is_complete: bool,
    tried: Attempts,
    pairs: Sequence[Pair],
) -> str:
    """The whole page. isolation: a sentence on how it was shut in. rubrics: "03_ddp.explain" to its text.

    tried: learner to task to attempts, of those who told. pairs: similar answers.
    """
    parts = [
        f"<!doctype html><html lang='en'><head><meta charset='utf-8'><title>{escape(title)}</title>",
        "<meta name='viewport' content='width=device-width, initial-scale=1'>",
        f"<style>{STYLE}</style></head><body><main><h1>{escape(title)}</h1>",
        *_summary(results, isolation, is_complete),
        *_map(results, tried),
        *_why(results),
        *_attention(results),
        *_similar(results, pairs),
        *_words(results, rubrics),
        *_learners(results),
        "</main></body></html>",
    ]
    return "\n".join(parts)


def _summary(results: Sequence[Result], isolation: str, is_complete: bool) -> Iterator[str]:
    full = sum(bool(one.tasks) and all(task.state == "passed" for task in one.tasks) for one in results)
    unread = sum(any(task.state == "not graded" for task in one.tasks) or not one.tasks for one in results)
    reported = sum(bool(flags_of(one)) for one in results)
    yield f"<p>{len(results)} submissions: {full} passed every task, {unread} could not be graded, {reported} "
    yield "have a flag. A flag takes no points.</p>"
    if not is_complete:
        yield "<p><strong>The run was interrupted: these are the results so far.</strong> The same command goes on.</p>"
    yield f"<p class='soft'>{escape(isolation)}</p>"


def _map(results: Sequence[Result], tried: Attempts) -> Iterator[str]:
    keys = task_keys(results)
    yield "<h2 id='map'>Learners and tasks</h2><p class='legend'>"
    yield " ".join(f"<span class='{_css(s)}'>{MARKS[s]}</span>{escape(text)}." for s, text in LEGEND.items())
    yield f"<span class='flag'>{FLAG}</span>flagged: read it, below.</p>"
    yield "<div class='wide'><table><thead><tr>"
    head = ["learner", "points", *keys, "flags", "attempts"]
    yield "".join(f"<th scope='col'>{escape(name)}</th>" for name in head) + "</tr></thead><tbody>"
    for number, one in enumerate(results):
        tasks = {task.key: task for task in one.tasks}
        told = tried.get(one.learner)
        cells = "".join(_cell(tasks.get(key), told) for key in keys)
        total = f"{one.points:g} / {one.most:g}" if one.tasks else "?"
        link = f"<a href='#learner-{number}'>{escape(one.name or one.learner)}</a>"
        flags = escape(flagged.in_short(flags_of(one)))
        last = f"<td>{flags}</td><td class='number'>{attempts.in_short(told)}</td>"
        yield f"<tr><th scope='row'>{link}</th><td class='number'>{total}</td>{cells}{last}</tr>"
    yield "</tbody></table></div>"
    yield "<p class='soft'>Attempts are known of those who handed in their progress file; it is their own word.</p>"


def _cell(task: Graded | None, tried: Mapping[str, int] | None) -> str:
    if task is None:
        return "<td></td>"
    words = f"{MARKS[task.state]} {task.points:g}/{task.most:g}"
    words += f" <span class='flag'>{FLAG} {task.flags[0].sure}</span>" if task.flags else ""
    attempted = f" · attempts: {tried[task.key]}" if tried else ""
    title = escape((task.hint or LEGEND[task.state]) + attempted, quote=True)
    return f"<td class='task {_css(task.state)}' title='{title}'>{words} <small>{escape(task.state)}</small></td>"


def _why(results: Sequence[Result]) -> Iterator[str]:
    yield "<h2 id='why'>What the class finds hard</h2><table><thead><tr><th scope='col'>task</th>"
    yield "<th scope='col'>passed</th><th scope='col'>why not</th></tr></thead><tbody>"
    rows = []
    for key in task_keys(results):
        tasks = [task for one in results for task in one.tasks if task.key == key]
        rows.append((sum(task.state == "passed" for task in tasks) / len(tasks), key, tasks))
    for share, key, tasks in sorted(rows, key=lambda row: row[:2]):
        reasons = Counter(_reason(task) for task in tasks if task.state != "passed")
        items = "".join(f"<li>{count} × {escape(reason)}</li>" for reason, count in reasons.most_common())
        passed = f"{round(share * len(tasks))} of {len(tasks)}"
        yield f"<tr><th scope='row'>{escape(key)}</th><td>{passed}</td><td><ul>{items}</ul></td></tr>"
    yield "</tbody></table>"


def _reason(task: Graded) -> str:
    if task.state != "failed":
        return LEGEND[task.state]
    if task.hint:
        return task.hint
    lines = [line.strip() for line in task.text.splitlines()]
    return lines[1][:160] if len(lines) > 1 else task.text[:160]


def _attention(results: Sequence[Result]) -> Iterator[str]:
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


def _remarks(one: Result) -> Iterator[tuple[str, str, str, str]]:
    """(task, where, what, how sure): each flag, then what kept parts from being graded, and notes."""
    yield from ((flag.key, flag.place, flag.says, flag.sure) for flag in flags_of(one))
    yield from (("", "", text, "") for text in (*one.problems, *one.notes))


def to_look_at(one: Result) -> list[str]:
    return [*(flag.text for flag in flags_of(one)), *one.problems, *one.notes]


def _similar(results: Sequence[Result], pairs: Sequence[Pair]) -> Iterator[str]:
    names = {one.learner: escape(one.name or one.learner) for one in results}
    yield "<h2 id='similar'>Similar answers</h2>"
    if not pairs:
        yield "<p>None.</p>"
        return
    yield "<p>These are the same but for names, comments, formatting and the order of statements. It accuses nobody: "
    yield "people learn together, and some answers have few forms. What is the lab's own, the solution's, or written "
    yield "by more than a third of the class is not counted. Ask both about a line of it (<code>grade viva</code>).</p>"
    for pair in pairs[:MOST_PAIRS]:
        both, share = " and ".join(names[learner] for learner in pair.learners), f"{pair.share:.0%} of the pieces equal"
        yield f"<details><summary>{escape(pair.key)}: {both} <small>{share}</small></summary><div class='two'>"
        yield "".join(f"<pre>{escape(text)}</pre>" for text in pair.texts) + "</div></details>"
    if len(pairs) > MOST_PAIRS:
        yield f"<p>And {len(pairs) - MOST_PAIRS} more, less equal than these.</p>"


def _words(results: Sequence[Result], rubrics: dict[str, str]) -> Iterator[str]:
    """Question by question, so that one rubric is in mind at a time."""
    for name in written_ids(results):
        yield f"<h2>To be graded by hand: {escape(name)}</h2><pre>{escape(rubrics.get(name, 'no rubric'))}</pre>"
        pairs = [(one, answer) for one in results for answer in one.written if f"{one.lab}.{answer.grade_id}" == name]
        for one, answer in pairs:
            if not answer.is_empty:
                yield f"<h3>{escape(one.name or one.learner)} <small>__ / {answer.most:g}</small></h3>"
                yield f"<pre>{escape(answer.text.strip())}</pre>"
        if silent := [escape(one.name or one.learner) for one, answer in pairs if answer.is_empty]:
            yield f"<p>(nothing written): {', '.join(silent)}</p>"


def _learners(results: Sequence[Result]) -> Iterator[str]:
    yield "<h2>Verdicts</h2>"
    for number, one in enumerate(results):
        time = f"{format_seconds(one.seconds)}, {one.peak_bytes / 1e6:.0f} MB" if one.peak_bytes else "not run"
        yield f"<details id='learner-{number}'><summary>{escape(one.name or one.learner)} "
        yield f"<small>{escape(one.file)} · {time}</small></summary>"
        texts = to_look_at(one)
        yield "<ul>" + "".join(f"<li>{escape(text)}</li>" for text in texts) + "</ul>" if texts else ""
        verdicts = "\n".join(f"{task.text or task.key + '  ' + task.state}" for task in one.tasks)
        yield f"<pre>{escape(verdicts)}</pre>"
        yield from (f"<h4>{escape(a.grade_id)}</h4><pre>{escape(a.text.strip())}</pre>" for a in one.written)
        yield "</details>"


def _css(state: str) -> str:
    return state.replace(" ", "-")
