"""Puts into words what NCCL would have done: which calls wait for each other, at which lines, and what to change.

The program ran on gloo, and a replay of the ranks' journals by NCCL's rules (replayer.py) found a `Deadlock`, or sends
and receives that do not fit. Its nodes are hosts (the Python program of a rank) and operations that were posted and are
not done. A `Record` is one call of a rank, from its journal. A `NcclVerdict` is the result. `words["hang.missing"]` and
the like are texts in every language of the course, from helpers/learner/words/nccl.yaml. No torch here.

Each mistake has a name, and a sentence "hang.NAME" and an advice "cure.NAME":

    half_batched   one side of a message is in batch_isend_irecv, the other is not
    first_batch    a batch is the first use of a group, and other ranks of the group never come to make its communicator
    missing        a rank has ended, or does something else, without the call for which others wait
    fewer          as before, after it has made this call less often than the others
    first_use      pairs of ranks make their first communicators in orders that do not agree
    first_orders   as before, with the communicators of groups
    messages       sends and receives wait for each other in a circle
    receives       as before, and all that run are receives, so that no buffer helps
    no_partner     a message waits, and its peer has posted fewer of the other side
    orders         the ranks use several groups in orders that do not agree
    in_line        messages and collectives of one group wait for each other
    differ         the ranks call different collectives
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from helpers.learner.words import Words, book
from helpers.ranks.board.sites import Frame, describe, describe_line, rank_names
from helpers.ranks.nccl.journal import NO_SITE, RankProgram, Record
from helpers.ranks.nccl.replayer import Deadlock, Host, Node, PostedOperation, Replay

words = book("nccl")
# Kinds of verdict. "hangs above the buffer": only with messages that are too large for NCCL's buffers.
HANGS, HANGS_ABOVE_BUFFER, CAN_HANG, ERROR, WARNING = "hangs", "hangs above the buffer", "can hang", "error", "warning"
UNNOTICED = "unnoticed"  # wrong on NCCL, which compares nothing and raises nothing
MAX_LINES = 6  # of a circle that are shown
MAX_BATCH = 256  # operations of one batch, above which NCCL splits it, perhaps not in the same way on all ranks


@dataclass(frozen=True)
class NcclVerdict:
    """What NCCL would have done, in words."""

    # "hangs", "hangs above the buffer", "can hang", "error", "unnoticed", "warning", or "race", which a rank itself
    # finds and notes in its journal.
    kind: str
    ranks: tuple[int, ...]
    sites: tuple[Frame, ...]  # lines of the program; the first is the one to show
    words: Words  # what happens and where
    cure: Words  # what to change

    def __str__(self) -> str:
        return str(self.text)

    @property
    def text(self) -> Words:
        """The whole verdict: its kind, what happens, and the cure."""
        return words["said"].format(kind=words["kind." + self.kind], words=self.words, cure=self.cure)


def deadlock_verdict(kind: str, deadlock: Deadlock, extra: str = "") -> NcclVerdict:
    """The verdict about a replay that does not move on. extra: the name of a sentence "extra.NAME" that goes first."""
    half = _half_batched_message(deadlock)
    name = "half_batched" if half else _pattern(deadlock)
    if name == "messages" and kind == HANGS:
        name = "receives"  # sends do not hang for certain, because they may be buffered
    counted = _messages_without_partner(deadlock) if name in ("in_line", "missing") else None
    if name == "in_line" and counted:
        name = "no_partner"
    # A host that is not blocked stands in the cycle only because its last operation does, which has a line of its own.
    nodes = [node for node in deadlock.cycle if not _is_over(node) or not deadlock.edges[node]]
    nodes = sorted(nodes, key=_urgency) if deadlock.is_circle else nodes
    groups = _groups(nodes)
    lines = _lines(nodes, groups)
    sites = [site for node in nodes if (site := _site(node)) != NO_SITE]
    if half:
        rank, record = half
        where = {"what": describe_operation(record, groups=groups), "place": describe(record.site)}
        lines.insert(0, words["line.stands"].format(ranks=rank_names([rank]), n=1, **where))  # n: how many ranks
        sites.insert(0, record.site)
    if name == "missing" and not counted and (counted := _numbers_of_calls(deadlock)):
        name = "fewer"
    lines += [counted] if counted else []
    head = [words["extra." + extra]] if extra else []
    text = Words.of("\n  ").join([Words.of(" ").join([*head, words[f"hang.{name}"]]), *lines])
    ranks = tuple(sorted({node.rank for node in nodes}))
    return NcclVerdict(kind, ranks, tuple(dict.fromkeys(sites)), text, words[f"cure.{name}"])


def _pattern(deadlock: Deadlock) -> str:
    """The name of the mistake that the cycle of a deadlock shows.

    A host "meets" others where it waits for them to make a communicator. A communicator's key has more than two items
    if it is the own one of a pair of ranks, and not a group's.
    """
    posts = [node for node in deadlock.cycle if isinstance(node, PostedOperation)]
    meeting = [node for node in deadlock.cycle if isinstance(node, Host) and node.meets is not None]
    if any(host.record.is_batch and not host.meets[2:] for host in meeting):
        return "first_batch"
    if not deadlock.is_circle:
        return "missing"
    if meeting:
        return "first_use" if all(host.meets[2:] for host in meeting) and not posts else "first_orders"
    if all(one.record.messages for one in posts):
        return "messages"
    if len({one.key for one in posts}) > 1:
        return "orders"
    return "in_line" if any(one.record.messages for one in posts) else "differ"


def _half_batched_message(deadlock: Deadlock) -> tuple[int, Record] | None:
    """The other side of a message of the cycle, if only one of the two sides is batched: its rank and its record.

    None where there is no such message.
    """
    for node in deadlock.cycle:
        # A host that waits to make a communicator is about to post its record. Other hosts post nothing now.
        record = node.record if isinstance(node, PostedOperation) or node.meets is not None else None
        for message in record.messages if record else ():
            for other in _unfinished_records(deadlock.replay, message.peer):
                fits = any(one.peer == node.rank and one.sends != message.sends for one in other.messages)
                if fits and other.is_batch != record.is_batch:
                    return message.peer, other
    return None


def _messages_without_partner(deadlock: Deadlock) -> Words | None:
    """How many messages a rank of the cycle has posted and how many its peer has, if the peer has posted fewer."""
    for node in deadlock.cycle:
        for message in node.open if isinstance(node, PostedOperation) else ():
            group, sends = node.record.group, message.sends
            own = _number_of_messages(deadlock.replay, node.rank, message.peer, sends, group)
            peers = _number_of_messages(deadlock.replay, message.peer, node.rank, not sends, group)
            if peers < own and deadlock.replay.is_from_the_start:
                named = {"a": node.rank, "b": message.peer, "own": own, "peers": peers}
                return words["count.sends" if sends else "count.receives"].format(**named)
    return None


def _number_of_messages(replay: Replay, rank: int, peer: int, sends: bool, group: tuple) -> int:
    messages = [one for record in _records_of(replay, rank) if record.group == group for one in record.messages]
    return sum(one.peer == peer and one.sends == sends for one in messages)


def _records_of(replay: Replay, rank: int) -> Sequence[Record]:
    return replay.hosts[rank].records if rank in replay.hosts else ()


def _numbers_of_calls(deadlock: Deadlock) -> Words | None:
    """How often each rank has made the call for which the cycle waits, if all have made it and some less often."""
    posts = [node for node in deadlock.cycle if isinstance(node, PostedOperation) and node.record.is_collective]
    if not posts or not deadlock.replay.is_from_the_start:
        return None
    name, group = posts[0].record.name, posts[0].record.group
    numbers: dict[int, list[int]] = {}  # how often -> ranks
    for rank in group[1]:
        records = _records_of(deadlock.replay, rank)
        number = sum(one.kind == "post" and one.name == name and one.group == group for one in records)
        numbers.setdefault(number, []).append(rank)
    if len(numbers) < 2 or 0 in numbers:
        return None
    parts = [words["count.times"].format(ranks=rank_names(ranks), n=number) for number, ranks in numbers.items()]
    return words["count.calls"].format(name=name, numbers=parts)


def _unfinished_records(replay: Replay, rank: int) -> Iterator[Record]:
    """What a rank has posted that is not done, and what its host would post now."""
    for (owner, _), queue in replay.queues.items():
        if owner == rank:
            yield from (one.record for one in queue)
    if rank in replay.hosts and replay.hosts[rank].meets is not None:
        yield replay.hosts[rank].record


def _urgency(node: Node) -> tuple:
    """The key by which the nodes of a circle are sorted, so that the node whose line is to be shown first comes first.

    Hosts that wait without being about to post an operation come last. Otherwise messages come before collectives, what
    runs before what is queued, and sends before receives.
    """
    record, is_host = _call(node), isinstance(node, Host)
    sends = any(message.sends for message in record.messages)
    return is_host and record.kind != "post", not record.messages, not (is_host or node.runs), not sends, node.rank


def _call(node: Node) -> Record:
    """The call at which a node waits. A host that waits for its stream is at the record after that call."""
    return node.records[node.at - 1] if isinstance(node, Host) and node.waits_for else node.record


def _is_over(node: Node) -> bool:
    """Whether a node is a host that is not blocked, because it has ended or its task is over."""
    return isinstance(node, Host) and not node.is_blocked


def _site(node: Node) -> Frame:
    """The line at which a node waits; NO_SITE for a host that is over."""
    return NO_SITE if _is_over(node) else _call(node).site


def _groups(nodes: list[Node]) -> dict[tuple, Words]:
    """What to call each group, by (name, ranks), where the nodes use two or more; else {}, since one needs no name.

    Twins are groups of the same ranks that were made at the same line.
    """
    records = [record for node in nodes if not _is_over(node) and (record := _call(node)).group]
    used = {record.group: record for record in records}
    if len(used) < 2:
        return {}
    twins = Counter((group[1], record.origin[0]) for group, record in used.items())
    return {group: _group(record, twins[group[1], record.origin[0]] > 1) for group, record in used.items()}


def _group(record: Record, has_twin: bool) -> Words:
    """'the default group', 'the group of line 4'; 'group 2 of line 4' where that line made more of the same ranks.

    A record's `origin` is the line that made its group, and the group's number among those of that line.
    """
    name, (origin, number) = record.group[0], record.origin
    # "0" is torch's name of the default group. The journal adds a "'" each time all groups of a process were made anew.
    if name.rstrip("'") == "0":
        return words["group.default"]
    if origin == NO_SITE:
        return words["group.other"].format(name=name)
    # The line number alone is enough where the operation is in the same file.
    place = words["group.line"].format(origin[1]) if origin[0] == record.site[0] else describe_line(origin)
    return words["group.counted" if has_twin or number > 1 else "group.made"].format(place=place, number=number)


def _lines(nodes: list[Node], groups: dict[tuple, Words]) -> list[Words]:
    """One line for each place at which ranks wait; the ranks at one place share its line."""
    places: dict[tuple, list[Node]] = {}  # what _line_key returns -> nodes
    for node in nodes:
        places.setdefault(_line_key(node), []).append(node)
    return [_line(*key, nodes_there, groups) for key, nodes_there in [*places.items()][:MAX_LINES]]


def _line_key(node: Node) -> tuple:
    """(name of the sentence, what the node does, line): nodes with the same key share a line of the verdict.

    The names are "ended", "host" (waits for its stream), "meets" (waits to make a communicator), "waits" (an operation
    that runs) and "behind" (one that is queued behind another).
    """
    if _is_over(node):
        return "ended", "", NO_SITE
    record = _call(node)
    if isinstance(node, Host) and node.waits_for:
        return "host", record.name or record.kind, record.site
    name = "meets" if isinstance(node, Host) else "waits" if node.runs else "behind"
    return name, (record.name, record.group), record.site


def _line(name: str, what: object, site: Frame, nodes: list[Node], groups: dict[tuple, Words]) -> Words:
    """The line for nodes of one key, whose parts are name, what and site."""
    # n chooses between singular and plural in the sentence.
    who = {"ranks": rank_names({node.rank for node in nodes}), "n": len(nodes)}
    # For "host" and "ended", `what` is the name of a call or "".
    if name in ("waits", "behind", "meets"):
        what = describe_operation(_call(nodes[0]), alone=len(nodes) == 1, groups=groups)
    return words[f"line.{name}"].format(**who, what=what, place=describe(site))


def describe_operation(
    record: Record, alone: bool = True, groups: Mapping[tuple, Words] = MappingProxyType({})
) -> Words:
    """For example 'send to rank 1', 'a batch with ranks 0, 2' or 'all_reduce of ranks 0, 1'.

    alone: whether it stands for one rank; for several, the peers are left out. groups: what to call the groups, where
    that has to be said.
    """
    if record.group in groups:
        return words["what.in_group"].format(what=describe_operation(record, alone), group=groups[record.group])
    if not record.messages:
        return words["what.collective"].format(name=record.name, ranks=rank_names(record.group[1]))
    if not alone:
        return words["what.batches"] if record.is_batch else Words.of(record.name)
    peers = rank_names({one.peer for one in record.messages})
    kind = "batch" if record.is_batch else "send" if record.messages[0].sends else "recv"
    return words["what." + kind].format(peers=peers, name=record.name)


# -- sends and receives that do not fit, and other mistakes ----------------------------------------------------------
def message_verdicts(replay: Replay) -> Iterator[NcclVerdict]:
    """Tags, sizes and strides that differ between a send and the receive that NCCL pairs with it."""
    sent, received = defaultdict(Counter), defaultdict(Counter)
    for sender, one, receiver, other in replay.mismatched:
        sent[sender.rank, receiver.rank][one.tag] += 1
        received[sender.rank, receiver.rank][other.tag] += 1
    seen = set()
    for sender, one, receiver, other in replay.mismatched:
        pair = sender.rank, receiver.rank
        name = "form" if one.form != other.form else "tags" if one.tag != other.tag else "strides"
        # Tags that differ are harmless, unless the same tags were sent and received in another order: then a receive
        # with one tag got the message that was meant for another.
        is_wrong = name != "tags" or sent[pair] == received[pair]
        if not seen & {(name, pair), (name, one.site, other.site)}:
            seen |= {(name, pair), (name, one.site, other.site)}
            both = {"a": sender.rank, "b": receiver.rank, "there": describe(one.site), "here": describe(other.site)}
            both |= {"sent": one.form, "taken": other.form, "tag": one.tag, "other": other.tag}
            text, kind = words[f"met.{name}"].format(**both), UNNOTICED if is_wrong else WARNING
            yield NcclVerdict(kind, pair, (other.site, one.site), text, words[f"cure.{name}"])


def new_group_verdicts(programs: Mapping[int, RankProgram], ended: set[int]) -> Iterator[NcclVerdict]:
    """new_group must be called by all ranks of the world, in one order. ended: ranks that will call nothing more."""
    calls = {rank: [one for one in program.records if one.kind == "made"] for rank, program in programs.items()}
    # The name of such a record lists the ranks of the group. Only the first call that is wrong is reported.
    for number in range(max(map(len, calls.values()), default=0)):
        made = {rank: calls_of_rank[number] for rank, calls_of_rank in calls.items() if len(calls_of_rank) > number}
        lacking = {rank for rank in calls if rank not in made}
        if len({one.name for one in made.values()}) == 1 and not lacking & ended:
            continue
        first = min(made)
        other = next((r for r in sorted(made) if made[r].name != made[first].name), None)
        name = "groups.lacking" if other is None else "groups.differ"
        # "others" appears only in "groups.lacking"; where no rank is lacking, it is filled with any ranks.
        who = {"ranks": rank_names(made), "others": rank_names(lacking or made), "place": describe(made[first].site)}
        who |= {"a": first, "b": other, "made": made[first].name, "there": "" if other is None else made[other].name}
        sites = dict.fromkeys(made[rank].site for rank in (first, first if other is None else other))
        yield NcclVerdict(ERROR, tuple(sorted(made)), tuple(sites), words[name].format(**who), words["cure.groups"])
        return


def batch_verdicts(programs: Mapping[int, RankProgram]) -> Iterator[NcclVerdict]:
    """A warning for each line with a batch of more than MAX_BATCH messages."""
    large: dict[Frame, tuple[int, Record]] = {}
    for rank, program in programs.items():
        large |= {one.site: (rank, one) for one in program.records if len(one.messages) > MAX_BATCH}
    for site, (rank, one) in large.items():
        text = words["large"].format(rank=rank, number=len(one.messages), most=MAX_BATCH, place=describe(site))
        yield NcclVerdict(WARNING, (rank,), (site,), text, words["cure.large"])


def finding_verdicts(programs: Iterable[RankProgram]) -> Iterator[NcclVerdict]:
    """What ranks have found by themselves; equal findings of several ranks are one verdict."""
    alike: dict[tuple, list[int]] = {}
    for program in programs:
        for one in program.findings:
            alike.setdefault((one.sites, one.kind, one.words, one.cure), []).append(one.rank)
    for (sites, kind, text, cure), ranks in alike.items():
        yield NcclVerdict(kind, tuple(sorted({*ranks})), sites, text, cure)
