"""What the threads inside wrote down, and when a job stands still.

It does when no rank has issued a collective or come to another message for `limit` seconds of its own life, and one or
more slept in one place all that time. A rank that works meanwhile gets `BUSY` times as long: it may be slow.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from helpers.commands.jobs import inside
from helpers.learner.words import Words
from helpers.ranks.errors import Failure
from helpers.ranks.report import crash_frames
from helpers.ranks.sites import Frame, learner_frame

BUSY = 4.0
WORKS = 0.3  # of its life: who computes more than that in one place does not sleep there
ANSWER = 120.0  # seconds that a process gets to say more; under load its thread is late


@dataclass
class Process:
    """The last that one process wrote, and when. code: how it ended, where we know. gone: when that was seen."""

    said: Mapping[str, Any]
    heard: float = 0.0
    gone: float = 0.0
    code: int | None = None
    fault: list[Frame] = field(default_factory=list)

    @property
    def rank(self) -> int | None:
        return self.said["rank"]

    @property
    def frames(self) -> list[Frame]:
        failure = self.said.get("failure")
        return [tuple(one) for one in (failure["frames"] if failure else self.fault or self.said["frames"])]

    @property
    def line(self) -> Frame | None:
        return learner_frame(self.frames)

    @property
    def is_over(self) -> bool:
        return bool(self.gone) or "ended" in self.said

    @property
    def has_finished(self) -> bool:
        """By itself, and without an exception."""
        return "ended" in self.said and not self.said["failure"]

    def sleeps_for(self, seconds: float = 0.0) -> bool:
        """Whether it has stood where it is so long, and hardly computed."""
        return self.said["stood"] >= seconds and self.said["used"] <= WORKS * self.said["stood"]

    def is_silent(self, limit: float) -> bool:
        """Native code keeps the interpreter's lock, or somebody has stopped the process."""
        return time.time() - self.heard > limit * BUSY * 2

    @property
    def failure(self) -> Failure | None:
        said = self.said.get("failure")
        if not said:
            return None
        text = {"type_name": said["type"], "message": said["message"], "words": Words.of(said["message"])}
        return Failure(**text, frames=self.frames, time=self.said["ended"], traceback="")

    @property
    def op(self) -> str | None:
        """What of torch.distributed it has called and not come back from."""
        own = self.frames.index(self.line) + 1 if self.line in self.frames else 0
        inner = [one for one in self.frames[own:] if "torch/distributed/" in one[0] and "c10d_logger" not in one[0]]
        return inner[0][2] if inner else None


class Board:
    """Reads the folder of a job. ranks: the process of each, the newest. others: what these have started, by rank."""

    def __init__(self, folder: Path):
        self.folder, self.seen = folder, {}
        self.ranks: dict[int, Process] = {}
        self.others: dict[int, list[Process]] = {}

    def read(self, codes: Mapping[int, int]) -> None:
        """codes: how those processes that we started have ended, so far."""
        for path in self.folder.glob("*.json"):
            said = json.loads(path.read_text())
            pid = said["pid"]
            process = self.seen.setdefault(pid, Process(said))
            process.said, process.heard = said, path.stat().st_mtime
            if not process.gone and (pid in codes or not inside.lives(pid)):
                process.gone, process.code, fault = time.time(), codes.get(pid), self.folder / f"{pid}.fault"
                process.fault = crash_frames(fault.read_text(errors="replace")) if fault.exists() else []
        ranked = {pid: one for pid, one in sorted(self.seen.items()) if one.rank is not None}
        self.ranks = {one.rank: one for one in ranked.values() if one.said["parent"] not in ranked}
        self.others = {rank: [] for rank in self.ranks}
        for one in ranked.values():
            if one.said["parent"] in ranked and not one.is_over:
                self.others.setdefault(one.rank, []).append(one)

    def unfinished(self) -> dict[int, Process]:
        return {rank: one for rank, one in self.ranks.items() if not one.is_over}

    def stands_still(self, limit: float) -> bool:
        left = self.unfinished()
        if not left or len(self.ranks) < max(one.said["world"] or 1 for one in left.values()):
            return False
        late = {rank for rank, one in left.items() if one.said["unmoved"] >= limit * BUSY or one.is_silent(limit)}
        asleep = {rank for rank, one in left.items() if one.said["unmoved"] >= limit and one.sleeps_for(limit)}
        alone = {rank for rank in asleep if all(one.sleeps_for(limit) for one in self.others[rank])}
        return bool(asleep) and alone | late == left.keys()

    def ask(self, codes: Mapping[int, int]) -> None:
        """Have every rank say more. Who cannot answer is left out."""
        (self.folder / inside.ASKED).touch()
        end = time.monotonic() + ANSWER
        while time.monotonic() < end and any(not one.said.get("answered") for one in self.unfinished().values()):
            time.sleep(inside.BEAT)
            self.read(codes)
