"""Judges 08.resume: every rank loads its shard of a checkpoint that another number of ranks saved.

A shard is a piece of a flat line that is padded with zeros, as shards.py has it. A checkpoint has three lines, the
parameters and Adam's two moments, and a number, the step.

How to read it. `make_resume` draws the inputs of every rank for one case, `run_resume` calls the learner's answer,
`submitted`, on one rank, and `judge_resume` runs in another process: it compares what the ranks returned with the right
values, and yields one Judgement per comparison. The `expect…` functions compare one value. `words[…]` is a text of
messages.yaml, in English and Chinese.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from helpers.grading.cases import CaseGenerator, Variations
from helpers.grading.kit.comparisons import expect, expect_equal, expect_only_ops, with_rule
from helpers.grading.kit.model_tools import simplified
from helpers.grading.task import JudgedWorld, Judgement, RankContext, Task
from helpers.grading.zero import LAB
from helpers.grading.zero.shards import expect_shard, shards_of, storage_bytes

words = LAB.messages

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
