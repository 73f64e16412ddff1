"""Runs the old code of the page of sources: lines as a document prints them, and the DeepSpeed JSON of an old post.

The documents are those that the course started from; the notebook `sources` shows what is right in them. The JSON is in
deepspeed_job/: as the post prints it (printed.json) and repaired (ds_config.json), with the meaning of each key
(keys.yaml). Nothing here needs DeepSpeed. tests/chapters/deepspeed_train.py does: its test lets DeepSpeed's launcher
run it with ds_config.json. The notebook on what to take to work uses `attempt`, too.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from helpers.learner.words import Words

FOLDER = Path(__file__).parent / "deepspeed_job"
SOURCE_LOCATION = re.compile(r"^\[[^\]]*\] ")  # of the line in gloo's own code that raised an error
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
