"""Decides which replicas take part in the next step of a job that goes on without a restart.

Replicas ask the lighthouse before each step. When all live replicas have asked, it answers them all.

    replica ──request: I have done 7 steps──> lighthouse ──round: replicas 0, 1, 3; step 8; 3 is behind──> all of them

A replica is one full copy of the model in a process of its own. A quorum is the set of replicas that take part in a
step. They do not vote on whether a step has succeeded. A replica that has received the full sum of gradients does its
optimizer's step. One that has not is behind by one step when it asks next, and is healed like a newcomer: it receives
the state of a replica that is not behind. This follows torchft's lighthouse and manager
(github.com/meta-pytorch/torchft). The replicas themselves are in `healing.py`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

import torch.distributed as dist

from helpers.learner.words import book

words = book("healing")  # the sentences of healing.yaml, in every language
MAX_FAILED_ROUNDS = 5  # rounds in a row without a step, after which something other than a death must be the cause


@dataclass(frozen=True, kw_only=True)
class QuorumRound:
    """The quorum of one step, and what came of it."""

    number: int  # of this round
    group: int  # the round in which the connections of its members were made
    step: int  # how many steps were done before it
    members: tuple[int, ...]  # the replicas that take part, in order
    behind: tuple[int, ...]  # those of them that are healed first
    source: int  # the member whose state they receive
    done: tuple[int, ...] = ()  # the members that received the sum of gradients and stepped
    loss: float | None = None  # over all samples of this step
    samples: int = 0
    digests: tuple[str, ...] = ()  # a hash of each member's weights after the step


def next_round(steps: Mapping[int, int], last: QuorumRound | None) -> QuorumRound:
    """The round after `last`. steps: replica -> how many steps it has done.

    The members connect anew unless they are the same as before and all of them have stepped.
    """
    number, step, members = last.number + 1 if last else 0, max(steps.values()), tuple(sorted(steps))
    behind = tuple(replica for replica in members if steps[replica] < step)
    source = next(replica for replica in members if replica not in behind)
    group = last.group if last and members == last.members == last.done else number
    return QuorumRound(number=number, group=group, step=step, members=members, behind=behind, source=source)


class Lighthouse:
    """Owns the key-value store through which replicas ask. requests: replica -> its unanswered request.

    A request is {"steps": done so far, "report": on the last round or None, "error": of that round or ""}.

    A replica that is started again asks under a new process name, so that it never reads an answer to the old process.
    """

    def __init__(self) -> None:
        # Port 0 means any free one.
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.rounds: list[QuorumRound] = []
        self.requests: dict[int, dict] = {}

    def read_request(self, replica: int, process_name: str) -> None:
        """Takes in a replica's request if there is one: its number of steps and its report on the last round."""
        if replica not in self.requests and self.store.check([f"{process_name}/request"]):
            self.requests[replica] = json.loads(self.store.get(f"{process_name}/request"))
            self.store.delete_key(f"{process_name}/request")

    def answer(self, process_names: Mapping[int, str]) -> None:
        """Sends the next round to all live replicas, each of which has asked. process_names: replica -> its process.

        Raises RuntimeError where no step was done for MAX_FAILED_ROUNDS rounds.
        """
        if self.rounds:
            self.rounds[-1] = _with_reports(self.rounds[-1], self.requests)
        recent = self.rounds[-MAX_FAILED_ROUNDS:]
        if len(recent) == MAX_FAILED_ROUNDS and not any(one.done for one in recent):
            raise RuntimeError(words("stuck", rounds=MAX_FAILED_ROUNDS, said=self.requests))
        steps = {replica: self.requests[replica]["steps"] for replica in process_names}
        self.rounds.append(next_round(steps, self.rounds[-1] if self.rounds else None))
        for process_name in process_names.values():
            self.store.set(f"{process_name}/round", json.dumps(asdict(self.rounds[-1])))
        self.requests = {}


def _with_reports(last: QuorumRound, requests: Mapping[int, dict]) -> QuorumRound:
    """The last round with what its members reported. A member that has died since reports nothing."""
    answered = (replica for replica in last.members if replica in requests and requests[replica]["report"])
    reports = {replica: requests[replica]["report"] for replica in answered}
    if not reports:
        return last
    first, digests = next(iter(reports.values())), tuple(report["digest"] for report in reports.values())
    return replace(last, done=tuple(reports), loss=first["loss"], samples=first["samples"], digests=digests)
