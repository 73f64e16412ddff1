"""What `explain` found, in lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from helpers.commands.traces.explain import Explanation, compare
from helpers.commands.traces.files import SAYS
from helpers.commands.traces.stragglers import Straggler
from helpers.commands.traces.waterfall import PARTS
from helpers.learner.words.wrapping import aligned, wrap
from helpers.quantities.units import format_bytes, format_seconds

BAR = 24  # columns of a whole step
SHOWN = 6  # gaps, operators, pieces of the path
NARROW = 28  # columns that a name or a shape may take
SELDOM = 10  # steps that a window has at least, if it shall show what happens in one of ten
QUIET_CLOCK = 1e-6  # seconds: a clock that is as little off was not moved


def say(told: Explanation, columns: int = 80) -> list[str]:
    """Plain lines of at most `columns`, in the language that is read; a table may be wider."""
    sections = [
        _title(told),
        [SAYS("head.waterfall"), *_waterfall(told), SAYS("exposed", **_exposed(told))],
        _by_rank(told) if len(told.ranks) > 1 else [],
        [*_straggler(told)],
        _path(told) if len(told.ranks) > 1 else [],
        _gaps(told),
        _operators(told),
        [*_memory(told), *_clocks(told), *map(str, told.notes)],
    ]
    return _laid(sections, columns)


def say_compared(one: Explanation, other: Explanation, columns: int = 80) -> list[str]:
    """Two traces side by side: the step, its parts, and the operators that changed most."""
    rows = [["", one.title, other.title, SAYS("head.change")]]
    for name, (before, after) in compare(one, other).items():
        title = SAYS(f"part.{name}") if name in (*PARTS, "step") else _short(name)
        change = f"{after / before - 1:+.0%}" if before else "–"
        rows.append([title, format_seconds(before), format_seconds(after), change])
    head = SAYS("head.compare", one=one.title, other=other.title)
    late = ([f"{told.title}:", *_straggler(told)] for told in (one, other) if len(told.ranks) > 1)
    return _laid([[head, *_table(rows)], *late], columns)


def _laid(sections: Iterable[Sequence[str]], columns: int) -> list[str]:
    """An empty line between sections; what is indented is a table's row and stays whole."""
    lines: list[str] = []
    for section in sections:
        if section:
            lines += [""] * bool(lines)
        for line in section:
            lines += [line] if line.startswith("  ") else wrap(line, columns, cut=False)
    return lines


def _table(rows: Sequence[Sequence[str]], left: int = 1) -> list[str]:
    """Indented; the first `left` columns are words and the others numbers."""
    return [f"  {line}".rstrip() for line in aligned(rows, left=left)]


def _title(told: Explanation) -> list[str]:
    of = {"title": told.title, "ranks": len(told.ranks), "seconds": format_seconds(told.seconds)}
    if told.steps == (-1,):
        return [SAYS("title_whole", **of)]
    return [SAYS("title", **of, count=len(told.steps), steps=_numbers(told.steps))]


def _numbers(steps: Sequence[int]) -> str:
    """2 to 31 as "2–31", three in a row of many as they are."""
    if len(steps) > 2 and steps[-1] - steps[0] == len(steps) - 1:
        return f"{steps[0]}–{steps[-1]}"
    more = ", …" if len(steps) > SHOWN else ""
    return ", ".join(map(str, steps[:SHOWN])) + more


def _exposed(told: Explanation) -> dict[str, str]:
    waiting, hidden = format_seconds(told.parts["waiting"]), format_seconds(told.hidden)
    return {"exposed": format_seconds(told.exposed), "waiting": waiting, "hidden": hidden}


def _waterfall(told: Explanation) -> list[str]:
    """Each bar begins where the one above it ends."""
    rows, before = [], 0.0
    for part in PARTS:
        share = told.parts[part] / (told.seconds or 1.0)
        start, end = round(before * BAR), round((before + share) * BAR)
        bar = " " * start + "━" * (end - start)
        rows.append([SAYS(f"part.{part}"), format_seconds(told.parts[part]), f"{share:>4.0%}", f"{bar:{BAR}}"])
        before += share
    return _table(rows)


def _by_rank(told: Explanation) -> list[str]:
    head = [SAYS("head.rank"), *(SAYS(f"part.{part}") for part in PARTS), SAYS("head.waited_for")]
    rows = [
        [str(rank), *(format_seconds(row[part]) for part in PARTS), format_seconds(told.waited_for[rank])]
        for rank, row in told.by_rank.items()
    ]
    return [SAYS("head.by_rank"), *_table([head, *rows])]


def _straggler(told: Explanation) -> Iterable[str]:
    found: Straggler | None = told.straggler
    if len(told.ranks) < 2:
        return
    if 0 < len(told.steps) < SELDOM and told.steps != (-1,):
        yield SAYS("straggler.window", count=len(told.steps))
    if found is None:
        moving = told.parts["communication"]
        many = moving > 0.2 * told.seconds
        yield SAYS("straggler.none_network", seconds=format_seconds(moving)) if many else SAYS("straggler.none")
        return
    of = {"rank": found.rank, "seconds": format_seconds(found.seconds), "share": found.share}
    if found.is_seldom:
        yield SAYS("straggler.seldom", **of, steps=_numbers(found.steps), count=len(found.steps))
    else:
        yield SAYS("straggler.always", **of)
    yield SAYS(f"straggler.{found.cause}", excess=format_seconds(max(0.0, found.excess[found.cause])))
    if found.every:
        yield SAYS("straggler.every", every=found.every)


def _path(told: Explanation) -> list[str]:
    pieces = [
        SAYS("path", rank=rank, part=SAYS(f"part.{part}"), seconds=format_seconds(seconds))
        for rank, part, seconds in told.path[:SHOWN]
        if seconds > 0.01 * told.seconds
    ]
    return [f"{SAYS('head.path')}: {', '.join(pieces)}"]


def _gaps(told: Explanation) -> list[str]:
    if not told.gaps:
        return []
    which = "gap_whole" if told.steps == (-1,) else "gap"
    rows = [
        "  " + SAYS(which, seconds=format_seconds(gap.seconds), rank=gap.rank, step=gap.step, name=_short(gap.name))
        for gap in told.gaps[:SHOWN]
    ]
    return [SAYS("head.gaps_gpu" if told.on_gpu else "head.gaps"), *map(str.rstrip, rows)]


def _operators(told: Explanation) -> list[str]:
    rows = [[SAYS(f"head.{name}") for name in ("operator", "shapes", "time", "calls")]]
    for one in told.operators[:SHOWN]:
        shapes = "" if one.shapes in ("[]", "") else _short(one.shapes.replace(" ", ""))
        rows.append([_short(one.name), shapes, format_seconds(one.seconds), f"{one.calls:.1f}"])
    return [SAYS("head.operators"), *_table(rows, left=2)] if len(rows) > 1 else []


def _short(text: str) -> str:
    return text if len(text) <= NARROW else f"{text[: NARROW - 1]}…"


def _memory(told: Explanation) -> list[str]:
    held = [f"rank {rank} {format_bytes(num_bytes)}" for rank, num_bytes in sorted(told.peak.items())]
    return [SAYS("memory", ranks=held)] if held else []


def _clocks(told: Explanation) -> list[str]:
    moved = []
    for rank, (offset, drift) in told.clocks.items():
        if abs(offset) > QUIET_CLOCK or drift:
            way = SAYS("ahead" if offset > 0 else "behind")
            of = {"rank": rank, "offset": format_seconds(abs(offset)), "way": way, "drift": drift * 1e6}
            moved.append(SAYS("clock_drift" if drift else "clock_rank", **of))
    return [SAYS("clock", ranks=moved, spread=format_seconds(told.spread))] if moved else []
