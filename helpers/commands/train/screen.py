"""What a run says: in a terminal a line that moves, elsewhere a line now and then, and the report at the end."""

from __future__ import annotations

import math
import os
import shutil
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TextIO

from helpers.commands.traces.perfetto import to_chrome_trace
from helpers.commands.train.fits import CONFIGS
from helpers.commands.train.on_ranks import Report
from helpers.commands.train.options import Settings
from helpers.draw import timeline_scene, to_svg
from helpers.learner.words import book
from helpers.learner.words.wrapping import aligned, padded, width, wrap
from helpers.predict.traffic.axes import axis_traffic
from helpers.quantities.units import format_bytes
from helpers.ranks.inplace import is_launched
from helpers.ranks.sites import names_of
from helpers.records import MEMORY_KINDS, SCALARS, AxisTraffic, Timeline
from helpers.specs.mesh import ORDER

say, kind_word = book("train"), book("draw")
LINES = 10  # of progress, where there is no terminal
BARS = (16, 8)  # columns, the first that fits
LATELY = 10  # steps from which the rate is told


class Screen:
    """out: where it is written, None on the ranks of torchrun that stay silent."""

    def __init__(self, settings: Settings, out: TextIO | None):
        self.settings, self.out, self.seconds = settings, out, []
        self.tokens = settings.batch * CONFIGS[settings.size].context
        self.columns = shutil.get_terminal_size().columns
        self.moves = out is not None and out.isatty() and os.environ.get("TERM") != "dumb"
        self.is_open = False  # a moving line stands there without its end

    def line(self, text: str) -> None:
        indent = " " * (len(text) - len(text.lstrip()))
        self.lines(wrap(text, self.columns, first=indent, cut=False))

    def lines(self, rows: Sequence[str]) -> None:
        """As they are, below the line that moved."""
        if not rows:
            return
        if self.out is not None:
            print(*[""] * self.is_open, *rows, sep="\n", file=self.out, flush=True)
        self.is_open = False

    def below_the_key(self) -> None:
        """A terminal has written ^C, and what follows begins on a line of its own."""
        if self.moves and not self.is_open:
            self.lines([""])

    def begin(self, done: int, folder: Path) -> None:
        told, plan = self.settings, self.settings.plan
        axes = " x ".join(f"{axis} {getattr(plan, axis)}" for axis in ("dp", "pp", "tp"))
        count = CONFIGS[told.size].num_parameters
        of = {"size": told.size, "count": count, "axes": axes, "ranks": plan.world_size, "zero": plan.zero}
        parts = [say("plan", **of, dtype=told.dtype)]
        if plan.pp > 1 or plan.num_microbatches > 1:
            schedule = plan.schedule if plan.pp > 1 else "accumulation"
            parts.append(say("pipeline", schedule=schedule, count=plan.num_microbatches))
        parts += [say("extra.sequence_parallel")] * plan.sequence_parallel
        parts += [say("extra.recompute", how=plan.recompute)] * (plan.recompute != "none")
        self.line(" · ".join(parts))
        self.line(say("where", first=done + 1, last=told.steps, batch=told.batch, folder=shown(folder)))

    def step(self, number: int, reports: Sequence[Report]) -> None:
        self.seconds.append(max(report.seconds for report in reports))
        last, each = self.settings.steps, statistics.median(self.seconds[-LATELY:])
        said = say("step", loss=reports[0].loss, norm=reports[0].norm)
        rate = say("rate", rate=self.tokens / each)
        count = f"{number:>{len(str(last))}}/{last}"
        if self.moves:
            left = say("left", left=clock((last - number) * each)) if number < last else ""
            room = self.columns - 1
            made = (f"{count} {bar(number / last, wide)} {said}{told}{left}" for told in (rate, "") for wide in BARS)
            text = next((line for line in made if width(line) <= room), f"{count} {said}{left}")
            while width(text) > room:
                text = text[:-1]
            print(f"\r{padded(text, room)}", end="", file=self.out, flush=True)
            self.is_open = True
        elif len(self.seconds) == 1 or number == last or number % -(-last // LINES) == 0:
            self.lines([f"{count}  {said}{rate}"])

    # -- the report ----------------------------------------------------------------------------------------------------
    def memory(self, number: int, reports: Sequence[Report]) -> None:
        held = [{kind: getattr(report.memory, kind) for kind in MEMORY_KINDS} for report in reports]
        totals = [one | {"total": report.memory.total} for one, report in zip(held, reports, strict=True)]
        self.lines(["", say("memory", step=number), *table(totals, lambda kind: kind_word(f"kind.{kind}"))])

    def sent(self, number: int, reports: Sequence[Report], *, first_step: bool) -> None:
        found = [report.sent for report in reports]
        if not any(traffic.ops for traffic in found):
            return
        name = {SCALARS: say("scalars")}
        axes = [axis for axis in (*reversed(ORDER), SCALARS) if any(traffic.payload_bytes(axis) for traffic in found)]
        payloads = [{axis: traffic.payload_bytes(axis) for axis in axes} for traffic in found]
        self.lines(["", say("sent", step=number), *table(payloads, lambda axis: name.get(axis, axis))])
        predicted = self._predicted(first_step)
        other = [rank for rank, traffic in enumerate(predicted) if traffic != found[rank]]
        if other:
            self.line(say("other", ranks=names_of(other), bytes=dict(predicted[other[0]].by_axis())))
        else:
            self.line(say("predicted"))

    def _predicted(self, first_step: bool) -> list[AxisTraffic]:
        """From the shapes and the plan alone, for each rank."""
        plan, dtype = self.settings.plan, self.settings.dtype
        plan = replace(plan, micro_batch=self.settings.batch // (plan.dp * plan.num_microbatches))
        how = {"dtype_bytes": 4, "autocast": dtype != "fp32", "loss_scaling": dtype == "fp16", "first_step": first_step}
        spec = CONFIGS[self.settings.size].spec
        return [axis_traffic(spec, plan, rank, **how) for rank in range(plan.world_size)]

    def timeline(self, number: int, reports: Sequence[Report], folder: Path) -> None:
        if self.out is None:
            return
        title = say("title", step=number, plan=self.settings.said["plan"])
        line = replace(Timeline.merge(report.timeline for report in reports), title=title)
        svg, json = folder / "timeline.svg", folder / "timeline.json"
        axes = [axis for axis in reversed(ORDER) if getattr(self.settings.plan, axis) > 1]
        svg.write_text(to_svg(timeline_scene(line, axes=axes)), encoding="utf-8")
        to_chrome_trace(line, json)
        self.lines([""])
        self.line(say("timeline", step=number, svg=shown(svg), json=shown(json)))


def bar(share: float, wide: int) -> str:
    full = int(wide * share)
    return "━" * full + "╌" * (wide - full)


def clock(seconds: float) -> str:
    """1:26, or 2:05:00: it changes by one per second, in the same columns."""
    hours, rest = divmod(math.ceil(seconds), 3600)
    minutes, seconds = divmod(rest, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def table(rows: Sequence[Mapping[str, int]], word: Callable[[str], str]) -> list[str]:
    """A line for each set of ranks that have the same bytes; columns in which nobody has any are left out."""
    every = dict.fromkeys(name for row in rows for name in row)
    names = [name for name in every if any(row.get(name) for row in rows)]
    alike: dict[tuple[int, ...], list[int]] = {}
    for rank, row in enumerate(rows):
        alike.setdefault(tuple(row.get(name, 0) for name in names), []).append(rank)
    head = ["", *map(word, names)]
    body = [[str(names_of(ranks)), *map(format_bytes, values)] for values, ranks in alike.items()]
    return aligned([head, *body])


def shown(path: Path) -> str:
    """As a person would type it from here."""
    near = os.path.relpath(path)
    return str(path) if near.startswith("..") else near


def command(folder: Path) -> str:
    launcher = "torchrun … -m" if is_launched() else "python -m"
    return f"{launcher} helpers train --resume {shown(folder)}"
