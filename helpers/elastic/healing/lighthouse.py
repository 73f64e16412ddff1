"""Who takes part in the next step. Copies ask the lighthouse before each step; when all who live have asked, it tells.

    copy ──ask: I have done 7 steps──> lighthouse ──told: copies 0, 1, 3; step 8; copy 3 is behind──> copies 0, 1, 3

Nobody votes on a step: whoever has the whole sum of gradients steps, and whoever has not is behind by one when it asks
next, and is healed like a newcomer. After torchft's lighthouse and manager (github.com/meta-pytorch/torchft).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

import torch.distributed as dist

from helpers.learner.words import book

say = book("healing")
PATIENCE = 5  # rounds in a row without a step, after which something else than a death is the cause


@dataclass(frozen=True, kw_only=True)
class Round:
    """A quorum, and what came of it.

    number: of this round. group: the round in which its connections were made. step: how many were done before it.
    members: copies that take part, in order. behind: those of them that `source` heals first. done: those that had the
    sum, and stepped. loss: of all samples of this step, of which there were `samples`. digests: of each one's weights.
    """

    number: int
    group: int
    step: int
    members: tuple[int, ...]
    behind: tuple[int, ...]
    source: int
    done: tuple[int, ...] = ()
    loss: float | None = None
    samples: int = 0
    digests: tuple[str, ...] = ()


def quorum(asked: Mapping[int, int], last: Round | None) -> Round:
    """The next round. asked: each copy's steps. Where the members are new or one of them failed, all meet anew."""
    number, step, members = last.number + 1 if last else 0, max(asked.values()), tuple(sorted(asked))
    behind = tuple(copy for copy in members if asked[copy] < step)
    source = next(copy for copy in members if copy not in behind)
    group = last.group if last and members == last.members == last.done else number
    return Round(number=number, group=group, step=step, members=members, behind=behind, source=source)


class Lighthouse:
    """Holds the store that copies ask through. A life is one process of a copy: its keys are its own alone."""

    def __init__(self) -> None:
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.rounds: list[Round] = []
        self.asked: dict[int, dict] = {}

    def hear(self, copy: int, life: str) -> None:
        """How many steps this copy has done, and what it tells of the last round, if it has asked."""
        if copy not in self.asked and self.store.check([f"{life}/ask"]):
            self.asked[copy] = json.loads(self.store.get(f"{life}/ask"))
            self.store.delete_key(f"{life}/ask")

    def answer(self, lives: Mapping[int, str]) -> None:
        """Tell all of `lives`, each of which has asked. RuntimeError where no step was done for long."""
        if self.rounds:
            self.rounds[-1] = _with_reports(self.rounds[-1], self.asked)
        if len(self.rounds) >= PATIENCE and not any(one.done for one in self.rounds[-PATIENCE:]):
            raise RuntimeError(say("stuck", rounds=PATIENCE, said=self.asked))
        steps = {copy: self.asked[copy]["steps"] for copy in lives}
        self.rounds.append(quorum(steps, self.rounds[-1] if self.rounds else None))
        for life in lives.values():
            self.store.set(f"{life}/told", json.dumps(asdict(self.rounds[-1])))
        self.asked = {}


def _with_reports(last: Round, asked: Mapping[int, dict]) -> Round:
    """What the members told of the round before. One that died since tells nothing."""
    told = {copy: asked[copy]["report"] for copy in last.members if copy in asked and asked[copy]["report"]}
    if not told:
        return last
    first, digests = next(iter(told.values())), tuple(one["digest"] for one in told.values())
    return replace(last, done=tuple(told), loss=first["loss"], samples=first["samples"], digests=digests)
