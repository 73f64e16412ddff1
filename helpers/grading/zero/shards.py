"""Judges 08.shard, and computes the shards, right and wrong, to which all tasks of lab 08 are compared.

In this lab tensors are concatenated to one flat line. Zeros at its end, the padding, make the number of ranks divide
its length, and each rank gets one of the equal pieces, its shard. 08.shard asks for such a shard in one process. The
functions under "what the tasks of this lab share" also serve stage1.py, stage2.py, stage3.py and resume.py, which judge
other tasks of lab 08.

How to read it. Each task has three functions. `make_…` draws the inputs of every rank for one case, `run_…` calls the
learner's answer, `submitted`, on one rank, and `judge_…` runs in another process: it compares what the ranks returned
with the right values, and yields one Judgement per comparison. A case is one choice of sizes, dtypes and memory layouts
(`rng.case`), and `rng` draws the numbers. A mistake is a wrong solution that learners often write. Its name, such as
"tail_dropped", is the key of its hint in hints.yaml. The `expect…` functions compare one value; their `mistakes` maps
such keys to the value that the mistake gives. `words[…]` is a text of messages.yaml, in English and Chinese.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from helpers.grading.cases import CaseGenerator, Variations
from helpers.grading.kit.comparisons import (
    expect,
    expect_num_calls,
    expect_only_ops,
    expect_payload_bytes,
    expect_tensor,
    is_close,
)
from helpers.grading.kit.model_tools import MemoryMeter
from helpers.grading.task import JudgedWorld, Judgement, RankContext, RunFailure, Task
from helpers.grading.zero import LAB
from helpers.learner.words import Words
from helpers.quantities.units import format_bytes

words = LAB.messages

OPS = ("reduce_scatter", "all_gather")  # the collectives of ZeRO


# -- a flat line and its shards --------------------------------------------------------------------------------------
def flatten(tensors: Iterable[Tensor]) -> Tensor:
    """All elements in one line, tensor after tensor."""
    return torch.cat([tensor.flatten() for tensor in tensors])


def shard_length(num_elements: int, world_size: int) -> int:
    """Elements per shard: the quotient, rounded up."""
    return -(-num_elements // world_size)


def padded(flat: Tensor, world_size: int) -> Tensor:
    """The line with zeros at its end, so that `world_size` divides its length."""
    missing = shard_length(flat.numel(), world_size) * world_size - flat.numel()
    return torch.cat([flat, flat.new_zeros(missing)])


def shards_of(flat: Tensor, world_size: int) -> list[Tensor]:
    """The shards of all ranks; of an empty line they are empty."""
    return list(padded(flat, world_size).chunk(world_size)) if flat.numel() else [flat] * world_size


def shard_of(flat: Tensor, rank: int, world_size: int) -> Tensor:
    """The shard of one rank."""
    return shards_of(flat, world_size)[rank]


def padded_bytes(lengths: Sequence[int], world_size: int, itemsize: int) -> int:
    """Bytes of all shards of several lines, with their padding. itemsize: bytes per element."""
    return itemsize * world_size * sum(shard_length(n, world_size) for n in lengths)


# -- wrong shards of a flat line -------------------------------------------------------------------------------------
TakePiece = Callable[[Tensor, int, int], Tensor]  # the line, rank, number of ranks


def unpadded_shard(flat: Tensor, rank: int, world_size: int) -> Tensor:
    """The line is not padded, so the last shards are shorter or empty."""
    length = shard_length(flat.numel(), world_size)
    return flat[rank * length : (rank + 1) * length]


def overpadded_shard(flat: Tensor, rank: int, world_size: int) -> Tensor:
    """n - len % n zeros, which are n zeros too many where the ranks divide the line."""
    line = torch.cat([flat, flat.new_zeros(world_size - flat.numel() % world_size)])
    return line.chunk(world_size)[rank]


def rounded_down(flat: Tensor, rank: int, world_size: int) -> Tensor:
    """The quotient is rounded down, so the end of the line is lost."""
    length = flat.numel() // world_size
    return flat[rank * length : (rank + 1) * length]


def padded_in_front(flat: Tensor, rank: int, world_size: int) -> Tensor:
    """The zeros stand before the line and not behind it."""
    missing = padded(flat, world_size).numel() - flat.numel()
    return torch.cat([flat.new_zeros(missing), flat]).chunk(world_size)[rank]


def beginning_at(start_of: Callable[[int, int, int], int]) -> TakePiece:
    """The right length from a wrong element. start_of: the element, from rank, number of ranks and length."""

    def take(flat: Tensor, rank: int, world_size: int) -> Tensor:
        start = start_of(rank, world_size, length := shard_length(flat.numel(), world_size))
        return padded(flat, world_size)[start : start + length]

    return take


WRONG_PIECES: dict[str, list[TakePiece]] = {
    "padded_where_even": [overpadded_shard],
    "shards_differ_in_length": [unpadded_shard, lambda flat, rank, n: flat.tensor_split(n)[rank]],
    "tail_dropped": [rounded_down],
    "zeros_in_front": [padded_in_front],
    "every_other_number": [lambda flat, rank, n: padded(flat, n)[rank::n]],
    "whole_state": [lambda flat, rank, n: flat, lambda flat, rank, n: padded(flat, n)],
    "wrong_place": [  # from element 0, from element `rank`, the shards of both neighbours, and in reversed order
        beginning_at(lambda rank, n, length: 0),
        beginning_at(lambda rank, n, length: rank),
        beginning_at(lambda rank, n, length: (rank + 1) % n * length),
        beginning_at(lambda rank, n, length: (rank - 1) % n * length),
        beginning_at(lambda rank, n, length: (n - 1 - rank) * length),
    ],
}


def wrong_pieces(flat: Tensor, rank: int, world_size: int) -> dict[str, Any]:
    """The wrong shards of this line that a rank may have, by the keys of their hints."""
    return {key: [take(flat, rank, world_size) for take in several] for key, several in WRONG_PIECES.items()}


# -- what the tasks of this lab share --------------------------------------------------------------------------------
def storage_bytes(tensor: object) -> int:
    """Bytes that stay allocated as long as this tensor lives; 0 for anything else."""
    return tensor.untyped_storage().nbytes() if isinstance(tensor, Tensor) else 0


class ReleaseWait:
    """Waits until memory is freed, at most `seconds` in all uses together.

    A message is completed by another thread, which may hold its tensors a little longer than the message lasts.
    """

    def __init__(self, seconds: float = 0.5):
        self.seconds_left = seconds

    def bytes_held(self, meter: MemoryMeter, limit: float) -> int:
        """The bytes in use, measured again until they are no more than `limit` or the time is up."""
        while (num_bytes := meter.current_bytes) > limit and self.seconds_left > 0:
            time.sleep(0.005)
            self.seconds_left -= 0.005
        return num_bytes


def explained(judgement: Judgement, rule: Words) -> Judgement:
    """The judgement, whose sentence ends with the rule that decides here."""
    return judgement if judgement.ok else replace(judgement, message=words["with_rule"].format(judgement.message, rule))


def expect_shard(
    what: Words,
    flat: Tensor,
    got: Any,
    place: tuple[int, int],
    *,
    rank: int | None = None,
    mistakes: Mapping[str, Any] | None = None,
    more: Words | None = None,
) -> Judgement:
    """Expects the shard of a flat line, and says which elements of the line it has.

    place: the rank whose shard it is, and the number of ranks. rank: the rank that is judged. mistakes: as of
    `expect_tensor`. more: a rule about the values of the line.
    """
    expected, length = shard_of(flat, *place), shard_length(flat.numel(), place[1])
    known = dict(mistakes or {})
    if isinstance(got, Tensor) and got.dtype != expected.dtype:
        known["another_dtype"] = expected.to(got.dtype)
    num_zeros = length * place[1] - flat.numel()
    rule = words["place_on_line"].format(flat.numel(), num_zeros, place[1], length, place[0], place[0] * length)
    rule = rule if more is None else words["with_rule"].format(more, rule)
    return explained(expect_tensor(what, expected, got, rank=rank, mistakes=known), rule)


def expect_small_storage(
    what: Words, tensor: object, num_bytes: int, *, rank: int | None = None, mistakes: Sequence[str] = ()
) -> Judgement:
    """The tensor keeps no more memory than its elements need: it is no view of a longer line.

    what: how a sentence names the tensor. num_bytes: what `storage_bytes` said on the rank. mistakes: other hints that
    explain it as well.
    """
    needed = tensor.numel() * tensor.element_size() if isinstance(tensor, Tensor) else 0
    message = words["memory_of_the_whole"].format(what, format_bytes(num_bytes), format_bytes(needed))
    return expect(num_bytes <= needed, message, rank=rank, mistakes=["view_of_the_whole", *mistakes])


def expect_zero_ops(world: JudgedWorld) -> Iterator[Judgement]:
    """Every rank issues ZeRO's collectives only. An all-reduce in place of one of them would send twice as much."""
    yield from expect_only_ops(world, OPS, mistake_of_op={"all_reduce": "all_reduced"})


def calls_others(world: JudgedWorld) -> bool:
    """Whether any rank issued another collective. `world.logs` has one communication log per rank."""
    return any(op not in OPS for log in world.logs for op in log.ops())


def naming_unfinished(judge: Callable[[JudgedWorld], Iterator[Judgement]]) -> Callable[..., Iterator[Judgement]]:
    """The same judge, which names "not_waited" for a wrong tensor if a rank went on before a message was complete."""

    def judge_too(world: JudgedWorld) -> Iterator[Judgement]:
        late = False  # whether a rank sent or marked something else while a message was in flight
        for log, marks in zip(world.logs, world.marks, strict=True):
            moments = [event.start for event in log.events] + [when for _, when in marks]
            late = late or any(event.start < when < event.end for event in log.events for when in moments)
        known = ("not_waited",) if late else ()
        for one in judge(world):
            yield one if one.ok or one.compared is None else replace(one, mistakes=one.mistakes + known)

    return judge_too


def expect_calls_and_bytes(
    world: JudgedWorld, op: str, count: int, num_bytes: int, mistakes: Mapping[str, int], rule: Words
) -> Iterator[Judgement]:
    """Every rank calls `op` so many times, and passes so many bytes to all calls together.

    The bytes are judged only if the number of calls is right. mistakes: maps the key of a hint to another number of
    calls that it explains. rule: which calls are needed, and of what.
    """
    findings = list(expect_num_calls(world, op, count, mistakes=mistakes))
    if all(log.count(op) == count for log in world.logs):
        findings += expect_payload_bytes(world, num_bytes, op)
    yield from (explained(finding, rule) for finding in findings)


def is_padding_error(failure: RunFailure) -> bool:
    """Whether torch or the other ranks refused a reduce-scatter or all-gather, since its parts have unequal lengths."""
    # This error of torch's does not name the operation.
    if failure.kind == "exception" and re.search(r"Check failed: (out|in)puts?\b.*sizes", failure.text):
        return True
    # Any other names it. The kind "mismatch" means that the ranks passed tensors that do not fit together.
    is_named = any(op in failure.text for op in OPS)
    is_refused = failure.kind == "exception" and re.search("Check failed|size|shape", failure.text) is not None
    return is_named and (failure.kind == "mismatch" or is_refused)


# -- 08.shard --------------------------------------------------------------------------------------------------------
TakeShard = Callable[[Sequence[Tensor], int, int], Tensor]  # tensors, rank, number of ranks


def make_shard(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """For each of eight models, one question about every one of its ranks: (tensors, rank, number of ranks).

    In the first three models a division by the number of ranks leaves a remainder of 1, which needs the most padding.
    The others are special in one way each: the ranks divide the elements, there are more ranks than elements,
    some tensors are scalars or empty, the ranks divide a single tensor, and there is one rank. The key "cases" holds
    the questions, each of which is one call of the learner's function.
    """
    models = []  # each (shapes of the tensors, number of ranks)
    for num_ranks in (3, 4, rng.integer(5, 9)):
        rows, columns = rng.integer(3, 5), rng.integer(3, 5)
        last = next(n for n in range(7, 20) if (2 * rows * columns + n) % num_ranks == 1)
        models.append(([(rows, columns), (columns, rows), (last,)], num_ranks))
    models += [([(2, 6), (6,)], 3), ([(3,)], 4), ([(), (2, 3, 2), (0,), (rng.integer(1, 9),)], 2)]
    models += [([(8,)], 4), ([(5,)], 1)]
    drawn = [([rng.tensor(*shape) for shape in shapes], num_ranks) for shapes, num_ranks in models]
    return [{"cases": [[tensors, rank, n] for tensors, n in drawn for rank in range(n)]}]


def run_shard(submitted: TakeShard, inputs: dict[str, Any], context: RankContext) -> list[dict[str, Any]]:
    """The learner's shard for each question, and the bytes of memory that it keeps alive."""
    shards = [submitted(list(tensors), rank, num_ranks) for tensors, rank, num_ranks in inputs["cases"]]
    return [{"shard": shard, "storage_bytes": storage_bytes(shard)} for shard in shards]


def of_line(take: TakePiece) -> TakeShard:
    """Turns a function that takes a shard of a flat line into one that flattens a list of tensors before."""
    return lambda tensors, rank, num_ranks: take(flatten(tensors), rank, num_ranks)


def padded_each(tensors: Sequence[Tensor], rank: int, num_ranks: int) -> Tensor:
    """Each tensor gets zeros of its own before all are joined and split."""
    return shard_of(flatten([padded(one.flatten(), num_ranks) for one in tensors]), rank, num_ranks)


WRONG_SHARDS: dict[str, list[TakeShard]] = {
    "each_tensor_cut": [
        lambda tensors, rank, n: flatten([shard_of(one.flatten(), rank, n) for one in tensors]),
        padded_each,
    ],
    "column_by_column": [
        lambda tensors, rank, n: shard_of(flatten([one.mT if one.dim() > 1 else one for one in tensors]), rank, n)
    ],
} | {key: list(map(of_line, several)) for key, several in WRONG_PIECES.items()}


def judge_shard(world: JudgedWorld) -> Iterator[Judgement]:
    """A mistake is named only if it gives the learner's shard for every question."""
    pairs = list(zip(world.inputs[0]["cases"], world.outputs[0], strict=True))  # [0]: the only process

    def explains_all(wrong: TakeShard) -> bool:
        return all(is_close(wrong(*question), answer["shard"]) for question, answer in pairs)

    known = [key for key, several in WRONG_SHARDS.items() if any(map(explains_all, several))]
    for (tensors, rank, num_ranks), answer in pairs:
        shard, line = answer["shard"], flatten(tensors)
        what = words["shard_of"].format(" + ".join(str(tuple(one.shape)) for one in tensors), rank, num_ranks)
        # A mistake is named if its value is the learner's, so each known one is given that value.
        finding = expect_shard(what, line, shard, (rank, num_ranks), mistakes=dict.fromkeys(known, shard))
        yield finding
        if finding.ok:
            yield expect_small_storage(what, shard, answer["storage_bytes"])


SHARD = Task(
    key="08.shard",
    signature="shard(tensors, rank, world_size)",
    make_inputs=make_shard,
    variations=Variations(dtypes=("float64", "float32"), layouts=("contiguous", "transposed")),
    must_not_change=("tensors",),
    returns_new_memory=True,
    run_submission=run_shard,
    judge=judge_shard,
    # Without zeros at the end of the line, `chunk` makes fewer parts than there are ranks.
    recognise_failure=lambda failure: ["too_few_parts"] if failure.type_name == "IndexError" else [],
    runs_on="process",
)
