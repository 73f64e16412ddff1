"""From what the ranks left to a cause, and beside it torch's own analyzer on the same records."""

from __future__ import annotations

import threading

import pytest

from helpers.commands.jobs.flight_recorder import analyze_with_torch, calls_of, divergences
from helpers.commands.jobs.hang import cause_sentences, other_deaths, position_sentences
from helpers.commands.jobs.hang_cause import JobState, find_cause
from helpers.commands.jobs.monitor import ProcessState

SCRIPT, TORCH = "/home/learner/train.py", "/x/site-packages/torch/distributed/distributed_c10d.py"


def entry(number, line, op="all_reduce", size=4, done=True, group="0"):
    """As gloo's recorder writes one."""
    frames = [{"filename": TORCH, "line": 1, "name": op}, {"filename": SCRIPT, "line": line, "name": "<module>"}]
    sizes = {
        f"{side}_{what}": [value]
        for side in ("input", "output")
        for what, value in (("sizes", [size]), ("dtypes", "F"))
    }
    known = {"collective_seq_id": number, "p2p_seq_id": 0, "record_id": number, "time_created_ns": number, "pg_id": 0}
    return {
        "process_group": (group, "default_pg"), "profiling_name": f"gloo:{op}", "retired": done, "is_p2p": False,
        "state": "scheduled", "frames": frames, **sizes, **known,
    }  # fmt: skip


def found(*ranks, groups=None):
    """The divergence of ranks that left these entries, and what torch's analyzer says."""
    groups = groups or {"0": list(range(len(ranks)))}
    dumps = {rank: {"version": "2.10", "entries": entries, "pg_config": {}} for rank, entries in enumerate(ranks)}
    parts = divergences({rank: calls_of(dump) for rank, dump in dumps.items()}, groups)
    return parts[0] if parts else None, analyze_with_torch(dumps, groups)


LOOP = [entry(number, 6) for number in range(1, 4)]


@pytest.mark.parametrize(
    ("ranks", "number", "odd", "theirs"),
    [
        ((LOOP, LOOP[:2], LOOP), 3, (1,), (1,)),  # one is missing
        ((LOOP, LOOP[:2], LOOP[:2]), 3, (0,), (1, 2)),  # one alone went on: the analyzer names the others
        ((LOOP, LOOP[:2]), 3, (1,), (1,)),
        (([*LOOP[:1], entry(2, 9, "broadcast")], LOOP[:2], LOOP[:2]), 2, (0,), (1, 2)),  # it takes rank 0's side
        ((LOOP, [*LOOP[:2], entry(3, 6, size=5)], LOOP), 3, (1,), (1,)),
    ],
)
def test_the_first_collective_at_which_ranks_part(ranks, number, odd, theirs):
    divergence, analysis = found(*ranks)
    assert (divergence.number, divergence.suspects) == (number, odd)
    assert (analysis.number, analysis.ranks) == (number, theirs) and not analysis.problem


def test_equal_operations_hide_that_lines_part_and_the_earlier_number_is_found():
    twice = [entry(number, 6 + (number + 1) % 2) for number in range(1, 9)]  # lines 6 and 7 by turns
    skipped = [*twice[:4], *(entry(number, 6 + number % 2) for number in range(5, 8))]
    divergence, analysis = found(twice, skipped, twice)
    assert (divergence.number, divergence.first_number, divergence.suspects, divergence.expected.line[1]) == (
        8,
        5,
        (1,),
        6,
    )
    assert (analysis.number, analysis.ranks) == (8, (1,))


def test_lines_that_always_differed_say_nothing_and_what_may_differ_is_no_fault():
    mine, yours = ([entry(number, line) for number in (1, 2, 3)] for line in (6, 8))
    assert found(mine, yours[:2])[0].first_number == 3
    gathered = entry(1, 6, "gather")
    assert found([gathered], [gathered | {"output_sizes": []}])[0] is None
    assert found(LOOP, LOOP)[0] is None and found(LOOP, LOOP)[1].number is None


def process(rank, *frames, stack_age=9.0, cpu=0.0, **fields):
    found = {
        "rank": rank,
        "world": 3,
        "pid": rank,
        "parent": 1,
        "stack_age": stack_age,
        "cpu_seconds": cpu,
        "call_age": stack_age,
    }
    return ProcessState({**found, "frames": [list(frame) for frame in frames], "has_details": True, **fields})


AT, IN_REDUCE = (SCRIPT, 20, "<module>"), ((SCRIPT, 6, "<module>"), (TORCH, 99, "all_reduce"))


def state_of(*processes, calls=None, children=None):
    ranks = {one.rank: one for one in processes}
    calls = {rank: calls_of({"entries": entries}) for rank, entries in (calls or {}).items()}
    return JobState(ranks=ranks, children=children or {}, calls=calls, groups={"0": sorted(ranks)}, limit=2.0)


WAITS = [*LOOP[:2], entry(3, 6, done=False)]


@pytest.mark.parametrize(
    ("odd", "children", "kind", "line"),
    [
        (process(1, AT), (), "elsewhere", 20),
        (process(1, AT, stack_age=0.2, cpu=0.2), (), "busy", 20),
        (process(1, AT), (process(1, (SCRIPT, 30, "__getitem__"), parent=1),), "worker", 30),
        (process(1, (SCRIPT, 7, "<module>"), (TORCH, 99, "barrier")), (), "skipped", 7),
    ],
)
def test_who_waits_for_nobody_is_waited_for(odd, children, kind, line):
    ranks = (process(0, *IN_REDUCE), odd, process(2, *IN_REDUCE))
    seen = state_of(*ranks, calls={0: WAITS, 1: LOOP[:2], 2: WAITS}, children={1: list(children)})
    cause = find_cause(seen)
    assert (cause.kind, cause.ranks, cause.op, cause.line[1]) == (kind, (1,), "all_reduce", line)
    assert "rank 1" in str(cause_sentences(cause, seen)[0]) and "train.py line 6" in str(
        cause_sentences(cause, seen)[1]
    )


def message(op, peer, number=1, tag=0, line=9):
    """As the probe describes one."""
    stack = [[SCRIPT, line, "<module>"], [TORCH, 1, f"i{op}"]]
    return {"op": op, "peer": peer, "group": "0", "tag": tag, "number": number, "stack": stack, "has_wait": True}


def waits_for(rank, op, peer, number=1, tag=0, *, line=20, posted=()):
    """A rank that waits for a message; posted: what it posted before, as [operation, peer, group, tag, count]."""
    waiting = {"call": "work.wait", "message": message(op, peer, number, tag)}
    return process(rank, (SCRIPT, line, "f"), waiting=waiting, posted=[*posted, [op, peer, "0", tag, number]])


def sentences(state):
    """The cause of a state, and what is said of it."""
    cause = find_cause(state)
    return cause, [str(line) for line in (*cause_sentences(cause, state), *position_sentences(state))]


def test_a_message_that_no_message_of_its_peer_meets():
    """The peer is in a collective; two of its three sends have come."""
    elsewhere = process(1, *IN_REDUCE, posted=[["send", 0, "0", 0, 2]])
    cause, said = sentences(state_of(waits_for(0, "recv", 1, 3), elsewhere, process(2, *IN_REDUCE)))
    assert (cause.kind, cause.peer, cause.ranks, cause.op_line[1]) == ("unanswered", 0, (1,), 20)
    assert "rank 0 has a receive from rank 1 that no send of rank 1 meets: rank 0 has posted 3 receives" in said[0]
    assert "rank 1 has posted 2 sends" in said[0]
    assert "rank 0 waits for a message from rank 1, train.py line 20\n  posted at train.py line 9" in said[1]
    # A chain of ranks that wait for the message of the next one ends at the rank that does not.
    chain = state_of(waits_for(0, "recv", 1), waits_for(1, "recv", 2), process(2, *IN_REDUCE))
    assert (find_cause(chain).peer, find_cause(chain).ranks) == (1, (2,))
    nowhere = state_of(waits_for(0, "send", 5), process(1, *IN_REDUCE))
    assert "rank 0 waits for rank 5, which does not exist: the last rank is 1" in sentences(nowhere)[1][0]
    any_rank = state_of(waits_for(0, "recv", None), process(1, *IN_REDUCE))
    assert "a receive from any rank that no send meets" in sentences(any_rank)[1][0]


def test_messages_in_a_circle_and_messages_with_unequal_tags():
    cause, said = sentences(state_of(waits_for(0, "send", 1), waits_for(1, "send", 0)))
    assert (cause.kind, cause.ranks) == ("ring", (0, 1)) and "in a circle of sends and receives" in said[0]
    receives = waits_for(1, "send", 0, posted=[["recv", 0, "0", 7, 1]])
    cause, said = sentences(state_of(waits_for(0, "send", 1), receives))
    assert (cause.kind, cause.peer) == ("unanswered", 0)
    assert "rank 1 has posted such a message with tag 7" in said[1] and "rank 0 waits for one with tag 0" in said[1]


def test_messages_to_wrong_peers_are_no_circle_that_another_order_would_end():
    ranks = [waits_for(rank, "send", 1 - rank, posted=[["recv", 2, "0", 0, 1]]) for rank in (0, 1)]
    for rank in ranks:
        rank.report["messages"] = [message("recv", 2)]
    cause, said = sentences(state_of(*ranks, process(2, *IN_REDUCE)))
    assert cause.kind == "unanswered" and "rank 0 has a receive from rank 2" not in said[0]
    assert "and has a receive from rank 2 in flight that no send meets, posted at train.py line 9" in said[1]


def test_a_message_that_was_lost_because_its_work_was_dropped():
    sender = process(0, *IN_REDUCE, posted=[["send", 1, "0", 0, 1]], dropped=[message("send", 1, line=4)])
    cause, said = sentences(state_of(sender, waits_for(1, "recv", 0)))
    assert (cause.kind, cause.ranks, cause.line[1]) == ("dropped", (0,), 4)
    assert "rank 1 waits for a message that rank 0 posted at train.py line 4 without keeping" in said[0]


def test_a_rank_that_waits_for_a_key_and_one_that_polls():
    key = process(1, AT, waiting={"call": "store.wait", "message": None})
    cause, said = sentences(state_of(process(0, *IN_REDUCE), key, calls={0: WAITS, 1: LOOP[:2]}))
    assert (cause.kind, cause.ranks) == ("store", (1,)) and "rank 1 waits for a key of the store" in said[0]
    polls = process(0, AT, stack_age=0.1, cpu=0.1, polled=message("recv", 1))
    _, said = sentences(state_of(polls, process(1, *IN_REDUCE), calls={0: LOOP[:2], 1: WAITS}))
    assert "rank 0 runs, now at train.py line 20\n  With gloo, is_completed()" in said[2]


def test_of_two_ranks_none_is_blamed_by_rule_and_a_line_of_one_rank_alone_is_named():
    barrier = entry(3, 30, "barrier", done=False)
    at_barrier = process(0, (SCRIPT, 30, "<module>"), (TORCH, 99, "barrier"))
    state = state_of(at_barrier, process(1, *IN_REDUCE), calls={0: [*LOOP[:2], barrier], 1: WAITS})
    cause, said = sentences(state)
    assert (cause.kind, cause.ranks, cause.line[1]) == ("parted", (0,), 30)
    assert "The ranks part at call number 3 of the group of all ranks. No side has a majority" in said[0]
    assert said[1].startswith("  rank 0 calls barrier") and said[2].startswith("  rank 1 calls all_reduce")
    assert "only rank 0 has ever called from train.py line 30" in said[3]
    other = state_of(at_barrier, process(1, *IN_REDUCE), calls={0: [barrier], 1: [entry(3, 6, done=False)]})
    cause, said = sentences(other)  # each of the two lines was reached by one rank alone
    assert (cause.kind, cause.ranks) == ("parted", ()) and not any("only rank" in line for line in said)


def test_of_four_ranks_in_crossed_pairs_none_is_blamed_and_every_rank_is_named_with_its_group():
    groups = {"0": [0, 1, 2, 3], "1": [0, 1], "2": [2, 3], "3": [0, 2], "4": [1, 3]}
    at = {0: "3", 1: "1", 2: "2", 3: "4"}  # rank 0 waits for 2, 2 for 3, 3 for 1, and 1 for 0
    calls = {rank: calls_of({"entries": [entry(1, 6, done=False, group=name)]}) for rank, name in at.items()}
    ranks = {rank: process(rank, *IN_REDUCE) for rank in range(4)}
    cause, said = sentences(JobState(ranks=ranks, children={}, calls=calls, groups=groups, limit=2.0))
    assert (cause.kind, cause.ranks) == ("groups", (0, 1, 2, 3)) and "circle of groups" in said[0]
    assert "rank 3 waits in all_reduce of group 4 (ranks 1, 3), train.py line 6" in said[-1]


def test_who_made_fewer_calls_than_most_from_a_line_is_blamed_and_not_who_waits_for_it_there():
    """Two pairs; rank 1 leaves out its second call and is already in the barrier, with ranks 2 and 3."""
    pairs = {rank: [entry(number, 6, group=str(1 + rank // 2)) for number in (1, 2)] for rank in range(4)}
    barrier = entry(1, 30, "barrier", done=False)
    calls = {rank: [*pairs[rank], barrier] for rank in (2, 3)} | {1: [*pairs[1][:1], barrier]}
    calls[0] = [pairs[0][0], entry(2, 6, done=False, group="1")]
    at = (SCRIPT, 30, "<module>"), (TORCH, 99, "barrier")
    state = state_of(process(0, *IN_REDUCE), *(process(rank, *at) for rank in (1, 2, 3)), calls=calls)
    state.groups.update({"1": [0, 1], "2": [2, 3]})
    cause, said = sentences(state)
    assert (cause.kind, cause.ranks, cause.peer) == ("fewer", (1,), 0)
    assert "it made fewer calls than most ranks from train.py line 6, and rank 0 waits there in all_reduce" in said[0]


def test_a_wait_is_not_said_of_a_rank_that_sleeps_beside_an_asynchronous_collective():
    """A line that waits in a Work is told from one that does not; the line of the call is named, too."""
    pending = {0: [*LOOP[:2], entry(3, 6, done=False)], 1: [*LOOP[:2], entry(3, 6, done=False)]}
    waits = process(1, AT, waiting={"call": "work.wait", "message": None})
    cause, said = sentences(state_of(process(0, AT), waits, calls=pending))
    assert (cause.kind, cause.ranks) == ("elsewhere", (0,))
    assert "rank 1 waits in all_reduce, train.py line 20\n  called at train.py line 6" in said[-1]


def test_a_thread_in_a_collective_waits_for_the_others_and_its_main_thread_for_it():
    thread = [[SCRIPT, 7, "metrics"], [TORCH, 9, "all_reduce"]]
    joins = [process(rank, AT, (threading.__file__, 9, "join"), threads={"t": thread}) for rank in (1, 2)]
    pending = [entry(1, 7, done=False, group="1")]
    at_barrier = process(0, (SCRIPT, 30, "<module>"), (TORCH, 99, "barrier"))
    state = state_of(at_barrier, *joins, calls={0: [entry(1, 30, "barrier", done=False)], 1: pending, 2: pending})
    state.groups["1"] = [0, 1, 2]
    cause, said = sentences(state)
    assert (cause.kind, cause.ranks) == ("skipped", (0,)) and "only it called barrier" in said[0]
    assert said[-1].endswith(
        "wait in all_reduce of group 1 (ranks 0, 1, 2), train.py line 20\n  called at train.py line 7"
    )


def test_a_collective_in_which_all_ranks_wait():
    broadcast = [entry(1, 6, "broadcast", done=False)]
    cause, said = sentences(
        state_of(process(0, *IN_REDUCE), process(1, *IN_REDUCE), calls={0: broadcast, 1: broadcast})
    )
    assert cause.kind == "same" and "All ranks wait in the same broadcast" in said[0]


def test_of_two_ranks_lines_that_part_before_the_operations_do():
    twice = [entry(number, 6 + (number + 1) % 2) for number in range(1, 9)]
    skipped = [*twice[:4], *(entry(number, 6 + number % 2) for number in range(5, 8)), entry(8, 30, "barrier")]
    _, said = sentences(state_of(process(0, *IN_REDUCE), process(1, *IN_REDUCE), calls={0: twice, 1: skipped}))
    assert "The ranks part at call number 5" in said[0] and "differ only at number 8" in said[3]
    assert not any("only rank" in line for line in said)


def test_a_circle_without_a_record():
    barrier = process(2, (SCRIPT, 8, "<module>"), (TORCH, 5, "barrier"))
    cause = find_cause(state_of(process(0, *IN_REDUCE), process(1, *IN_REDUCE), barrier))
    assert (cause.kind, cause.ranks, cause.line[1]) == ("circle", (2,), 8)
    apart = state_of(process(0, AT), process(1, AT))
    assert find_cause(apart).kind == "apart" and "No rank waits" in str(cause_sentences(find_cause(apart), apart)[0])
    assert find_cause(state_of(process(0, AT), process(1, AT, ended=1.0, failure=None))).kind == "apart"


def raised(rank, kind, text, at):
    failure = {"type": kind, "message": text, "frames": [list(AT)]}
    return process(rank, ended=at, failure=failure)


def test_a_rank_that_ended_is_to_blame_and_not_those_that_ended_for_it():
    closed = [raised(rank, "RuntimeError", "Connection closed by peer", 1.0 + rank) for rank in (0, 2)]
    assert find_cause(state_of(*closed, raised(1, "ValueError", "no such label", 3.0))).ranks == (1,)
    killed = ProcessState(process(1, AT).report, gone=1.0, exit_code=-9)
    cause, said = sentences(state_of(*closed, killed))
    assert (cause.kind, cause.ranks) == ("died", (1,)) and "ranks 0, 2 then lost the connection" in said[-1]
    left = process(1, ended=1.0, failure=None)
    cause = find_cause(state_of(*closed, left, calls={0: WAITS, 1: LOOP[:2], 2: WAITS}))
    assert (cause.kind, cause.ranks, cause.op_line[1]) == ("finished", (1,), 6)
    cause, said = sentences(state_of(closed[0], left, calls={0: WAITS, 1: LOOP[:2]}))  # two ranks
    assert "rank 1 ended (its process is gone) while rank 0 still waited for it" in said[0]
    done = [process(rank, ended=1.0, failure=None) for rank in (0, 1)]
    assert find_cause(state_of(*done)).kind == "ended"
    differs = {0: LOOP, 1: [*LOOP[:2], entry(3, 9, "broadcast")], 2: LOOP}
    aborted = ProcessState(process(0, AT).report, gone=1.0, exit_code=-6)
    cause = find_cause(state_of(aborted, raised(1, "RuntimeError", "Read error", 2.0), closed[1], calls=differs))
    assert (cause.kind, cause.ranks, cause.line[1]) == ("differs", (1,), 9)


def test_a_script_that_asks_for_a_gpu_is_told_so(monkeypatch):
    seen = state_of(raised(0, "AssertionError", "Torch not compiled with CUDA enabled", 1.0))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    first, then = cause_sentences(find_cause(seen), seen)
    assert "rank 0 raised AssertionError" in str(first) and "torch finds none here" in str(then)


def test_every_rank_that_died_is_named_but_not_those_that_the_launcher_ended():
    def dead(rank, code, **more):
        return ProcessState(process(rank, AT).report, gone=2.0, exit_code=code, **more)

    def said(*processes):
        state = state_of(*processes)
        cause = find_cause(state)
        return [str(line) for line in (*cause_sentences(cause, state), *other_deaths(cause, state))]

    mistake = raised(0, "ValueError", "no such label", 1.0)
    first, second = said(mistake, dead(1, -6))
    assert "rank 0 raised ValueError" in first and "rank 1 died: killed by SIGABRT" in second
    assert len(said(mistake, dead(1, -15), dead(2, None))) == 1  # torchrun sends SIGTERM, and its ranks are not our own
    assert "rank 2 died" in said(mistake, dead(1, None), dead(2, None, crash=[AT]))[1]
    first, second = said(dead(0, -9), dead(1, -6))
    assert "rank 0 died: killed by SIGKILL" in first and "rank 1 died: killed by SIGABRT" in second
