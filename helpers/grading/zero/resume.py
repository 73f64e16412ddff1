"""Judges 08.resume: every rank loads its shard of a checkpoint that another number of ranks saved.

A shard is a piece of a flat line that is padded with zeros; shards.py has the right ones and the wrong ones. A
checkpoint has three lines, the parameters and Adam's two moments, and a number, the step.

How to read it. `make_resume` draws the inputs of every rank for one case, `run_resume` calls the learner's answer,
`submitted`, on one rank, and `judge_resume` runs in another process: it compares what the ranks returned with the right
values, and yields one Judgement per comparison. A mistake is a wrong solution that learners often write. Its name, such
as "sorted_by_name", is the key of its hint in hints.yaml. The `expect…` functions compare one value; their `mistakes`
maps such keys to the value that the mistake gives. `words[…]` is a text of messages.yaml, in English and Chinese.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from helpers.grading.cases import CaseGenerator, Variations
from helpers.grading.kit.comparisons import expect, expect_equal, expect_only_ops, is_close
from helpers.grading.kit.model_tools import simplified
from helpers.grading.task import JudgedWorld, Judgement, RankContext, Task
from helpers.grading.zero import LAB
from helpers.grading.zero.shards import (
    WRONG_PIECES,
    TakePiece,
    expect_shard,
    expect_small_storage,
    explained,
    shard_of,
    shards_of,
    storage_bytes,
)

words = LAB.messages

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
        files = checkpoint_files(checkpoint)
        state = submitted(files, checkpoint["num_elements"], context.rank, context.world_size)
        tensors = {name: state.get(name) for name in STATE_NAMES} if isinstance(state, Mapping) else {}
        saved = {one[name].data_ptr() for one in files.values() for name in STATE_NAMES}
        is_saved = any(isinstance(one, Tensor) and one.numel() and one.data_ptr() in saved for one in tensors.values())
        sizes = {name: storage_bytes(one) for name, one in tensors.items()}
        answers.append({"state": state, "storage_bytes": sizes, "is_saved_shard": is_saved})
    return answers


def resumed_state(
    files: Files,
    num_elements: int,
    rank: int,
    world_size: int,
    *,
    sort_by_rank: bool = True,
    trim: Callable[[Tensor, int], Tensor] = lambda line, num_elements: line[:num_elements],
    take_shard: TakePiece = shard_of,
    step_of: Callable[[list[int]], Any] = max,
    zeroed: tuple[str, ...] = (),
) -> State:
    """A rank's new state. The options are what known mistakes leave out or do in another way.

    sort_by_rank: join the files by the rank in them, not in the order of their names. trim: cuts the old padding off.
    take_shard: from the full line, a rank and the number of ranks. step_of: the step, from those of all files.
    zeroed: names whose values are lost.
    """
    parts = sorted(files.values(), key=lambda one: one["rank"]) if sort_by_rank else list(files.values())
    state: State = {"step": step_of([one["step"] for one in parts])}
    for name in STATE_NAMES:
        line = trim(torch.cat([one[name] for one in parts]), num_elements)
        shard = take_shard(line, rank, world_size)
        state[name] = torch.zeros_like(shard) if name in zeroed else shard
    return state


def without_last_zeros(line: Tensor, num_elements: int) -> Tensor:
    """The mistake of taking every zero at the end of the line for padding."""
    return line[: max(line.nonzero().flatten().tolist(), default=-1) + 1]


def state_of_old_rank(files: Files, num_elements: int, rank: int, world_size: int) -> State:
    """The mistake of reading the file of the same rank, or the last one where there was no such rank."""
    parts = sorted(files.values(), key=lambda one: one["rank"])
    return dict(parts[min(rank, len(parts) - 1)])


WRONG_STATES: dict[str, list[Callable[..., State]]] = {
    "old_boundaries": [state_of_old_rank],
    "sorted_by_name": [partial(resumed_state, sort_by_rank=False)],
    "old_zeros_kept": [partial(resumed_state, trim=lambda line, num_elements: line)],
    "zeros_stripped": [partial(resumed_state, trim=without_last_zeros)],
    "step_lost": [partial(resumed_state, step_of=lambda steps: 0), partial(resumed_state, step_of=lambda steps: None)],
    # All ranks saved the same step; here those of all files are added, or added and halved, however many there are.
    "steps_added": [partial(resumed_state, step_of=sum), partial(resumed_state, step_of=lambda steps: sum(steps) // 2)],
    "moments_lost": [
        partial(resumed_state, zeroed=("exp_avg", "exp_avg_sq")),
        partial(resumed_state, zeroed=("exp_avg_sq",)),
    ],
} | {key: [partial(resumed_state, take_shard=take) for take in several] for key, several in WRONG_PIECES.items()}


def judge_resume(world: JudgedWorld) -> Iterator[Judgement]:
    """Every rank returns its shard of each checkpoint, without any communication."""
    yield from expect_only_ops(world, [])
    for rank, answers in enumerate(world.outputs):
        pairs = zip(world.inputs[rank]["checkpoints"], answers, strict=True)
        findings = [one for pair in pairs for one in judge_state(*pair, rank, world.size)]
        yield from findings
        # Wrong shards have a cause of their own, and its hint must not compete with this one.
        shared = all(one.ok for one in findings) and any(answer["is_saved_shard"] for answer in answers)
        yield expect(not shared, words["saved_shard"], rank=rank, mistakes=["saved_shard_returned"])


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
    finding = expect_equal(words["step_resumed"].format(*sizes), right["step"], step, rank=rank, mistakes=known)
    yield explained(finding, words["same_step"])
    for name in STATE_NAMES:
        got, what = state.get(name), words["state_resumed"].format(name, *sizes)
        mistakes: dict[str, Any] = {key: [one[name] for one in states] for key, states in wrong.items()}
        mistakes["of_another_name"] = [right[other] for other in STATE_NAMES if other != name]
        if name != "parameters" and got is None:  # the state has no such moment at all
            mistakes = {"moments_lost": None}
        finding = expect_shard(what, checkpoint["lines"][name], got, (rank, world_size), rank=rank, mistakes=mistakes)
        yield finding
        if finding.ok:
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
)
