"""Prints the progress of a run of `train`, and its report at the end.

In a terminal one line, the progress line, is overwritten at each step. Elsewhere about ten lines are printed in all.
`words` holds the texts in the reader's language: words(key, …) fills in the values. An axis is a way in which the plan
shares the work: "dp", "pp", "tp", or SCALARS for the loss and the norm of the gradients, which all ranks share.
"""

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
from helpers.commands.train.checks import CONFIGS, num_parameters, spec_of
from helpers.commands.train.on_ranks import StepReport
from helpers.commands.train.options import TrainOptions
from helpers.draw import timeline_scene, to_svg
from helpers.learner.words import book
from helpers.learner.words.wrapping import aligned, padded, width, wrap
from helpers.predict.traffic.axes import DP_CP, axis_traffic
from helpers.quantities.units import format_bytes
from helpers.ranks.board.sites import rank_names
from helpers.ranks.processes.spec import launched
from helpers.records import MEMORY_KINDS, SCALARS, AxisTraffic, Timeline
from helpers.specs.mesh import ORDER

words, draw_words = book("train"), book("draw")
PROGRESS_LINES = 10  # how many lines of progress are printed if the output is no terminal
BAR_WIDTHS = (16, 8)  # columns of the progress bar; the first that fits is taken
RATE_WINDOW = 10  # the rate is the median of this many steps


class Screen:
    """The output of one run. out: where it is printed, None on the ranks of torchrun that print nothing."""

    def __init__(self, settings: TrainOptions, out: TextIO | None):
        self.settings, self.out = settings, out
        self.seconds: list[float] = []  # the seconds of each step
        self.tokens = settings.batch * CONFIGS[settings.size].context  # in a step
        self.columns = shutil.get_terminal_size().columns
        self.can_overwrite = out is not None and out.isatty() and os.environ.get("TERM") != "dumb"
        self.is_open = False  # True while the progress line has no newline yet

    def line(self, text: str) -> None:
        """Prints a text, wrapped to the width of the terminal with its own indentation."""
        indent = " " * (len(text) - len(text.lstrip()))
        self.lines(wrap(text, self.columns, first=indent, cut=False))

    def lines(self, rows: Sequence[str]) -> None:
        """Prints these lines as they are, below the progress line."""
        if not rows:
            return
        if self.out is not None:
            end_of_progress = [""] if self.is_open else []
            print(*end_of_progress, *rows, sep="\n", file=self.out, flush=True)
        self.is_open = False

    def new_line_after_interrupt(self) -> None:
        """Starts a new line, because the terminal has printed ^C on the present one."""
        if self.can_overwrite and not self.is_open:
            self.lines([""])

    def begin(self, done: int, folder: Path) -> None:
        """Prints what is trained, by which plan, and where it is saved. done: the step after which the run starts."""
        options, plan = self.settings, self.settings.plan
        shown_axes = ("dp", "pp", "cp", "tp") if plan.cp > 1 else ("dp", "pp", "tp")
        axes = " x ".join(f"{axis} {getattr(plan, axis)}" for axis in shown_axes)
        count = num_parameters(options)
        values = {"size": options.size, "count": count, "axes": axes, "ranks": plan.world_size, "zero": plan.zero}
        parts = [words("plan", **values, dtype=options.dtype)]
        if plan.pp > 1 or plan.num_microbatches > 1:
            schedule = plan.schedule if plan.pp > 1 else "accumulation"
            parts.append(words("pipeline", schedule=schedule, count=plan.num_microbatches))
        if options.experts:
            parts.append(words("extra.experts", experts=options.experts, count=options.top_k, ep=plan.ep))
        if plan.cp > 1:
            parts.append(words("extra.cp_method", method=plan.cp_method))
        if plan.sequence_parallel:
            parts.append(words("extra.sequence_parallel"))
        if plan.recompute != "none":
            parts.append(words("extra.recompute", how=plan.recompute))
        self.line(" · ".join(parts))
        self.line(words("where", first=done + 1, last=options.steps, batch=options.batch, folder=shown(folder)))

    def step(self, number: int, reports: Sequence[StepReport]) -> None:
        """Prints the progress; without a terminal only at the first step, the last one and each tenth of the run."""
        self.seconds.append(max(report.seconds for report in reports))
        last, seconds_per_step = self.settings.steps, statistics.median(self.seconds[-RATE_WINDOW:])
        text = words("step", loss=reports[0].loss, norm=reports[0].norm)
        rate = words("rate", rate=self.tokens / seconds_per_step)
        count = f"{number:>{len(str(last))}}/{last}"
        if self.can_overwrite:
            left = words("left", left=clock((last - number) * seconds_per_step)) if number < last else ""
            columns = self.columns - 1  # some terminals begin a new line after the last column
            # The forms of the line, the widest first; the first that fits is printed, or the last one, cut off.
            bars = [bar(number / last, bar_width) for bar_width in BAR_WIDTHS]
            forms = [f"{count} {one} {text}{shown_rate}{left}" for shown_rate in (rate, "") for one in bars]
            text = next((line for line in forms if width(line) <= columns), f"{count} {text}{left}")
            while width(text) > columns:
                text = text[:-1]
            print(f"\r{padded(text, columns)}", end="", file=self.out, flush=True)
            self.is_open = True
        elif len(self.seconds) == 1 or number == last or number % math.ceil(last / PROGRESS_LINES) == 0:
            self.lines([f"{count}  {text}{rate}"])

    # -- the report ----------------------------------------------------------------------------------------------------
    def memory(self, number: int, reports: Sequence[StepReport]) -> None:
        """Prints the peak memory of each rank by kind, as recorded in step `number`."""
        kinds = [{kind: getattr(report.memory, kind) for kind in MEMORY_KINDS} for report in reports]
        totals = [one | {"total": report.memory.total} for one, report in zip(kinds, reports, strict=True)]
        self.lines(["", words("memory", step=number), *table(totals, lambda kind: draw_words(f"kind.{kind}"))])

    def sent(self, number: int, reports: Sequence[StepReport], *, first_step: bool) -> None:
        """Prints what each rank sent on each axis in step `number`, and whether it is what was predicted.

        first_step: whether it is the first step after a start, in which the ranks also send what is sent only once.
        """
        recorded = [report.sent for report in reports]
        if not any(traffic.ops for traffic in recorded):
            return
        title = {SCALARS: words("scalars")}  # the title of this column; all others are called like their axis
        axes = ("pp", "dp", DP_CP, "cp", "tp", SCALARS)  # `table` leaves out those without any bytes
        payloads = [{axis: traffic.payload_bytes(axis) for axis in axes} for traffic in recorded]
        self.lines(["", words("sent", step=number), *table(payloads, lambda axis: title.get(axis, axis))])
        predicted = self._predicted(first_step, [report.expert_rows for report in reports])
        differing = [rank for rank, traffic in enumerate(predicted) if traffic != recorded[rank]]
        if differing:
            self.line(words("other", ranks=rank_names(differing), bytes=dict(predicted[differing[0]].by_axis())))
        else:
            self.line(words("predicted"))

    def _predicted(self, first_step: bool, expert_rows: Sequence[int | None]) -> list[AxisTraffic]:
        """The traffic of each rank, predicted from the shapes, the plan, and the rows that a rank's experts got."""
        plan, dtype = self.settings.plan, self.settings.dtype
        plan = replace(plan, micro_batch=self.settings.batch // (plan.dp * plan.num_microbatches))
        options = {"autocast": dtype != "fp32", "loss_scaling": dtype == "fp16", "first_step": first_step}
        options["dtype_bytes"] = 4  # bytes per element of the parameters, which autocast leaves in float32
        spec = spec_of(self.settings)
        return [axis_traffic(spec, plan, rank, expert_rows=rows, **options) for rank, rows in enumerate(expert_rows)]

    def timeline(self, number: int, reports: Sequence[StepReport], folder: Path) -> None:
        """Writes the timeline of step `number` as a picture and as a Chrome trace, in the process that prints."""
        if self.out is None:
            return
        title = words("title", step=number, plan=self.settings.by_name["plan"])
        timeline = replace(Timeline.merge(report.timeline for report in reports), title=title)
        svg, json = folder / "timeline.svg", folder / "timeline.json"
        axes = [axis for axis in reversed(ORDER) if getattr(self.settings.plan, axis) > 1]
        svg.write_text(to_svg(timeline_scene(timeline, axes=axes)), encoding="utf-8")
        to_chrome_trace(timeline, json)
        self.lines([""])
        self.line(words("timeline", step=number, svg=shown(svg), json=shown(json)))


def bar(share: float, bar_width: int) -> str:
    """A progress bar of `bar_width` columns. share: how much is done, from 0 to 1."""
    full = int(bar_width * share)
    return "━" * full + "╌" * (bar_width - full)


def clock(seconds: float) -> str:
    """Seconds as 1:26 or 2:05:00."""
    hours, rest = divmod(math.ceil(seconds), 3600)
    minutes, seconds = divmod(rest, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def table(rows: Sequence[Mapping[str, int]], title_of: Callable[[str], str]) -> list[str]:
    """The lines of a table of bytes, with one line for all ranks that have the same bytes.

    rows: for each rank, column name -> bytes. title_of: gives the title of a column. Columns without any bytes are left
    out.
    """
    columns = dict.fromkeys(name for row in rows for name in row)
    names = [name for name in columns if any(row.get(name) for row in rows)]
    ranks_by_values: dict[tuple[int, ...], list[int]] = {}
    for rank, row in enumerate(rows):
        ranks_by_values.setdefault(tuple(row.get(name, 0) for name in names), []).append(rank)
    head = ["", *map(title_of, names)]
    body = [[str(rank_names(ranks)), *map(format_bytes, values)] for values, ranks in ranks_by_values.items()]
    return aligned([head, *body])


def shown(path: Path) -> str:
    """The path as a person would type it in this folder."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


def command(folder: Path) -> str:
    """The command that resumes from this checkpoint or run."""
    launcher = "torchrun … -m" if launched() else "python -m"
    return f"{launcher} helpers train --resume {shown(folder)}"
