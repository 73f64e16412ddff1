"""Point-to-point on the board: the k-th send from A to B with a tag belongs to B's k-th receive from A with that tag.

Each rank writes its sends and receives into one ring a peer, and reads its peers' rings as far as they have come.
A receive from any source breaks the numbering: that tag is then counted, and no longer compared.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field

from helpers.learner.words import Words
from helpers.ranks.board_file import CHANNEL_BYTES, CHANNEL_RECORDS, Board, Entry
from helpers.ranks.sites import SAYS, Frame, describe

_ROOM = CHANNEL_BYTES - 24
SEND, RECEIVE = False, True


@dataclass
class Incoming:
    """What has been read of one ring of one peer."""

    cursor: int = 0
    counts: Counter = field(default_factory=Counter)  # tag -> number of messages
    entries: dict[tuple[int, int], Entry] = field(default_factory=dict)  # (tag, k) -> not yet matched
    lost: bool = False  # the peer ran more than a ring ahead: nothing is known any more


class Channels:
    """This rank's point-to-point messages in one group, and what is known of its peers'. Ranks are group ranks."""

    def __init__(self, board: Board):
        self.board, self.me = board, board.rank
        self.lock = threading.Lock()
        self.posted: Counter = Counter()  # (receives, peer) -> records written
        self.numbers: Counter = Counter()  # (receives, peer, tag) -> messages posted
        self.seen: dict[tuple[bool, int, int], Incoming] = {}

    def post(self, receives: bool, peer: int, tag: int, what: str, site: Frame, start: float) -> int:
        """Write down a send to, or a receive from, `peer` (this rank itself: from any source). Its number k.

        start: seconds, when the emulated link takes it up.
        """
        with self.lock:
            k = self.numbers[receives, peer, tag]
            index = self.posted[receives, peer]
            self.numbers[receives, peer, tag] += 1
            self.posted[receives, peer] += 1
            entry = Entry(f"{tag} {k} {what}", site=site)
            offset = self.board.channel(self.me, peer, receives) + index % CHANNEL_RECORDS * CHANNEL_BYTES
            self.board.write(offset, index, entry.encode(_ROOM), start)
            return k

    def counterpart(self, receives: bool, peer: int, tag: int, k: int) -> Entry | None:
        """The peer's side of this rank's message `k`, if it has been posted and can still be compared."""
        with self.lock:
            found = self._read(not receives, peer, self.me).entries.get((tag, k))
            return None if found is None or self._anyone(self.me if receives else peer, tag) else found

    def forget(self, receives: bool, peer: int, tag: int, k: int) -> None:
        """This rank's message `k` is complete."""
        with self.lock:
            known = self.seen.get((not receives, peer, self.me))
            if known is not None:
                known.entries.pop((tag, k), None)

    def is_matched(self, receives: bool, peer: int, tag: int, k: int) -> bool:
        """Whether the other side of this rank's message `k` has been posted (True also where nobody can know)."""
        with self.lock:
            known = self._read(not receives, peer, self.me)
            others = known.counts[tag] + (0 if receives else self._anyone(peer, tag))
            return known.lost or others > k

    def anyone_sent(self, tag: int, num_received: int) -> bool:
        """Whether more messages with `tag` were sent to this rank than the `num_received` that have arrived."""
        with self.lock:
            rings = [self._read(SEND, peer, self.me) for peer in range(self.board.size) if peer != self.me]
            return any(ring.lost for ring in rings) or sum(ring.counts[tag] for ring in rings) > num_received

    def drain(self) -> None:
        """Read on, so that no peer gets a ring ahead."""
        with self.lock:
            for receives, owner, peer in list(self.seen):
                self._read(receives, owner, peer)

    def _anyone(self, owner: int, tag: int) -> int:
        """How many receives from any source `owner` has posted with `tag`."""
        if owner == self.me:
            return self.numbers[RECEIVE, owner, tag]
        return self._read(RECEIVE, owner, owner).counts[tag]

    def _read(self, receives: bool, owner: int, peer: int) -> Incoming:
        known = self.seen.get((receives, owner, peer))
        if known is None:
            known = self.seen[receives, owner, peer] = Incoming()
        start = self.board.channel(owner, peer, receives)
        while not known.lost:
            offset = start + known.cursor % CHANNEL_RECORDS * CHANNEL_BYTES
            entry = self.board.read_at(offset, known.cursor)
            if entry is None:
                known.lost = self.board.words[offset // 8] > known.cursor + 1
                break
            tag, k, what = entry.what.split(" ", 2)
            known.cursor += 1
            known.counts[int(tag)] += 1
            known.entries[int(tag), int(k)] = Entry(what, site=entry.site, time=entry.time)
        return known


def message_words(name: str, me: int, peer: int, what: str, site: Frame, other: Entry) -> Words:
    """One sentence about a send and a receive that do not fit. `me` and `peer` are global ranks."""
    both = {"me": me, "what": what, "place": describe(site), "peer": peer}
    return SAYS[f"message.{name}"].format(**both, other=other.what, there=describe(other.site))
