"""Judges 08.shard and 08.resume, and computes the shards to which all tasks of lab 08 are compared.

In this lab tensors are concatenated to one flat line. Zeros at its end, the padding, make the number of ranks divide
its length, and each rank gets one of the equal pieces, its shard. 08.shard asks for such a shard in one process. In
08.resume every rank loads its shard of a checkpoint that another number of ranks saved; a checkpoint has three lines,
the parameters and Adam's two moments, and a number, the step. The functions under "what the tasks of this lab share"
also serve stage1.py, stage2.py and stage3.py, which judge other tasks of lab 08.

How to read it. Each task has three functions. `make_…` draws the inputs of every rank for one case, `run_…` calls the
learner's answer, `submitted`, on one rank, and `judge_…` runs in another process: it compares what the ranks returned
with the right values, and yields one Judgement per comparison. A case is one choice of sizes, dtypes and memory layouts
(`rng.case`), and `rng` draws the numbers. The `expect…` functions compare one value. `words[…]` is a text of
messages.yaml, in English and Chinese. A mistake is a wrong solution that learners often write; its name, such as
"tail_dropped", is the key of its hint in hints.yaml.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from helpers.grading.kit.comparisons import (
    expect,
    expect_equal,
    expect_num_calls,
    expect_only_ops,
    expect_payload_bytes,
    with_rule,
)
from helpers.grading.kit.model_tools import MemoryMeter
from helpers.grading.kit.tensor_comparisons import expect_tensor
from helpers.grading.plain_data import simplified
from helpers.grading.task import (
    JudgedWorld,
    Judgement,
    RankContext,
    RunFailure,
    Task,
    Variations,
)
from helpers.grading.tensor_cases import CaseGenerator
from helpers.grading.zero import LAB
from helpers.learner.words import Words
from helpers.quantities.units import format_bytes
from helpers.ranks.processes.limits import load_per_core

words = LAB.messages

OPS = ("reduce_scatter", "all_gather")  # the collectives of ZeRO


# -- a flat line and its shards --------------------------------------------------------------------------------------
def flatten(tensors: Iterable[Tensor]) -> Tensor:
    """All elements in one line, tensor after tensor."""
    return torch.cat([tensor.flatten() for tensor in tensors])


def shard_length(num_elements: int, world_size: int) -> int:
    """Elements per shard: the quotient, rounded up."""
    return -(-num_elements // world_size)


def shards_of(flat: Tensor, world_size: int) -> list[Tensor]:
    """The shards of all ranks: equal pieces of the line, with zeros at its end so that the ranks divide it."""
    length = shard_length(flat.numel(), world_size)
    zeros = flat.new_zeros(length * world_size - flat.numel())
    return list(torch.cat([flat, zeros]).view(world_size, length))


def shard_of(flat: Tensor, rank: int, world_size: int) -> Tensor:
    """The shard of one rank."""
    return shards_of(flat, world_size)[rank]


def padded_bytes(lengths: Sequence[int], world_size: int, itemsize: int) -> int:
    """Bytes of all shards of several lines, with their padding. itemsize: bytes per element."""
    return itemsize * world_size * sum(shard_length(n, world_size) for n in lengths)


# -- what the tasks of this lab share --------------------------------------------------------------------------------
def storage_bytes(tensor: object) -> int:
    """Bytes that stay allocated as long as this tensor lives; 0 for anything else."""
    return tensor.untyped_storage().nbytes() if isinstance(tensor, Tensor) else 0


MAX_WAIT_FACTOR = 8.0  # how many times as long it waits on a busy machine, at most


class ReleaseWait:
    """Waits until memory is freed, at most `seconds` on an idle machine in all uses together, and longer on a busy one.

    A message is completed by another thread, which may hold its tensors a little longer than the message lasts.
    """

    def __init__(self, seconds: float = 0.15):
        self.seconds_left = seconds * min(load_per_core(), MAX_WAIT_FACTOR)

    def bytes_above(self, limit: float, meter: MemoryMeter) -> int:
        """0 if no more than `limit` bytes are in use, else the bytes that still are when the time is up."""
        while (num_bytes := meter.current_bytes) > limit and self.seconds_left > 0:
            time.sleep(0.005)
            self.seconds_left -= 0.005
        return num_bytes if num_bytes > limit else 0


def expect_shard(
    what: Words, flat: Tensor, got: Any, place: tuple[int, int], *, rank: int | None = None, num_bytes: int = 0
) -> Iterator[Judgement]:
    """Expects the shard of a flat line, and says which elements of the line it has.

    place: the rank whose shard it is, and the number of ranks. rank: the rank that is judged. num_bytes: what
    `storage_bytes` said of `got` on the rank, if it asked. A right shard may keep no more memory than its elements
    need, so it is no view of a longer line.
    """
    expected, (owner, world_size) = shard_of(flat, *place), place
    length, needed = expected.numel(), expected.numel() * expected.element_size()
    num_zeros = length * world_size - flat.numel()
    rule = words["place_on_line"].format(flat.numel(), num_zeros, world_size, length, owner, owner * length)
    judgement = expect_tensor(what, expected, got, rank=rank)
    yield from with_rule(rule, [judgement])
    if judgement.ok and num_bytes > needed:
        message = words["memory_of_the_whole"].format(what, format_bytes(num_bytes), format_bytes(needed))
        # The judge names this mistake, because the line of which the shard is a view differs from answer to answer.
        yield expect(False, message, rank=rank, mistakes=["view_of_the_whole"])


def expect_zero_ops(world: JudgedWorld) -> Iterator[Judgement]:
    """Every rank issues ZeRO's collectives only. An all-reduce in place of one of them would send twice as much.

    The judge names that mistake, because some answers all-reduce every tensor and others the joined line.
    """
    yield from expect_only_ops(world, OPS, mistake_of_op={"all_reduce": "all_reduced"})


def naming_unfinished(judge: Callable[[JudgedWorld], Iterator[Judgement]]) -> Callable[..., Iterator[Judgement]]:
    """The same judge, which names "not_waited" for a wrong tensor if a rank went on before a message was complete.

    What such a tensor holds depends on time, so no run of the mistake gives it again.
    """

    def judge_too(world: JudgedWorld) -> Iterator[Judgement]:
        late = False  # whether a rank sent or marked something else while a message was in flight
        for log, marks in zip(world.logs, world.marks, strict=True):
            moments = [event.start for event in log.events] + [when for _, when in marks]
            late = late or any(event.start < when < event.end for event in log.events for when in moments)
        known = ("not_waited",) if late else ()
        for one in judge(world):
            yield one if one.ok or one.compared is None else replace(one, mistakes=one.mistakes + known)

    return judge_too


def expect_calls_and_bytes(world: JudgedWorld, op: str, count: int, num_bytes: int, rule: Words) -> Iterator[Judgement]:
    """Every rank calls `op` `count` times, and passes `num_bytes` bytes to all calls together.

    rule: which calls are needed, and of what.
    """
    yield from with_rule(rule, expect_num_calls(world, op, count))
    yield from with_rule(rule, expect_payload_bytes(world, num_bytes, op))


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


def run_shard(submitted, inputs: dict[str, Any], context: RankContext) -> list[dict[str, Any]]:
    """The learner's shard for each question, and the bytes of memory that it keeps alive."""
    shards = [submitted(list(tensors), rank, num_ranks) for tensors, rank, num_ranks in inputs["cases"]]
    return [{"shard": shard, "storage_bytes": storage_bytes(shard)} for shard in shards]


def judge_shard(world: JudgedWorld) -> Iterator[Judgement]:
    """Judges the values and the memory of the shard in each answer."""
    for (tensors, *place), answer in zip(world.inputs[0]["cases"], world.outputs[0], strict=True):
        what = words["shard_of"].format(" + ".join(str(tuple(one.shape)) for one in tensors), *place)
        yield from expect_shard(what, flatten(tensors), answer["shard"], place, num_bytes=answer["storage_bytes"])


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


# -- 08.resume -------------------------------------------------------------------------------------------------------
STATE_NAMES = ("parameters", "exp_avg", "exp_avg_sq")  # the last two are Adam's moments
OLD_SIZES = (2, 3, 11, 1)  # numbers of ranks that saved; with 11, a sorted listing has rank_10.pt before rank_2.pt


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


def checkpoint_files(checkpoint: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What the old ranks wrote, by file name, in the order in which a folder lists the files."""
    old_size = checkpoint["old_size"]
    shards = {name: shards_of(checkpoint["lines"][name], old_size) for name in STATE_NAMES}
    states = [{name: shards[name][rank].clone() for name in STATE_NAMES} for rank in range(old_size)]
    ranks = sorted(range(old_size), key=str)  # in the order of the file names, where 10 stands before 2
    return {f"rank_{rank}.pt": {"rank": rank, "step": checkpoint["step"]} | states[rank] for rank in ranks}


def run_resume(submitted, inputs: dict[str, Any], context: RankContext) -> list[Any]:
    """For each checkpoint the state that the learner's function returns, and the bytes that its tensors keep alive."""
    answers = []
    for checkpoint in inputs["checkpoints"]:
        files = checkpoint_files(checkpoint)
        state = submitted(files, checkpoint["num_elements"], context.rank, context.world_size)
        if not isinstance(state, Mapping):
            answers.append({"returned_instead": type(state).__name__})
            continue
        tensors = {name: state.get(name) for name in STATE_NAMES}
        saved = {one[name].data_ptr() for one in files.values() for name in STATE_NAMES}
        is_saved = any(isinstance(one, Tensor) and one.numel() and one.data_ptr() in saved for one in tensors.values())
        sizes = {name: storage_bytes(one) for name, one in tensors.items()}
        step = simplified(state.get("step"))  # an optimizer's step may be a float, or a tensor of one element
        answers.append({"step": step, "tensors": tensors, "storage_bytes": sizes, "is_saved_shard": is_saved})
    return answers


def judge_resume(world: JudgedWorld) -> Iterator[Judgement]:
    """Every rank returns its shard of each checkpoint, without any communication."""
    yield from expect_only_ops(world, [])
    for rank, answers in enumerate(world.outputs):
        pairs = zip(world.inputs[rank]["checkpoints"], answers, strict=True)
        findings = [one for pair in pairs for one in judge_state(*pair, rank, world.size)]
        yield from findings
        # Wrong shards have a cause of their own, which is said first.
        shared = all(one.ok for one in findings) and any(answer["is_saved_shard"] for answer in answers)
        yield expect(not shared, words["saved_shard"], rank=rank)


def judge_state(
    checkpoint: Mapping[str, Any], answer: Mapping[str, Any], rank: int, world_size: int
) -> Iterator[Judgement]:
    """Judges one rank's state after one checkpoint: the step, then each tensor and its memory."""
    if "returned_instead" in answer:
        yield expect(False, words["no_state_returned"].format(answer["returned_instead"], STATE_NAMES), rank=rank)
        return
    sizes = checkpoint["old_size"], world_size  # sentences name both
    judgement = expect_equal(words["step_resumed"].format(*sizes), checkpoint["step"], answer["step"], rank=rank)
    yield from with_rule(words["same_step"], [judgement])
    for name, line in checkpoint["lines"].items():
        what, num_bytes = words["state_resumed"].format(name, *sizes), answer["storage_bytes"][name]
        yield from expect_shard(what, line, answer["tensors"][name], (rank, world_size), rank=rank, num_bytes=num_bytes)


RESUME = Task(
    key="08.resume",
    signature="resume(files, num_elements, rank, world_size)",
    make_inputs=make_resume,
    variations=Variations(sizes=("uneven", "even", "few"), dtypes=("float64", "float32")),
    must_not_change=("files",),
    returns_new_memory=True,
    run_submission=run_resume,
    judge=judge_resume,
)
