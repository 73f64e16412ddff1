"""Runs the old code of the page of sources: lines as a document prints them, and the DeepSpeed JSON of a document.

The documents are those that the course started from; the notebook `sources` shows what is right in them. The JSON is in
deepspeed_job/: as the document prints it (printed.json) and repaired (ds_config.json), with the meaning of each key
(keys.yaml). Nothing here needs DeepSpeed. tests/chapters/deepspeed_train.py does: its test lets DeepSpeed's launcher
run it with ds_config.json. The notebook on what to take to work uses `attempt`, too. `roadmap_scene` draws the years of
a document's roadmap beside the years of the first releases.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from helpers.draw.axis import column_lines
from helpers.draw.scene import WIDTH, Label, Line, Rect, Scene, dot, heading
from helpers.learner.words import Words

FOLDER = Path(__file__).parent / "deepspeed_job"
SOURCE_LOCATION = re.compile(r"^\[[^\]]*\] ")  # of the line in gloo's own code that raised an error
# Pixels of roadmap_scene: left and right of the years, from row to row, and a mark.
_LEFT, _RIGHT, _PITCH, _MARK = 160.0, 60.0, 28.0, 12.0
TRAIN, MICRO, ACCUMULATION = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"


class BatchSizes(NamedTuple):
    """Examples of a step on all ranks, of one micro-batch on one rank, and micro-batches per step."""

    train: int
    micro: int
    accumulation: int


def load_config(name: str = "ds_config") -> dict[str, Any]:
    """ds_config, the repaired one, or printed, as the post has it."""
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def flat_keys(settings: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Each key with its value, those inside a section as "zero_optimization.stage"."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from flat_keys(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def key_meanings() -> dict[str, Words]:
    """Key -> what it does, of every key of both files."""
    import yaml

    known = yaml.safe_load((FOLDER / "keys.yaml").read_text(encoding="utf-8"))
    return {key: Words(**text) for key, text in known.items()}


def batch_sizes(settings: Mapping[str, Any], ranks: int) -> BatchSizes:
    """What the three batch keys say together: train = micro x accumulation x ranks, as DeepSpeed's config.py has it.

    Raises ValueError where neither batch size is given (accumulation alone is not enough), and where the three
    contradict each other.
    """
    train, micro, steps = (settings.get(key) for key in (TRAIN, MICRO, ACCUMULATION))
    if train is None and micro is None:
        raise ValueError(
            f"neither {TRAIN} nor {MICRO} is given, and DeepSpeed cannot know how many examples a step has; "
            f"add one of them, such as {json.dumps(TRAIN)}: {4 * (steps or 1) * ranks}"
        )
    # As DeepSpeed does, what is missing follows from what is given. Accumulation is 1 if only one size is given.
    if steps is None:
        steps = 1 if train is None or micro is None else train // (micro * ranks)
    micro = train // (steps * ranks) if micro is None else micro
    train = micro * steps * ranks if train is None else train
    if train != micro * steps * ranks or train < 1:
        raise ValueError(
            f"{TRAIN} is {train}, but {micro} examples x {steps} micro-batches x {ranks} ranks are "
            f"{micro * steps * ranks}; make {TRAIN} a multiple of {steps * ranks}"
        )
    return BatchSizes(train, micro, steps)


def attempt(code: str, **names: Any) -> None:
    """Execute `code` with these names, and print it with what came of it: "TypeError: …" or "runs", and warnings.

    What the code assigns is gone afterwards.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            exec(compile(code, "<as printed>", "exec"), dict(names))
            outcome = "runs"
        except Exception as error:
            outcome = f"{type(error).__name__}: {SOURCE_LOCATION.sub('', str(error)).splitlines()[0]}"
    outcome += "".join(f"\n    warns: {one}" for one in dict.fromkeys(str(one.message) for one in caught))
    print(*(f">>> {line}" for line in code.strip().splitlines()), f"    {outcome}", sep="\n")


def roadmap_scene(years: Mapping[str, tuple[int, int]]) -> Scene:
    """A row for each technique, with a square at the printed year and a dot at the year of its first release.

    years: technique -> (the year that the document prints, the year of the first release).
    """
    legend = [("as printed", {"fill": "sign"}), ("first release", {"fill": "parameters"})]
    title = "The roadmap: years as printed, and first releases"
    items, top = heading(title, legend)
    first, last = min(map(min, years.values())) - 1, max(map(max, years.values())) + 1
    scale = (WIDTH - _LEFT - _RIGHT) / (last - first)  # pixels per year
    bottom = top + 8 + len(years) * _PITCH
    items += column_lines([(_LEFT + (year - first) * scale, str(year)) for year in range(first, last + 1)], top, bottom)
    for row, (name, (printed, released)) in enumerate(years.items()):
        y = top + 8 + (row + 0.5) * _PITCH
        right, left = (_LEFT + (year - first) * scale for year in (printed, released))
        items.append(Label(x=_LEFT - 18, y=y, text=name, anchor="end"))
        items.append(Line(x1=left, y1=y, x2=right, y2=y, colour="ink", width=1.5))
        items.append(dot(left, y, _MARK, fill="parameters", tooltip=f"{name}: first released in {released}"))
        square = {"x": right - _MARK / 2, "y": y - _MARK / 2, "width": _MARK, "height": _MARK}
        items.append(Rect(**square, fill="sign", tooltip=f"{name}: printed {printed}"))
    summary = " ".join(f"{name}: printed {was}, released {truth}." for name, (was, truth) in years.items())
    return Scene(height=bottom + 26, title=title, summary=summary, items=items)
