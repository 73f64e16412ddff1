"""Shows what traces of real GPUs say, for chapter 10: four steps side by side, and how far a CPU is ahead of its GPU.

The traces in the folder gpu_traces are public and were trimmed to one step each; its README names their sources and
licences. `gpu_steps_scene` and `lead_scene` draw them, `diagnosis` names what each of four GPUs waits for, and the
other functions count what the chapter's text says. The lead of a CPU is the time from the launch of a kernel to its
start.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from statistics import median

from helpers.commands.traces import explain, read
from helpers.commands.traces.simple import GPU, is_message, launch_delays, load_events
from helpers.draw import Axis, curves_scene
from helpers.draw.palette import kind_style
from helpers.draw.plot import Mark
from helpers.draw.scene import WIDTH, Label, Rect, Scene, heading
from helpers.draw.timelines import IDLE
from helpers.quantities.units import format_seconds

TRACES = Path(__file__).parent / "gpu_traces"
# The four steps that the chapter draws, by the letter that the picture gives them.
STEPS = {"A": "resnet50_v100_kineto", "B": "resnet50_v100_hta", "C": "resnet50_2a100_hta", "D": "gradients_2v100_hta"}
READS_VALUES, USES_GRAPHS = "recommender_8a100_hta", "recommender_2v100_hta"  # with .item(), and with CUDA graphs
_TOP, _BAR, _PITCH, _LEFT, _RIGHT = 8.0, 34.0, 46.0, 44.0, 76.0  # pixels of gpu_steps_scene
_SLICES = 170  # of a step
_SHARE = 0.15  # of a step, which a part must exceed to be named in `diagnosis`
_BIN = 0.002  # seconds of the step for each point of lead_scene
_AFTER = 0.002  # seconds before the first and after the last .item() in which the lead is compared


def path_of(name: str) -> Path:
    """The file of a trace in gpu_traces."""
    return TRACES / f"{name}.json.gz"


def gpu_steps_scene() -> Scene:
    """A row for each of the four steps, all of one length, cut into short slices.

    In each slice the height says in what share of it a kernel computes or only a message runs; the rest is hatched.
    """
    kinds = {"forward": "a kernel computes", "communication": "only NCCL's kernel runs"}
    legend = [(text, kind_style(kind)) for kind, text in kinds.items()] + [("the GPU has nothing to do", IDLE)]
    title = "One step of four real GPUs"
    items, top = heading(title, legend)
    width = (WIDTH - _LEFT - _RIGHT) / _SLICES
    for row, (letter, name) in enumerate(STEPS.items()):
        y = top + _TOP + row * _PITCH
        seconds, spans = _kernel_spans(name)
        items.append(Label(x=_LEFT - 14, y=y + _BAR / 2, text=letter, size=15, bold=True, anchor="end"))
        items.append(Rect(x=_LEFT, y=y, width=width * _SLICES, height=_BAR, **IDLE))
        busy = [_shares_of_slices(part, seconds) for part in (spans["forward"], sum(spans.values(), []))]
        for place, (compute, either) in enumerate(zip(*busy, strict=True)):
            for kind, low, high in (("forward", 0.0, compute), ("communication", compute, either)):
                # A piece of less than 1 % of the bar's height would not be seen.
                if high - low > 0.01:
                    at = {"x": _LEFT + place * width, "y": y + (1 - high) * _BAR, "width": width}
                    items.append(Rect(**at, height=(high - low) * _BAR, **kind_style(kind)))
        items.append(
            Label(x=_LEFT + width * _SLICES + 10, y=y + _BAR / 2, text=f"{seconds * 1e3:.0f} ms", size=13, bold=True)
        )
    summary = "Rows A to D show in which share of each slice of a step the GPU computes, sends, or has nothing to do."
    return Scene(height=top + _TOP + len(STEPS) * _PITCH, title=title, summary=summary, items=items)


def _shares_of_slices(spans: list[tuple[float, float]], seconds: float) -> list[float]:
    """The share of each slice of a step that the spans cover, each instant counted once."""
    merged: list[list[float]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    edges = [place * seconds / _SLICES for place in range(_SLICES + 1)]
    covered = [sum(min(end, edge) - start for start, end in merged if start < edge) for edge in edges]
    return [(after - before) * _SLICES / seconds for before, after in pairwise(covered)]


def _kernel_spans(name: str) -> tuple[float, dict[str, list[tuple[float, float]]]]:
    """The seconds of a step, and its spans on the GPU from the step's start, by kind."""
    events = load_events(path_of(name))
    step = next(event for event in events if event["name"].startswith("ProfilerStep"))
    seconds, spans = step["end"] - step["start"], {"forward": [], "communication": []}
    for event in events:
        if event["cat"] in GPU:
            start, end = (min(max(event[at] - step["start"], 0.0), seconds) for at in ("start", "end"))
            spans["communication" if is_message(event) else "forward"].append((start, end))
    return seconds, spans


def shares(name: str) -> dict[str, float]:
    """The parts of a traced step as shares of it. "idle": neither a kernel nor the loader nor a message runs."""
    found = explain(read(path_of(name)))
    parts = {part: seconds / found.seconds for part, seconds in found.parts.items()}
    return {
        "compute": parts["compute"], "messages": parts["communication"], "loading": parts["data"], "idle": parts["host"]
    }  # fmt: skip


def diagnosis() -> str:
    """Say what each of the four GPUs waits for, as a choice of 10.gpus.

    Idle time is waiting for launches.
    """
    names, texts = {"loading": "loader", "idle": "launches", "messages": "messages"}, []
    for letter, name in STEPS.items():
        found = shares(name)
        waits = [text for part, text in names.items() if found[part] > _SHARE]
        texts.append(f"{letter} {' and '.join(waits) or 'nothing'}")
    return ", ".join(texts)


def lead_text(seconds: float) -> str:
    """Say how long a lead is, as a choice of 10.ahead."""
    limits = {"about 10 µs": 1e-4, "about 1 ms": 1e-2, "about 80 ms": 1.0}
    return next(text for text, limit in limits.items() if seconds < limit)


def _leads(name: str) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    """(launch, lead) of the kernels that a step launches, and (start, end) of each .item(), from the step's start."""
    events = load_events(path_of(name))
    step = next(event for event in events if event["name"].startswith("ProfilerStep"))
    leads = [(at - step["start"], lead) for at, lead in launch_delays(events) if at >= step["start"]]
    return leads, [(e["start"] - step["start"], e["end"] - step["start"]) for e in events if e["name"] == "aten::item"]


def lead_scene() -> tuple[Scene, str]:
    """Draw the lead over a step that calls .item() four times; the lead after them is a choice of 10.item."""
    leads, items = _leads(READS_VALUES)
    bins: dict[int, list[float]] = {}
    for launch, lead in leads:
        bins.setdefault(int(launch / _BIN), []).append(lead)
    points = [((place + 0.5) * _BIN * 1e3, median(values) * 1e3) for place, values in sorted(bins.items())]
    first, last = items[0][0], items[-1][1]
    before = median(lead for launch, lead in leads if first - _AFTER < launch < first)
    after = median(lead for launch, lead in leads if last < launch < last + _AFTER)
    marks = [
        Mark(first * 1e3, before * 1e3, "the first .item()"),
        Mark(last * 1e3, after * 1e3, "after the last .item()", 12),
    ]
    x = Axis(name="ms of the step, when a kernel is launched", ticks=(0, 20, 40, 60, 80))
    y = Axis(name="ms until it starts", ticks=(0.001, 0.01, 0.1, 1, 10, 100), log=True)
    scene = curves_scene(
        {"lead": points}, x=x, y=y, marks=marks, title="How far the CPU is ahead of an A100, published"
    )
    left = after / before
    # The limits lie between the choices, which are a share of 0, 1/2 and 1.
    return scene, "almost nothing" if left < 0.1 else "about half of it" if left < 0.75 else "still all of it"


def launches_of_graphs() -> str:
    """How many kernels the CUDA graphs of a step start, as a sentence."""
    events = load_events(path_of(USES_GRAPHS))
    started = Counter(event["args"].get("correlation") for event in events if event["cat"] in GPU)
    graphs = [started[e["args"].get("correlation")] for e in events if e["name"] == "cudaGraphLaunch"]
    whole = f"{sum(started.values()):,} kernels and copies"
    return f"{len(graphs)} graph launches start {sum(graphs):,} of the step's {whole}."


def step_line(letter: str, seconds: dict[str, float]) -> str:
    """A line for a step: what `gpu_seconds` says of it, the loader's part, and the rest, in which the GPU is idle."""
    found = shares(STEPS[letter])
    return (
        f"{letter}  step {seconds['step'] * 1e3:3.0f} ms  compute {seconds['compute'] / seconds['step']:4.0%}  "
        f"messages {seconds['exposed messages'] / seconds['step']:4.0%}  loader {found['loading']:4.0%}  "
        f"other gaps {found['idle']:4.0%}  launch delay {format_seconds(seconds['launch delay'])}"
    )
