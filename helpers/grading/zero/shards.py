"""Judges 08.shard and 08.resume, and computes the shards, right and wrong, to which all tasks of lab 08 are compared.

In this lab tensors are concatenated to one flat line. Zeros at its end, the padding, make the number of ranks divide
its length, and each rank gets one of the equal pieces, its shard. 08.shard asks for such a shard in one process;
08.resume asks every rank for its shard of a checkpoint that another number of ranks saved. The functions under "what
the tasks of this lab share" also serve stage1.py, stage2.py and stage3.py, which judge the other tasks of lab 08.

How to read it. Each task has three functions. `make_…` draws the inputs of every rank for one case, `run_…` calls the
learner's answer, `submitted`, on one rank, and `judge_…` runs in another process: it compares what the ranks returned
with the right values, and yields one Judgement per comparison. A case is one choice of sizes, dtypes and memory layouts
(`rng.case`), and `rng` draws the numbers. A mistake is a wrong solution that learners often write. Its name, such as
"tail_dropped", is the key of its hint in hints.yaml. The `expect…` functions compare one value; their `mistakes` maps
such keys to the value that the mistake gives. `words[…]` is a text of messages.yaml, in English and Chinese.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from helpers.grading.cases import CaseGenerator, Variations
from helpers.grading.kit.comparisons import (
    expect,
    expect_equal,
    expect_num_calls,
    expect_only_ops,
    expect_payload_bytes,
    expect_tensor,
    is_close,
)
from helpers.grading.kit.model_tools import MemoryMeter, simplified
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


def misplaced_shards(flat: Tensor, rank: int, world_size: int) -> list[Tensor]:
    """Four wrong shards of the right length: from element 0, from element `rank`, and those of both neighbours."""
    line, length = padded(flat, world_size), shard_length(flat.numel(), world_size)
    neighbours = ((rank + 1) % world_size * length, (rank - 1) % world_size * length)
    return [line[start : start + length] for start in (0, rank, *neighbours)]


def unpadded_shard(flat: Tensor, rank: int, world_size: int) -> Tensor:
    """A mistake: the line is not padded, so the last shards are shorter or empty."""
    length = shard_length(flat.numel(), world_size)
    return flat[rank * length : (rank + 1) * length]


def padded_bytes(lengths: Sequence[int], world_size: int, itemsize: int) -> int:
    """Bytes of all shards of several lines, with their padding. itemsize: bytes per element."""
    return itemsize * world_size * sum(shard_length(n, world_size) for n in lengths)


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


def has_all_reduce(world: JudgedWorld) -> bool:
    """Whether any rank issued an all-reduce. `world.logs` has one communication log per rank."""
    return any(log.count("all_reduce") for log in world.logs)


def expect_calls_and_bytes(
    world: JudgedWorld, op: str, count: int, num_bytes: int, mistakes: Mapping[str, int]
) -> Iterator[Judgement]:
    """Every rank calls `op` so many times, and passes so many bytes to all calls together.

    The bytes are judged only if the number of calls is right. mistakes: maps the key of a hint to another number of
    calls that it explains.
    """
    yield from expect_num_calls(world, op, count, mistakes=mistakes)
    if all(log.count(op) == count for log in world.logs):
        yield from expect_payload_bytes(world, num_bytes, op)


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


def of_line(take: Callable[[Tensor, int, int], Tensor]) -> TakeShard:
    """Turns a function that takes a shard of a flat line into one that flattens a list of tensors before."""
    return lambda tensors, rank, num_ranks: take(flatten(tensors), rank, num_ranks)


def overpadded_shard(flat: Tensor, rank: int, num_ranks: int) -> Tensor:
    """n - len % n zeros, which are n zeros too many where the ranks divide the line."""
    line = torch.cat([flat, flat.new_zeros(num_ranks - flat.numel() % num_ranks)])
    return line.chunk(num_ranks)[rank]


def rounded_down(flat: Tensor, rank: int, num_ranks: int) -> Tensor:
    """The quotient is rounded down, so the end of the line is lost."""
    length = flat.numel() // num_ranks
    return flat[rank * length : (rank + 1) * length]


def padded_in_front(flat: Tensor, rank: int, num_ranks: int) -> Tensor:
    """The zeros stand before the line and not behind it."""
    missing = padded(flat, num_ranks).numel() - flat.numel()
    return torch.cat([flat.new_zeros(missing), flat]).chunk(num_ranks)[rank]


right_shard = of_line(shard_of)
WRONG_SHARDS: dict[str, list[TakeShard]] = {
    "padded_where_even": [of_line(overpadded_shard)],
    "shards_differ_in_length": [of_line(unpadded_shard), of_line(lambda flat, rank, n: flat.tensor_split(n)[rank])],
    "tail_dropped": [of_line(rounded_down)],
    "each_tensor_cut": [lambda tensors, rank, n: flatten([shard_of(one.flatten(), rank, n) for one in tensors])],
    "zeros_in_front": [of_line(padded_in_front)],
    "every_other_number": [of_line(lambda flat, rank, n: padded(flat, n)[rank::n])],
    "wrong_place": [of_line(lambda flat, rank, n, i=i: misplaced_shards(flat, rank, n)[i]) for i in range(4)],
}


def judge_shard(world: JudgedWorld) -> Iterator[Judgement]:
    """A mistake is named only if it gives the learner's shard for every question."""
    pairs = list(zip(world.inputs[0]["cases"], world.outputs[0], strict=True))  # [0]: the only process

    def explains_all(wrong: TakeShard) -> bool:
        return all(is_close(wrong(*question), answer["shard"]) for question, answer in pairs)

    known = [key for key, several in WRONG_SHARDS.items() if any(map(explains_all, several))]
    for (tensors, rank, num_ranks), answer in pairs:
        shard, expected = answer["shard"], right_shard(tensors, rank, num_ranks)
        what = words["shard_of"].format(" + ".join(str(tuple(one.shape)) for one in tensors), rank, num_ranks)
        # A mistake is named if its value is the learner's, so each known one is given that value.
        yield expect_tensor(what, expected, shard, mistakes=dict.fromkeys(known, shard))
        if is_close(expected, shard):
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
    hints=LAB.hints(*WRONG_SHARDS, "view_of_the_whole"),
    runs_on="process",
)

# -- 08.resume -------------------------------------------------------------------------------------------------------
STATE_NAMES = ("parameters", "exp_avg", "exp_avg_sq")  # the last two are Adam's moments
OLD_SIZES = (2, 3, 11, 1)  # numbers of ranks that saved; with 11, a sorted listing has rank_10.pt before rank_2.pt
Files = Mapping[str, Mapping[str, Any]]  # file name to what the file holds: "rank", "step", and a shard for each name
State = dict[str, Any]  # of a rank: "step", and a shard for each of STATE_NAMES


def make_resume(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Checkpoints of several numbers of ranks, the present one among them; the same for every rank."""
    checkpoints = [draw_checkpoint(rng, old, world_size) for old in (*OLD_SIZES, world_size, rng.integer(4, 12))]
    return [{"checkpoints": checkpoints} for _ in range(world_size)]


def draw_checkpoint(rng: CaseGenerator, old_size: int, world_size: int) -> dict[str, Any]:
    """The three full lines and the step that `old_size` ranks have saved.

    Except in the first case each line ends in zeros that are no padding, so an answer must not strip all zeros.
    """
    num_elements = draw_length(rng, old_size, world_size)
    lines = {name: rng.tensor(num_elements).contiguous() for name in STATE_NAMES}
    lines["exp_avg_sq"] = lines["exp_avg_sq"].square()
    if rng.case.number:
        for line in lines.values():
            line[num_elements - rng.integer(1, 4) :] = 0  # parameters that never moved, or a bias that is still zero
    return {"lines": lines, "step": rng.integer(20, 900), "old_size": old_size, "num_elements": num_elements}


def draw_length(rng: CaseGenerator, old_size: int, world_size: int) -> int:
    """A length that both numbers of ranks divide, or neither, or that is shorter than the larger of them."""
    if rng.case.sizes == "few":
        return rng.integer(1, max(old_size, world_size))
    both = math.lcm(old_size, world_size)
    if rng.case.sizes == "even":
        return both * rng.integer(1, 60 // both + 1)  # about 60 elements at most
    sizes = [n for n in range(40, 90) if (old_size == 1 or n % old_size) and (world_size == 1 or n % world_size)]
    return rng.one_of(*sizes)


def checkpoint_files(checkpoint: Mapping[str, Any]) -> dict[str, State]:
    """What the old ranks wrote, in the order in which a folder lists the files."""
    old_size = checkpoint["old_size"]
    shards = {name: shards_of(checkpoint["lines"][name], old_size) for name in STATE_NAMES}
    states = [{name: shards[name][rank].clone() for name in STATE_NAMES} for rank in range(old_size)]
    ranks = sorted(range(old_size), key=str)  # in the order of the file names, where 10 stands before 2
    return {f"rank_{rank}.pt": {"rank": rank, "step": checkpoint["step"]} | states[rank] for rank in ranks}


def run_resume(submitted, inputs: dict[str, Any], context: RankContext) -> list[Any]:
    """The state that the learner's function returns for each checkpoint, and the bytes that its tensors keep alive."""
    answers = []
    for checkpoint in inputs["checkpoints"]:
        state = submitted(checkpoint_files(checkpoint), checkpoint["num_elements"], context.rank, context.world_size)
        is_state = isinstance(state, Mapping)
        sizes = {name: storage_bytes(state.get(name)) for name in STATE_NAMES} if is_state else {}
        answers.append({"state": state, "storage_bytes": sizes})
    return answers


def resumed_state(
    files: Files,
    num_elements: int,
    rank: int,
    world_size: int,
    *,
    sort_by_rank: bool = True,
    trim: bool = True,
    take_shard: Callable[[Tensor, int, int], Tensor] = shard_of,
    step_of: Callable[[list[int]], Any] = max,
    zeroed: tuple[str, ...] = (),
) -> State:
    """A rank's new state. The options are what known mistakes leave out or do in another way.

    sort_by_rank: join the files by the rank in them, not in the order of their names. trim: cut the old padding off.
    take_shard: from the full line, a rank and the number of ranks. step_of: the step, from those of all files.
    zeroed: names whose values are lost.
    """
    parts = sorted(files.values(), key=lambda one: one["rank"]) if sort_by_rank else list(files.values())
    state: State = {"step": step_of([one["step"] for one in parts])}
    for name in STATE_NAMES:
        line = torch.cat([one[name] for one in parts])
        line = line[:num_elements] if trim else line
        shard = take_shard(line, rank, world_size)
        state[name] = torch.zeros_like(shard) if name in zeroed else shard
    return state


def state_of_old_rank(files: Files, num_elements: int, rank: int, world_size: int) -> State:
    """The mistake of reading the file of the same rank, or the last one where there was no such rank."""
    parts = sorted(files.values(), key=lambda one: one["rank"])
    return dict(parts[min(rank, len(parts) - 1)])


WRONG_STATES: dict[str, list[Callable[..., State]]] = {
    "old_boundaries": [state_of_old_rank],
    "sorted_by_name": [partial(resumed_state, sort_by_rank=False)],
    "old_zeros_kept": [partial(resumed_state, trim=False)],
    "shards_differ_in_length": [partial(resumed_state, take_shard=unpadded_shard)],
    "whole_state": [partial(resumed_state, take_shard=lambda line, rank, n: line)],
    "step_lost": [partial(resumed_state, step_of=lambda steps: 0), partial(resumed_state, step_of=lambda steps: None)],
    # All ranks saved the same step; here those of all files are added, or added and halved, however many there are.
    "steps_added": [partial(resumed_state, step_of=sum), partial(resumed_state, step_of=lambda steps: sum(steps) // 2)],
    "moments_lost": [
        partial(resumed_state, zeroed=("exp_avg", "exp_avg_sq")),
        partial(resumed_state, zeroed=("exp_avg_sq",)),
    ],
}


def judge_resume(world: JudgedWorld) -> Iterator[Judgement]:
    """Every rank returns its shard of each checkpoint, without any communication."""
    yield from expect_only_ops(world, [])
    for rank, answers in enumerate(world.outputs):
        for checkpoint, answer in zip(world.inputs[rank]["checkpoints"], answers, strict=True):
            yield from judge_state(checkpoint, answer, rank, world.size)


def judge_state(
    checkpoint: Mapping[str, Any], answer: Mapping[str, Any], rank: int, world_size: int
) -> Iterator[Judgement]:
    """Judges one rank's state after one checkpoint: the step, then each tensor and its memory."""
    state = answer["state"]
    is_state = isinstance(state, Mapping)
    yield expect(is_state, words["no_state_returned"].format(type(state).__name__, STATE_NAMES), rank=rank)
    if not is_state:
        return
    arguments = checkpoint_files(checkpoint), checkpoint["num_elements"], rank, world_size
    right, sizes = resumed_state(*arguments), (checkpoint["old_size"], world_size)  # sentences name both sizes
    step = simplified(state.get("step"))  # an optimizer's step may be a float, or a tensor of one element
    is_right = step == right["step"] and all(is_close(right[name], state.get(name)) for name in STATE_NAMES)
    # The states that each mistake gives, and the mistakes of which one state has the learner's step.
    wrong = {} if is_right else {key: [one(*arguments) for one in several] for key, several in WRONG_STATES.items()}
    known = {key: step for key, states in wrong.items() if step in [one["step"] for one in states]}
    yield expect_equal(words["step_resumed"].format(*sizes), right["step"], step, rank=rank, mistakes=known)
    for name in STATE_NAMES:
        got, what = state.get(name), words["state_resumed"].format(name, *sizes)
        mistakes: dict[str, Any] = {key: [one[name] for one in states] for key, states in wrong.items()}
        if name != "parameters" and got is None:  # the state has no such moment at all
            mistakes = {"moments_lost": None}
        yield expect_tensor(what, right[name], got, rank=rank, mistakes=mistakes)
        if is_close(right[name], got):
            # One rank's shard equals the full line, so there only the memory shows that nothing was sharded.
            also = ["whole_state"] if world_size == 1 else []
            yield expect_small_storage(what, got, answer["storage_bytes"][name], rank=rank, mistakes=also)


RESUME = Task(
    key="08.resume",
    signature="resume(files, num_elements, rank, world_size)",
    make_inputs=make_resume,
    variations=Variations(sizes=("uneven", "even", "few"), dtypes=("float64", "float32")),
    must_not_change=("files",),
    returns_new_memory=True,
    run_submission=run_resume,
    judge=judge_resume,
    hints=LAB.hints(*WRONG_STATES, "view_of_the_whole"),
)
