"""The JSON of an old DeepSpeed post, the same repaired, what each key means, and the rule that it broke.

Nothing here needs DeepSpeed. tests/observe/deepspeed_train.py does: a test has its launcher run it with ds_config.json.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from helpers.learner.words import Words

FOLDER = Path(__file__).parent
TRAIN, MICRO, ACCUMULATION = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"


class Batches(NamedTuple):
    """Examples of a step on all ranks, of one micro-batch on one rank, and micro-batches per step."""

    train: int
    micro: int
    accumulation: int


def config(name: str = "ds_config") -> dict[str, Any]:
    """ds_config, the repaired one, or printed, as the post has it."""
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def keys(settings: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Each key with its value, those inside a section as "zero_optimization.stage"."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from keys(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def meanings() -> dict[str, Words]:
    """Key -> what it does, of every key of both files."""
    import yaml

    known = yaml.safe_load((FOLDER / "keys.yaml").read_text(encoding="utf-8"))
    return {key: Words(**text) for key, text in known.items()}


def batches(settings: Mapping[str, Any], ranks: int) -> Batches:
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
    if steps is None:
        steps = 1 if train is None or micro is None else train // (micro * ranks)
    micro = train // (steps * ranks) if micro is None else micro
    train = micro * steps * ranks if train is None else train
    if train != micro * steps * ranks or train < 1:
        raise ValueError(
            f"{TRAIN} is {train}, but {micro} examples x {steps} micro-batches x {ranks} ranks are "
            f"{micro * steps * ranks}; make {TRAIN} a multiple of {steps * ranks}"
        )
    return Batches(train, micro, steps)
