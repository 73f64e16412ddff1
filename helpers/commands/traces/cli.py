"""The command `python -m helpers explain trace.json [other.json]`, and the explanation of a trace as lines of text.

`report_lines` is also what `python -m helpers profile` prints at its end. The text has sections: where the time of a
step went (the waterfall, in the parts PARTS), the same by rank, the straggler, the critical path, gaps, operators,
memory, clocks and notes. Each function `_…` writes one. `words(key, …)` is a text in the reader's language.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from helpers.commands.traces.explain import Explanation, compare, explain
from helpers.commands.traces.files import words
from helpers.commands.traces.perfetto import to_chrome_trace
from helpers.commands.traces.run import read
from helpers.commands.traces.waterfall import MIN_MATCHED, PARTS
from helpers.learner.words.wrapping import aligned, complain, wrap
from helpers.quantities.units import format_bytes, format_seconds

REFUSED = 2  # the exit code that argparse uses too
BAR_WIDTH = 24  # columns of the bar of a whole step
MAX_ROWS = 6  # of gaps, operators, pieces of the critical path, and numbers of steps that are listed
MAX_NAME = 28  # columns of an operator's name or shapes
MIN_STEPS = 10  # of the profiler's window: a shorter one may miss what happens in one step of ten
MIN_OFFSET = 1e-6  # seconds: a smaller offset of a clock is not reported
MUCH_COMMUNICATION = 0.2  # of a step: from here on, a report without a straggler names the network
MIN_GAP = 1e-6  # seconds: a shorter gap is not listed
MIN_PATH_SHARE = 0.01  # of a step: a shorter piece of the critical path is not listed


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(
        prog="python -m helpers explain",
        description="Where a training step's time went, and which rank is to blame: from traces of torch.profiler.",
    )
    options.add_argument("trace", type=Path, help="a file, a folder with one per rank, or a zip archive of them")
    options.add_argument("other", type=Path, nargs="?", help="another one, to compare it with")
    options.add_argument("--run", type=int, metavar="NUMBER", help="which run of the folder, if it holds several")
    options.add_argument("--json", action="store_true", help="print numbers as JSON")
    perfetto = "write all ranks' lanes for https://ui.perfetto.dev"
    options.add_argument("--perfetto", type=Path, metavar="FILE", help=perfetto)
    return options


def main(arguments: list[str]) -> int:
    """Prints the explanation. Returns 0, or 2 where a trace cannot be read."""
    given = parser().parse_args(arguments)
    columns = shutil.get_terminal_size().columns
    try:
        runs = [read(given.trace, run=given.run)] + [read(path) for path in (given.other,) if path]
        explanations = [explain(run) for run in runs]
        if given.perfetto:
            to_chrome_trace(runs[0].timeline, given.perfetto)
    except (ValueError, OSError) as problem:
        complain(words("failed", problem=problem))
        return REFUSED
    if given.json:
        compared = {"compared": compare(*explanations)} if given.other else {}
        print(json.dumps({"explained": [one.as_dict() for one in explanations]} | compared, ensure_ascii=False))
        return 0
    lines = comparison_lines if given.other else report_lines
    print(*lines(*explanations, columns=columns), sep="\n")
    if given.perfetto:
        print("", words("perfetto", path=given.perfetto), sep="\n")
    return 0


# -- the explanation in words ----------------------------------------------------------------------------------------
def report_lines(explanation: Explanation, columns: int = 80) -> list[str]:
    """Plain lines of at most `columns`, in the reader's language. Only rows of a table may be wider."""
    sections = [
        _title(explanation),
        [words("head.waterfall"), *_waterfall(explanation), _exposed(explanation)],
        _by_rank(explanation),
        [*_straggler(explanation)],
        _critical_path(explanation),
        _gaps(explanation),
        _operators(explanation),
        [*_memory(explanation), *_clocks(explanation), *map(str, explanation.notes), words("not_looked_at")],
    ]
    return _wrapped(sections, columns)


def comparison_lines(one: Explanation, other: Explanation, columns: int = 80) -> list[str]:
    """Two traces side by side: the step, its parts, and the operators that changed most."""
    rows = [["", one.title, other.title, words("head.change")]]
    for name, (before, after) in compare(one, other).items():
        title = words(f"part.{name}") if name in (*PARTS, "step") else _short(name)
        texts = [_seconds_of(name, one, before), _seconds_of(name, other, after)]
        change = f"{after / before - 1:+.0%}" if before and "–" not in texts else "–"
        rows.append([title, *texts, change])
    head = words("head.compare", one=one.title, other=other.title)
    stragglers = ([f"{each.title}:", *_straggler(each)] for each in (one, other) if len(each.ranks) > 1)
    notes = ([f"{each.title}:", *map(str, each.notes)] for each in (one, other) if each.notes)
    return _wrapped([[head, *_table(rows)], *stragglers, *notes, [words("not_looked_at")]], columns)


def _seconds_of(name: str, explanation: Explanation, seconds: float) -> str:
    """The seconds of a part or an operator as text; "–" for an operator that a trace lacks and for unknown waiting."""
    is_unknown = name == "waiting" and not explanation.knows_waiting
    return "–" if is_unknown or (not seconds and name not in (*PARTS, "step")) else format_seconds(seconds)


def _wrapped(sections: Iterable[Sequence[str]], columns: int) -> list[str]:
    """The sections with an empty line between them. Indented lines are rows of a table and are not wrapped.

    cut=False: a word that is longer than a line, such as a path, stays whole.
    """
    lines: list[str] = []
    for section in sections:
        if section and lines:
            lines.append("")
        for line in section:
            lines += [line] if line.startswith("  ") else wrap(line, columns, cut=False)
    return lines


def _table(rows: Sequence[Sequence[str]], left: int = 1) -> list[str]:
    """Indented rows; the first `left` columns are aligned left, the others right."""
    return [f"  {line}".rstrip() for line in aligned(rows, left=left)]


def _title(explanation: Explanation) -> list[str]:
    fields = {"title": explanation.title, "ranks": len(explanation.ranks), "count": len(explanation.steps)}
    fields |= {"seconds": format_seconds(explanation.seconds), "steps": _step_numbers(explanation.steps)}
    # A trace that names no steps counts as one step, so its title (and each gap) names the whole trace instead.
    return [words("title" if explanation.has_steps else "title_whole", **fields)]


def _step_numbers(steps: Sequence[int]) -> str:
    """The numbers as text: "2–31" if they are three or more in a row, otherwise the first ones."""
    if len(steps) > 2 and steps[-1] - steps[0] == len(steps) - 1:
        return f"{steps[0]}–{steps[-1]}"
    more = ", …" if len(steps) > MAX_ROWS else ""
    return ", ".join(map(str, steps[:MAX_ROWS])) + more


def _exposed(explanation: Explanation) -> str:
    """How much communication no compute hides, how much of that is waiting, and how much is hidden."""
    waiting, hidden = format_seconds(explanation.parts["waiting"]), format_seconds(explanation.hidden)
    key = "exposed" if explanation.knows_waiting else "exposed_unmatched"
    return words(key, exposed=format_seconds(explanation.exposed), waiting=waiting, hidden=hidden)


def _waterfall(explanation: Explanation) -> list[str]:
    """One bar per part of the step. Each bar begins where the one above it ends."""
    rows, before = [], 0.0
    for part in PARTS:
        share = explanation.parts[part] / (explanation.seconds or 1.0)
        start, end = round(before * BAR_WIDTH), round((before + share) * BAR_WIDTH)
        bar = f"{' ' * start + '━' * (end - start):{BAR_WIDTH}}"
        seconds = _seconds_of(part, explanation, explanation.parts[part])
        rows.append([words(f"part.{part}"), seconds, "–" if seconds == "–" else f"{share:>4.0%}", bar])
        before += share
    return _table(rows)


def _by_rank(explanation: Explanation) -> list[str]:
    head = [words("head.rank"), *(words(f"part.{part}") for part in PARTS), words("head.waited_for")]
    rows = [
        [
            str(rank),
            *(_seconds_of(part, explanation, row[part]) for part in PARTS),
            _seconds_of("waiting", explanation, explanation.waited_for[rank]),
        ]
        for rank, row in explanation.by_rank.items()
    ]
    return [words("head.by_rank"), *_table([head, *rows])] if len(rows) > 1 else []


def _straggler(explanation: Explanation) -> Iterable[str]:
    straggler, steps = explanation.straggler, explanation.steps
    if len(explanation.ranks) < 2:
        return
    if 0 < len(steps) < MIN_STEPS and explanation.has_steps:
        yield words("straggler.window", count=len(steps))
    if straggler is None and explanation.matched < MIN_MATCHED:
        yield words("straggler.unmatched", share=explanation.matched)
        return
    if straggler is None:
        moving = explanation.parts["communication"]
        is_much = moving > MUCH_COMMUNICATION * explanation.seconds
        yield words("straggler.none_network", seconds=format_seconds(moving)) if is_much else words("straggler.none")
        return
    fields = {"rank": straggler.rank, "seconds": format_seconds(straggler.seconds), "share": straggler.share}
    if straggler.is_seldom:
        steps = {"steps": _step_numbers(straggler.steps), "count": len(straggler.steps)}
        yield words("straggler.seldom", **fields, **steps)
    else:
        yield words("straggler.always", **fields)
    excess = max(0.0, straggler.excess[straggler.cause])
    yield words(f"straggler.{straggler.cause}", excess=format_seconds(excess))
    if straggler.period:
        yield words("straggler.every", every=straggler.period)


def _critical_path(explanation: Explanation) -> list[str]:
    pieces = [
        words("path", rank=rank, part=words(f"part.{part}"), seconds=format_seconds(seconds))
        for rank, part, seconds in explanation.path[:MAX_ROWS]
        if seconds > MIN_PATH_SHARE * explanation.seconds
    ]
    crosses_ranks = len(explanation.ranks) > 1 and explanation.knows_waiting
    return [f"{words('head.path')}: {', '.join(pieces)}"] if crosses_ranks else []


def _gaps(explanation: Explanation) -> list[str]:
    gaps = [gap for gap in explanation.gaps[:MAX_ROWS] if gap.seconds >= MIN_GAP]
    if not gaps:
        return []
    key = "gap" if explanation.has_steps else "gap_whole"
    rows = [
        "  " + words(key, seconds=format_seconds(gap.seconds), rank=gap.rank, step=gap.step, name=_short(gap.name))
        for gap in gaps
    ]
    return [words("head.gaps_gpu" if explanation.on_gpu else "head.gaps"), *map(str.rstrip, rows)]


def _operators(explanation: Explanation) -> list[str]:
    rows = [[words(f"head.{name}") for name in ("operator", "shapes", "time", "calls")]]
    for operator in explanation.operators[:MAX_ROWS]:
        shapes = "" if operator.shapes in ("[]", "") else _short(operator.shapes.replace(" ", ""))
        rows.append([_short(operator.name), shapes, format_seconds(operator.seconds), f"{operator.calls:.1f}"])
    if more := explanation.operators[MAX_ROWS:]:
        seconds, calls = sum(operator.seconds for operator in more), sum(operator.calls for operator in more)
        rows.append([words("head.more_operators", count=len(more)), "", format_seconds(seconds), f"{calls:.1f}"])
    return [words("head.operators"), *_table(rows, left=2)] if len(rows) > 1 else []


def _short(text: str) -> str:
    return text if len(text) <= MAX_NAME else f"{text[: MAX_NAME - 1]}…"


def _memory(explanation: Explanation) -> list[str]:
    peaks = [f"rank {rank} {format_bytes(num_bytes)}" for rank, num_bytes in sorted(explanation.peak.items())]
    return [words("memory", ranks=peaks)] if peaks else []


def _clocks(explanation: Explanation) -> list[str]:
    """How far the clocks of the ranks are ahead of the first rank's, if any is. A drift is told in millionths."""
    texts = []
    for rank, (offset, drift) in explanation.clocks.items():
        if abs(offset) > MIN_OFFSET or drift:
            way = words("ahead" if offset > 0 else "behind")
            fields = {"rank": rank, "offset": format_seconds(abs(offset)), "way": way, "drift": drift * 1e6}
            texts.append(words("clock_drift" if drift else "clock_rank", **fields))
    return [words("clock", ranks=texts, spread=format_seconds(explanation.spread))] if texts else []
