"""From what the ranks left to a verdict, and beside it torch's own analyzer on the same records."""

from __future__ import annotations

import pytest

from helpers.commands.jobs.analyzer import opinion
from helpers.commands.jobs.blame import Scene, blame
from helpers.commands.jobs.board import Process
from helpers.commands.jobs.calls import calls_of, partings
from helpers.commands.jobs.told import sentences

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
    """The parting of ranks that left these entries, and what torch's analyzer says."""
    groups = groups or {"0": list(range(len(ranks)))}
    dumps = {rank: {"version": "2.10", "entries": entries, "pg_config": {}} for rank, entries in enumerate(ranks)}
    parts = partings({rank: calls_of(dump) for rank, dump in dumps.items()}, groups)
    return parts[0] if parts else None, opinion(dumps, groups)


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
    parting, said = found(*ranks)
    assert (parting.number, parting.odd) == (number, odd)
    assert (said.number, said.ranks) == (number, theirs) and not said.problem


def test_equal_operations_hide_that_lines_part_and_the_earlier_number_is_found():
    twice = [entry(number, 6 + (number + 1) % 2) for number in range(1, 9)]  # lines 6 and 7 by turns
    skipped = [*twice[:4], *(entry(number, 6 + number % 2) for number in range(5, 8))]
    parting, said = found(twice, skipped, twice)
    assert (parting.number, parting.since, parting.odd, parting.usual.line[1]) == (8, 5, (1,), 6)
    assert (said.number, said.ranks) == (8, (1,))


def test_lines_that_always_differed_say_nothing_and_what_may_differ_is_no_fault():
    mine, yours = ([entry(number, line) for number in (1, 2, 3)] for line in (6, 8))
    assert found(mine, yours[:2])[0].since == 3
    gathered = entry(1, 6, "gather")
    assert found([gathered], [gathered | {"output_sizes": []}])[0] is None
    assert found(LOOP, LOOP)[0] is None and found(LOOP, LOOP)[1].number is None


def process(rank, *frames, stood=9.0, used=0.0, **said):
    found = {"rank": rank, "world": 3, "pid": rank, "parent": 1, "stood": stood, "used": used, "unmoved": stood}
    return Process({**found, "frames": [list(frame) for frame in frames], "answered": True, **said})


AT, IN_REDUCE = (SCRIPT, 20, "<module>"), ((SCRIPT, 6, "<module>"), (TORCH, 99, "all_reduce"))


def scene(*processes, calls=None, others=None):
    ranks = {one.rank: one for one in processes}
    calls = {rank: calls_of({"entries": entries}) for rank, entries in (calls or {}).items()}
    return Scene(ranks=ranks, others=others or {}, calls=calls, groups={"0": sorted(ranks)}, limit=2.0)


WAITS = [*LOOP[:2], entry(3, 6, done=False)]


@pytest.mark.parametrize(
    ("odd", "others", "kind", "line"),
    [
        (process(1, AT), (), "elsewhere", 20),
        (process(1, AT, stood=0.2, used=0.2), (), "busy", 20),
        (process(1, AT), (process(1, (SCRIPT, 30, "__getitem__"), parent=1),), "worker", 30),
        (process(1, (SCRIPT, 7, "<module>"), (TORCH, 99, "barrier")), (), "skipped", 7),
    ],
)
def test_who_waits_for_nobody_is_waited_for(odd, others, kind, line):
    ranks = (process(0, *IN_REDUCE), odd, process(2, *IN_REDUCE))
    seen = scene(*ranks, calls={0: WAITS, 1: LOOP[:2], 2: WAITS}, others={1: list(others)})
    verdict = blame(seen)
    assert (verdict.kind, verdict.ranks, verdict.op, verdict.place[1]) == (kind, (1,), "all_reduce", line)
    assert "rank 1" in str(sentences(verdict, seen)[0]) and "train.py line 6" in str(sentences(verdict, seen)[1])


def test_a_message_without_its_answer_and_a_circle_without_a_record():
    sends = process(0, (SCRIPT, 9, "<module>"), (TORCH, 1, "send"), asks=["send", 1])
    verdict = blame(scene(sends, process(1, *IN_REDUCE), process(2, *IN_REDUCE)))
    assert (verdict.kind, verdict.peer, verdict.ranks, verdict.at[1]) == ("unanswered", 0, (1,), 9)
    barrier = process(2, (SCRIPT, 8, "<module>"), (TORCH, 5, "barrier"))
    verdict = blame(scene(process(0, *IN_REDUCE), process(1, *IN_REDUCE), barrier))
    assert (verdict.kind, verdict.ranks, verdict.place[1]) == ("circle", (2,), 8)
    apart = scene(process(0, AT), process(1, AT))
    assert blame(apart).kind == "apart" and "No rank waits" in str(sentences(blame(apart), apart)[0])
    assert blame(scene(process(0, AT), process(1, AT, ended=1.0, failure=None))).kind == "apart"


def raised(rank, kind, text, at):
    failure = {"type": kind, "message": text, "frames": [list(AT)]}
    return process(rank, ended=at, failure=failure)


def test_a_rank_that_ended_is_to_blame_and_not_those_that_ended_for_it():
    closed = [raised(rank, "RuntimeError", "Connection closed by peer", 1.0 + rank) for rank in (0, 2)]
    assert blame(scene(*closed, raised(1, "ValueError", "no such label", 3.0))).ranks == (1,)
    killed = Process(process(1, AT).said, gone=1.0, code=-9)
    assert (blame(scene(*closed, killed)).kind, blame(scene(*closed, killed)).ranks) == ("died", (1,))
    left = process(1, ended=1.0, failure=None)
    verdict = blame(scene(*closed, left, calls={0: WAITS, 1: LOOP[:2], 2: WAITS}))
    assert (verdict.kind, verdict.ranks, verdict.at[1]) == ("finished", (1,), 6)
    done = [process(rank, ended=1.0, failure=None) for rank in (0, 1)]
    assert blame(scene(*done)).kind == "ended"
    differs = {0: LOOP, 1: [*LOOP[:2], entry(3, 9, "broadcast")], 2: LOOP}
    aborted = Process(process(0, AT).said, gone=1.0, code=-6)
    verdict = blame(scene(aborted, raised(1, "RuntimeError", "Read error", 2.0), closed[1], calls=differs))
    assert (verdict.kind, verdict.ranks, verdict.place[1]) == ("differs", (1,), 9)


def test_a_script_that_asks_for_a_gpu_is_told_so(monkeypatch):
    seen = scene(raised(0, "AssertionError", "Torch not compiled with CUDA enabled", 1.0))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    first, then = sentences(blame(seen), seen)
    assert "rank 0 raised AssertionError" in str(first) and "torch finds none here" in str(then)
