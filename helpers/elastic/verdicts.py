"""Who is alive: a verdict from what the ranks' heartbeats say. It is a function, so it can be tried without a rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from helpers.elastic.heartbeat import Beat

MAX_GAP = 0.5  # seconds; a longer gap between two looks is a busy listener or a suspended laptop, not a silent rank


@dataclass(frozen=True, kw_only=True)
class Sign:
    """What is known of one rank, in seconds of the listener's own clock, since two machines' clocks differ.

    silent: since its last beat came in. still: in which it came no further, neither a step nor a collective.
    idle: in which it neither used a core nor wanted one. waits: whether it waits for others in a collective.
    """

    silent: float = 0.0
    still: float = 0.0
    idle: float = 0.0
    waits: bool = False


def verdict(signs: Mapping[int, Sign], *, limit: float = 2.0, patience: float = 60.0) -> dict[int, str]:
    """For each rank: "alive", "slow", "hung" or "dead".

    dead    no beat came for `limit` seconds: its whole process is gone, or its machine
    hung    its beats come, but it stands still, wants no core and waits for nobody, while all others wait
    slow    it stands still, and the others may wait for it, but it computes: given time, it will come
    alive   it comes further, or waits for a rank that does not
    After `patience` seconds what was slow counts as hung: a loop without an end computes, too.
    """
    found = {}
    for rank, sign in signs.items():
        others_wait = all(other.waits or other.idle >= limit for one, other in signs.items() if one != rank)
        if sign.silent >= limit:
            found[rank] = "dead"
        elif sign.still < limit or sign.waits:
            found[rank] = "alive"
        elif (sign.idle >= limit and others_wait) or sign.still >= patience:
            found[rank] = "hung"
        else:
            found[rank] = "slow"
    return found


class Listener:
    """Makes Signs of beats: `listen(rank, beat)` as often as one likes, then `signs`."""

    def __init__(self) -> None:
        self.beats: dict[int, Beat] = {}
        self.signs: dict[int, Sign] = {}
        self.last: dict[int, float] = {}

    def listen(self, rank: int, beat: Beat, now: float, *, works: bool = False) -> None:
        """Take in a rank's last beat, perhaps the same as before. now: seconds of this process's clock.

        works: whether the system says that its process uses a core. Then it may be silent, but it is not gone.
        """
        gap = min(now - self.last.get(rank, now), MAX_GAP)
        self.last[rank] = now
        old, sign = self.beats.get(rank, beat), self.signs.get(rank, Sign())
        fresh, further = beat.number != old.number, (beat.step, beat.calls) != (old.step, old.calls)
        self.signs[rank] = Sign(
            silent=0.0 if fresh or works else sign.silent + gap,
            still=0.0 if further else sign.still + gap,
            idle=0.0 if beat.busy or works else sign.idle + gap,
            waits=beat.waits,
        )
        self.beats[rank] = beat
