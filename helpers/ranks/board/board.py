"""Implements the board: a file in shared memory on which every rank of a group announces each operation before it.

Each group has one file. Each rank owns one part of it and writes only there, so nothing needs a lock:

    page    how many collectives the rank has posted, and a flag with a sentence, raised when operations do not match
    ring    its last 1024 collectives: text (compared), split sizes (compared crosswise), caller's line (not compared)
    rings   its last 256 sends to, and receives from, each other rank (`Channels` reads and writes these)

A ring is a fixed number of records that is written in a circle: record number n stands at place n % length, so the
oldest one is overwritten. Each record is an 8-byte stamp (its number plus 1, or 0 while it is being written), a header
(`_HEAD`) and a body (an encoded `BoardEntry`). The stamp is written last, and a checksum guards the body, so a
half-written record reads as "not there yet".

"Collectives" are all operations that every rank of the group must call. "Operation number" or "sequence" is the place
of a collective in the order in which a rank called its collectives, from 0. "Withdrawn" is a collective that a rank
posted but that torch then refused to issue. The file starts with one page that holds the group's name and ranks.

The wire (helpers/ranks/wire) posts each operation here and compares it with what the other ranks posted. The kernel,
which is the notebook's process, reads the boards after a failure (report.py). It need not have torch, so this file does
not import it.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import struct
import tempfile
import threading
import zlib
from collections import Counter
from dataclasses import asdict, dataclass, field

from helpers.learner.words import Words
from helpers.ranks.board.sites import Frame, describe, words

PAGE = 4096  # bytes
RECORDS, RECORD_BYTES = 1024, 384  # of the ring of collectives: how many records it has, and the bytes of each
CHANNEL_RECORDS, CHANNEL_BYTES = 256, 192  # the same for each ring of sends or receives
_HEAD = struct.Struct("=IHHd")  # checksum, body length, withdrawn, time; after the 8-byte stamp
_BODY = 8 + _HEAD.size  # offset of the body inside a record
_WITHDRAWN = 14  # offset of `withdrawn` inside a record, after 8 bytes of stamp, 4 of checksum and 2 of length
_FIELD = b"\x1f"  # between the parts of an encoded BoardEntry
_PEER = "\x1e"  # between the items of `give` and of `take`
_FLAG = 1024  # offset of the flag inside a rank's page: 8 bytes for its length, then its text as JSON
SUFFIX = ".board"  # of the files' names
# The name of the board on which all ranks of a world compare their calls of new_group, and the suffix of its file.
NEW_GROUP, CALLS_SUFFIX = "new_group", ".calls"
_LONGEST = 1400  # bytes of a flag's sentence in one language, so that all languages fit into the page


@dataclass(frozen=True)
class BoardEntry:
    """What one rank posted for one operation."""

    what: str  # such as "all_reduce SUM float32 (4, 2)"; must be equal on all ranks
    give: tuple[str, ...] = ()  # for an all-to-all: what this rank sends to each peer, such as "3 rows"
    take: tuple[str, ...] = ()  # what it expects from each peer, which must equal what that peer gives to this rank
    site: tuple[str, int, str] = ("", 0, "")  # file, line and function of the caller, which are not compared
    time: float = 0.0  # when it was posted, in seconds of time.perf_counter
    withdrawn: bool = False  # whether torch refused to issue it after it had been posted

    def encode(self, room: int) -> bytes:
        """The body of a record, in at most `room` bytes.

        A description that is too long is cut, and ends in a checksum of the full description. Two long descriptions
        that differ only near their end are therefore still told apart.
        """
        path, line, function = self.site
        site = f"{_last(path, 120)}:{line}:{_last(function, 40)}".encode()
        peers = [_PEER.join(self.give).encode(), _PEER.join(self.take).encode()]
        free = room - len(site) - 3  # less the three separators
        if sum(map(len, peers)) > free // 2:
            peers = [b"", b""]  # a very large group: its split sizes are not compared
        free -= sum(map(len, peers))
        what = self.what.encode()
        if len(what) > free:
            what = what[: free - 14] + b"... #%08x" % zlib.crc32(what)  # "... #" and eight digits have 13 bytes
        return _FIELD.join([what, *peers, site])

    @classmethod
    def decode(cls, body: bytes, when: float, withdrawn: bool) -> BoardEntry:
        """The entry that was encoded in this body; the other two values are in the record's header."""
        what, give, take, site = (part.decode(errors="replace") for part in body.split(_FIELD))
        path, line, function = site.rsplit(":", 2)
        split = [tuple(text.split(_PEER)) if text else () for text in (give, take)]
        return cls(what, *split, (path, int(line), function), when, withdrawn)

    def disagrees(self, other: BoardEntry, me: int, peer: int) -> bool:
        """Whether `other`, posted by `peer`, cannot be the same operation as this one, posted by `me` (group ranks)."""
        if self.what != other.what:
            return True
        if not (self.give and other.give):
            return False  # no split sizes, or too many of them to be written down
        return self.give[peer] != other.take[me] or self.take[peer] != other.give[me]


class Board:
    """The board of one group, as one of its ranks sees it, or as the kernel does (`rank=None`).

    Ranks are group ranks (0 to size - 1), except in `ranks`, which has the global rank of each.
    """

    def __init__(self, path: str, rank: int | None = None):
        self.path, self.rank = path, rank
        with open(path, "r+b") as file:
            self.map = mmap.mmap(file.fileno(), 0)
        head = json.loads(self.map[:PAGE].rstrip(b"\0"))
        self.name, self.ranks = head["name"], tuple(head["ranks"])
        self.size = len(self.ranks)
        self.integers = memoryview(self.map).cast("Q")  # the file as 8-byte integers: an offset // 8 is an index here
        self.part = _part_bytes(self.size)  # bytes that each rank owns

    @staticmethod
    def create(folder: str, name: str, ranks: tuple[int, ...]) -> str:
        """Make the file of a new group and return its path.

        It is in `folder` or, if there is no room, in the temporary folder. Raises OSError where neither has room.
        """
        head = json.dumps({"name": name, "ranks": list(ranks)}).encode()
        if len(head) > PAGE:
            raise ValueError(f"a group of {len(ranks)} ranks is too large for the board: use Ranks(..., check=False)")
        size, suffix = PAGE + len(ranks) * _part_bytes(len(ranks)), CALLS_SUFFIX if name == NEW_GROUP else SUFFIX
        for place in (folder, tempfile.gettempdir()):
            with contextlib.suppress(OSError):
                return _reserve(place, name, size, head, suffix)
        raise OSError(
            f"no room for a board of {size / 1e6:.1f} MB in {folder} or {tempfile.gettempdir()}: free some space"
        )

    def close(self) -> None:
        self.integers.release()
        self.map.close()

    # -- collectives -----------------------------------------------------------------------------------------------
    def count(self, rank: int) -> int:
        """How many collectives `rank` has posted. Its page begins with this number."""
        return self.integers[self._page(rank) // 8]

    def issued(self, rank: int) -> int:
        """How many operations `rank` has issued: its collectives, sends and receives.

        The withdrawn collectives whose records have not been overwritten yet do not count.
        """
        start = self._page(rank) + PAGE
        # A slice with the step RECORD_BYTES takes the flag of every record, which is 1 if it is withdrawn.
        withdrawn = sum(self.map[start + _WITHDRAWN : start + RECORDS * RECORD_BYTES : RECORD_BYTES])
        return self.count(rank) - withdrawn + sum(self._posted(rank, ring) for ring in range(2 * self.size))

    def has_unmatched_messages(self) -> bool:
        """Whether a send has no receive, or a receive has no send; one from any source counts for all of its rank's."""
        for receiver in range(self.size):
            sends = [self._posted(sender, 2 * receiver) for sender in range(self.size)]
            receives = [self._posted(receiver, 2 * sender + 1) for sender in range(self.size)]
            is_from_any = receives[receiver] > 0
            if sum(sends) != sum(receives) if is_from_any else sends != receives:
                return True
        return False

    def _posted(self, owner: int, ring: int) -> int:
        """How many records were written to one of the 2 * size rings for sends and receives: its largest stamp."""
        start = self.channel(owner, ring // 2, bool(ring % 2)) // 8  # even rings are sends, odd ones receives
        return max(self.integers[start : start + CHANNEL_RECORDS * CHANNEL_BYTES // 8 : CHANNEL_BYTES // 8])

    def post(self, sequence: int, entry: BoardEntry) -> None:
        """Write down this rank's collective number `sequence`."""
        self.write(self._record(self.rank, sequence), sequence, entry.encode(RECORD_BYTES - _BODY), entry.time)
        self.integers[self._page(self.rank) // 8] = sequence + 1

    def withdraw(self, sequence: int) -> None:
        """Mark collective number `sequence`, which this rank posted but could not issue after all."""
        self.map[self._record(self.rank, sequence) + _WITHDRAWN] = 1

    def read(self, rank: int, sequence: int) -> BoardEntry | None:
        """What `rank` posted as its collective number `sequence`.

        None if it has not posted it yet, or so long ago that the record has been overwritten.
        """
        return self.read_at(self._record(rank, sequence), sequence)

    def has_posted(self, rank: int, sequence: int) -> bool:
        """Whether `rank` has posted its collective number `sequence` and not withdrawn it."""
        if self.count(rank) <= sequence:
            return False
        entry = self.read(rank, sequence)
        return entry is None or not entry.withdrawn  # None: overwritten, so it was posted long ago

    def first_disagreement(self, sequence: int, mine: BoardEntry) -> int | None:
        """The first rank that posted another collective as number `sequence` than this rank did; None if none did."""
        for rank in range(self.size):
            if rank != self.rank:
                theirs = self.read(rank, sequence)
                if theirs is not None and mine.disagrees(theirs, self.rank, rank):
                    return rank
        return None

    # -- flags -----------------------------------------------------------------------------------------------------
    def flag(self, message: Words, culprit: int | None) -> None:
        """Raise this rank's flag, once, with a sentence on what is wrong. Every rank looks at all flags regularly.

        culprit: the global rank to blame, or None.
        """
        start = self._page(self.rank) + _FLAG
        if not self.integers[start // 8]:
            cut = message.map(lambda text: text.encode()[:_LONGEST].decode(errors="ignore"))
            body = json.dumps([asdict(cut), culprit], ensure_ascii=False).encode()
            self.map[start + 8 : start + 8 + len(body)] = body
            self.integers[start // 8] = len(body)

    def flagged(self) -> tuple[Words, int | None] | None:
        """(sentence, culprit) of the first flag that is raised; None where none is."""
        for rank in range(self.size):
            start = self._page(rank) + _FLAG
            length = self.integers[start // 8]
            if length:
                texts, culprit = json.loads(self.map[start + 8 : start + 8 + length])
                return Words(**texts), culprit
        return None

    # -- records ---------------------------------------------------------------------------------------------------
    def write(self, offset: int, stamp: int, body: bytes, when: float) -> None:
        """Write record number `stamp` of a ring at `offset`, in an order in which nobody can read half of it.

        when: seconds of time.perf_counter.
        """
        self.integers[offset // 8] = 0
        self.map[offset + _BODY : offset + _BODY + len(body)] = body
        _HEAD.pack_into(self.map, offset + 8, zlib.crc32(body), len(body), 0, when)
        self.integers[offset // 8] = stamp + 1

    def read_at(self, offset: int, stamp: int) -> BoardEntry | None:
        """The record at `offset`, if it is complete and has this number; else None."""
        if self.integers[offset // 8] != stamp + 1:
            return None
        checksum, length, withdrawn, when = _HEAD.unpack_from(self.map, offset + 8)
        body = self.map[offset + _BODY : offset + _BODY + length]
        if zlib.crc32(body) != checksum or self.integers[offset // 8] != stamp + 1:
            return None
        return BoardEntry.decode(body, when, bool(withdrawn))

    def channel(self, owner: int, peer: int, receives: bool) -> int:
        """The offset of the ring in which `owner` writes its sends to, or its receives from, `peer`."""
        ring = peer * 2 + receives
        start = self._page(owner) + PAGE + RECORDS * RECORD_BYTES
        return start + ring * CHANNEL_RECORDS * CHANNEL_BYTES

    def _record(self, rank: int, sequence: int) -> int:
        """The offset of a rank's collective number `sequence` in its ring."""
        return self._page(rank) + PAGE + sequence % RECORDS * RECORD_BYTES

    def _page(self, rank: int) -> int:
        """The offset of a rank's part, which begins with its page."""
        return PAGE + rank * self.part


def _last(text: str, room: int) -> str:
    """The end of `text`, at most `room` bytes of it."""
    return text if len(text.encode()) <= room else text.encode()[-room:].decode(errors="ignore")


def _part_bytes(size: int) -> int:
    """Bytes that each rank owns in the file of a group of `size` ranks."""
    return PAGE + RECORDS * RECORD_BYTES + 2 * size * CHANNEL_RECORDS * CHANNEL_BYTES


def _reserve(folder: str, name: str, size: int, head: bytes, suffix: str = SUFFIX) -> str:
    """Make a file of `size` bytes whose memory is allocated now, and return its path.

    Without that, a later write through the memory map would kill the process with SIGBUS if the memory disk is full.
    """
    safe = "".join(c if c.isalnum() else "_" for c in name)[:40]
    handle, path = tempfile.mkstemp(prefix=f"{safe}-", suffix=suffix, dir=folder)
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(handle, 0, size)
        else:
            os.ftruncate(handle, size)
        os.pwrite(handle, head, 0)
    except OSError:
        os.unlink(path)
        raise
    finally:
        os.close(handle)
    return path


_ROOM = CHANNEL_BYTES - _BODY  # bytes of the body of a send or a receive
SEND, RECEIVE = False, True  # values of the parameter `receives`


@dataclass
class IncomingRing:
    """What this rank has read so far of one ring that a peer writes."""

    cursor: int = 0  # number of the record to read next
    counts: Counter = field(default_factory=Counter)  # tag -> number of messages
    entries: dict[tuple[int, int], BoardEntry] = field(default_factory=dict)  # (tag, k) -> message, see Channels
    lost: bool = False  # whether the peer overwrote records that were not read yet, so that nothing is certain any more


class Channels:
    """This rank's point-to-point messages in one group, and what is known of its peers' messages.

    A "message" is a send or a receive; the two belong together as follows. The k-th send from A to B with a tag belongs
    to B's k-th receive from A with that tag (k counts from 0). A receive from any source breaks this numbering:
    messages with its tag are then counted, but no longer compared.

    Ranks are group ranks. receives: whether the message is a receive. A receive from any source is written in the ring
    whose peer is the receiving rank itself, which is free because no rank sends to itself.
    """

    def __init__(self, board: Board):
        self.board, self.me = board, board.rank
        self.lock = threading.Lock()
        self.posted: Counter = Counter()  # (receives, peer) -> records written
        self.numbers: Counter = Counter()  # (receives, peer, tag) -> messages posted
        self.seen: dict[tuple[bool, int, int], IncomingRing] = {}  # (receives, owner of the ring, its peer)

    def post(self, receives: bool, peer: int, tag: int, what: str, site: Frame, start: float) -> int:
        """Write down a send to, or a receive from, `peer` (this rank itself: from any source), and return its number k.

        start: seconds of time.perf_counter at which the emulated network link begins to carry it.
        """
        with self.lock:
            k = self.numbers[receives, peer, tag]
            index = self.posted[receives, peer]
            self.numbers[receives, peer, tag] += 1
            self.posted[receives, peer] += 1
            entry = BoardEntry(f"{tag} {k} {what}", site=site)
            offset = self.board.channel(self.me, peer, receives) + index % CHANNEL_RECORDS * CHANNEL_BYTES
            self.board.write(offset, index, entry.encode(_ROOM), start)
            return k

    def counterpart(self, receives: bool, peer: int, tag: int, k: int) -> BoardEntry | None:
        """The peer's side of this rank's message `k`, if it has been posted and can still be compared."""
        with self.lock:
            found = self._read(not receives, peer, self.me).entries.get((tag, k))
            receiver = self.me if receives else peer
            return None if found is None or self._num_from_anyone(receiver, tag) else found

    def forget(self, receives: bool, peer: int, tag: int, k: int) -> None:
        """Drop what is stored about this rank's message `k`, which is complete."""
        with self.lock:
            known = self.seen.get((not receives, peer, self.me))
            if known is not None:
                known.entries.pop((tag, k), None)

    def is_matched(self, receives: bool, peer: int, tag: int, k: int) -> bool:
        """Whether the other side of this rank's message `k` has been posted (True also where that cannot be known).

        A receive from any source may be the other side of a send, so these receives count, too.
        """
        with self.lock:
            known = self._read(not receives, peer, self.me)
            others = known.counts[tag] + (0 if receives else self._num_from_anyone(peer, tag))
            return known.lost or others > k

    def anyone_sent(self, tag: int, num_received: int) -> bool:
        """Whether more messages with `tag` were sent to this rank than the `num_received` that have arrived."""
        with self.lock:
            rings = [self._read(SEND, peer, self.me) for peer in range(self.board.size) if peer != self.me]
            return any(ring.lost for ring in rings) or sum(ring.counts[tag] for ring in rings) > num_received

    def drain(self) -> None:
        """Read the rings of all peers, so that no peer gets a whole ring ahead."""
        with self.lock:
            for receives, owner, peer in list(self.seen):
                self._read(receives, owner, peer)

    def _num_from_anyone(self, owner: int, tag: int) -> int:
        """How many receives from any source `owner` has posted with `tag`."""
        if owner == self.me:
            return self.numbers[RECEIVE, owner, tag]
        return self._read(RECEIVE, owner, owner).counts[tag]

    def _read(self, receives: bool, owner: int, peer: int) -> IncomingRing:
        """Read what is new in a ring. Returns all that is known of it."""
        known = self.seen.get((receives, owner, peer))
        if known is None:
            known = self.seen[receives, owner, peer] = IncomingRing()
        start = self.board.channel(owner, peer, receives)
        while not known.lost:
            offset = start + known.cursor % CHANNEL_RECORDS * CHANNEL_BYTES
            entry = self.board.read_at(offset, known.cursor)
            if entry is None:
                known.lost = self.board.integers[offset // 8] > known.cursor + 1  # a later record is in its place
                break
            tag, k, what = entry.what.split(" ", 2)
            known.cursor += 1
            known.counts[int(tag)] += 1
            known.entries[int(tag), int(k)] = BoardEntry(what, site=entry.site, time=entry.time)
        return known


def describe_message_mismatch(name: str, me: int, peer: int, what: str, site: Frame, other: BoardEntry) -> Words:
    """One sentence about a send and a receive that do not fit. `me` and `peer` are global ranks."""
    both = {"me": me, "what": what, "place": describe(site), "peer": peer}
    return words[f"message.{name}"].format(**both, other=other.what, there=describe(other.site))
