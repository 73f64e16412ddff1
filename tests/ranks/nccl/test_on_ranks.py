"""NCCL's rules on live ranks: what gloo forgives is named after the run, what is right passes without a word."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from helpers.ranks import RankError, Ranks
from helpers.ranks.nccl import replay
from helpers.ranks.nccl.rank_rules import record_journal
from tests.ranks.wire.test_torch import CASES


@pytest.fixture(scope="module")
def by_rules():
    with Ranks(2, device="cpu", rules="nccl", timeout=120, quiet=True) as pool:
        yield pool


def told(ranks, task, capsys):
    """(kind, the first line's number or the text) of the error of a run, or what it printed."""
    try:
        ranks.run(task)
    except RankError as error:
        return error.kind, str(error)
    return "", capsys.readouterr().out


def on_world(case):
    case(dist.group.WORLD)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_what_torch_does_is_right_on_nccl(by_rules, case, capsys):
    by_rules.run(on_world, case)
    assert "NCCL" not in capsys.readouterr().out


def objects_and_groups():
    out = [None] * 2
    dist.all_gather_object(out, dist.get_rank())
    group = dist.new_group([0, 1])
    dist.all_reduce(torch.ones(2), group=group)
    dist.barrier()
    box = [out]
    dist.broadcast_object_list(box)
    return box


def batched_both_ways():
    peer, x, y = 1 - dist.get_rank(), torch.full((3,), dist.get_rank()), torch.empty(3, dtype=torch.int64)
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, x, peer), dist.P2POp(dist.irecv, y, peer)]):
        work.wait()
    return y.tolist()


def test_objects_groups_and_batches_pass(by_rules, capsys):
    assert by_rules.run(objects_and_groups) == [[[0, 1]]] * 2
    assert by_rules.run(batched_both_ways) == [[1] * 3, [0] * 3]
    assert capsys.readouterr().out == ""


def early_receive():
    rank, x = dist.get_rank(), torch.ones(4)
    early = dist.irecv(x, 0) if rank == 1 else None
    dist.all_reduce(torch.ones(2))
    early.wait() if early else dist.send(x, 1)


def crossed_tags():
    first, second = torch.full((2,), 1.0), torch.full((2,), 2.0)
    call = dist.isend if dist.get_rank() == 0 else dist.irecv
    order = ((first, 1), (second, 2)) if dist.get_rank() == 0 else ((second, 2), (first, 1))
    for work in [call(x, 1 - dist.get_rank(), tag=tag) for x, tag in order]:
        work.wait()
    print("first", first[0].item())


def two_groups_of_a_line():
    dist.barrier()
    both = [dist.new_group([0, 1]) for _ in range(2)]
    for group in both[:: 1 - 2 * dist.get_rank()]:
        dist.all_reduce(torch.ones(2), group=group, async_op=True).wait()


def half_batched():
    dist.all_reduce(torch.ones(1))
    x, rank = torch.ones(2), dist.get_rank()
    works = dist.batch_isend_irecv([dist.P2POp(dist.isend, x, 1)]) if rank == 0 else [dist.irecv(x, 0)]
    [work.wait() for work in works]


def ring_of_three():
    x, y, rank = torch.ones(4), torch.empty(4), dist.get_rank()
    for work in [dist.isend(x, (rank + 1) % 3), dist.irecv(y, (rank - 1) % 3)]:
        work.wait()


def test_a_message_is_named_as_the_script_calls_it(ranks):
    verdict, *_ = replay(ranks[:3].run(judged, ring_of_three))
    assert "wait in isend," in str(verdict)
    verdict, *_ = replay(ranks[:2].run(judged, early_receive))
    assert "wait in recv" not in str(verdict) and "irecv from rank 0" in str(verdict)


@pytest.mark.parametrize(
    ("task", "kind", "says"),
    [
        (early_receive, "", "can hang on NCCL"),
        (crossed_tags, "unnoticed", "Send and receive in the same order on both sides."),
        (two_groups_of_a_line, "hang", "(group 2 of line"),
        (half_batched, "", "never meet"),  # eagerly, they would
    ],
    ids=lambda case: getattr(case, "__name__", None),
)
def test_what_gloo_forgives_is_named(by_rules, task, kind, says, capsys):
    found, text = told(by_rules, task, capsys)
    assert found == kind and says in text and "test_on_ranks.py line" in text


def test_tags_count_for_nothing_below(by_rules, capsys):
    """The values are NCCL's: the first receive got what was sent first."""
    told(by_rules, crossed_tags, capsys)
    assert "rank 1 │ first 2.0" in capsys.readouterr().out


def asks_its_group():
    return dist.group.WORLD.matches_messages_by_order


def test_a_group_says_whether_messages_match_by_their_order(by_rules, ranks):
    assert by_rules.run(asks_its_group) == [True] * 2 and ranks[:2].run(asks_its_group) == [False] * 2


def test_without_the_rules_nothing_is_said(ranks, capsys):
    ranks[:2].run(early_receive)
    assert capsys.readouterr().out == ""


def reduce_bits():
    dist.all_reduce(torch.ones(2, dtype=torch.int32), op=dist.ReduceOp.BOR)


def reduce_shorts():
    dist.all_reduce(torch.ones(2, dtype=torch.int16))


def reduce_columns():
    dist.all_reduce(torch.ones(4, 4)[:, :2])


def receive_from_anyone():
    dist.recv(torch.ones(2)) if dist.get_rank() else dist.send(torch.ones(2), 1)


def monitored():
    dist.monitored_barrier()


@pytest.mark.parametrize(
    ("task", "says"),
    [
        (reduce_bits, "RuntimeError: Cannot use ReduceOp.BOR with NCCL"),
        (reduce_shorts, "TypeError: Input tensor data type is not supported for NCCL process group: int16"),
        (reduce_columns, "ValueError: Tensors must be contiguous"),
        (receive_from_anyone, "RuntimeError: ProcessGroupNCCL does not support recvAnysource"),
        (monitored, "RuntimeError: monitored_barrier is only implemented for the GLOO backend"),
    ],
    ids=lambda case: getattr(case, "__name__", None),
)
def test_what_nccl_lacks_is_refused_at_the_call(by_rules, task, says, capsys):
    kind, text = told(by_rules, task, capsys)
    assert kind == "exception" and says in text and "test_on_ranks.py line" in text


def transposed():
    x = torch.arange(6.0).view(2, 3)
    x = x.t() if dist.get_rank() else x
    dist.recv(x, 0) if dist.get_rank() else dist.send(x.t().contiguous(), 1)


def test_strides_that_differ_between_the_two_sides_are_named(by_rules, capsys):
    kind, text = told(by_rules, transposed, capsys)
    assert kind == "unnoticed" and "the values arrive permuted" in text


def judged(task):
    with record_journal() as lines:
        task()
    return lines


def test_one_stretch_of_any_world_can_be_judged(ranks):
    verdicts = replay(ranks[:2].run(judged, crossed_tags))
    assert [one.kind for one in verdicts] == ["unnoticed"]
    assert not replay(ranks[:2].run(judged, batched_both_ways))


@pytest.mark.parametrize("rules", ["mpi", 1])
def test_other_rules_are_refused_with_a_sentence(rules):
    with pytest.raises(ValueError, match='rules must be "gloo" or "nccl"'):
        Ranks(2, rules=rules)
