"""08.resume: the files of one world size become the shards of another."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from helpers.grading.drawing import Axes, Draw
from helpers.grading.kit.judging import expect, expect_equal, expect_only, expect_tensor, same
from helpers.grading.task import Finding, Task, Trial, World
from helpers.grading.zero import LAB
from helpers.grading.zero.parts import expect_own_memory, own_memory, shard_of, shards_of
from helpers.learner.words import Words

NAMES = ("parameters", "exp_avg", "exp_avg_sq")
OLD_SIZES = (2, 3, 11, 1)  # of the worlds that saved; in a listing rank 10 stands before rank 2
Files = Mapping[str, Mapping[str, Any]]
State = dict[str, Any]


def make(rng: Draw, world_size: int) -> list[dict[str, Any]]:
    """Checkpoints of other worlds, and of one of as many ranks. The line may be short, and may end in zeros itself."""
    calls = [call(rng, old, world_size) for old in (*OLD_SIZES, world_size, rng.integer(4, 12))]
    return [{"calls": calls} for _ in range(world_size)]


def call(rng: Draw, old: int, world_size: int) -> dict[str, Any]:
    num_elements = length_for(rng, old, world_size)
    whole = {name: rng.tensor(num_elements).contiguous() for name in NAMES}
    whole["exp_avg_sq"] = whole["exp_avg_sq"].square()
    if rng.case.number:
        for line in whole.values():
            line[num_elements - rng.integer(1, 4) :] = 0  # what never moved, or a bias that is zero still
    return {"whole": whole, "step": rng.integer(20, 900), "old": old, "num_elements": num_elements}


def length_for(rng: Draw, old: int, world_size: int) -> int:
    """Of the line: both worlds divide it, or neither does, or it is shorter than the larger one."""
    if rng.case.sizes == "few":
        return rng.integer(1, max(old, world_size))
    both = math.lcm(old, world_size)
    if rng.case.sizes == "even":
        return both * rng.integer(1, 60 // both + 1)
    sizes = [n for n in range(40, 90) if (old == 1 or n % old) and (world_size == 1 or n % world_size)]
    return rng.one_of(*sizes)


def files_of(call: Mapping[str, Any]) -> dict[str, State]:
    """As the old ranks wrote them and a folder lists them."""
    cut = {name: shards_of(call["whole"][name], call["old"]) for name in NAMES}
    files = {
        f"rank_{rank}.pt": {"rank": rank, "step": call["step"]} | {name: cut[name][rank].clone() for name in NAMES}
        for rank in range(call["old"])
    }
    return {name: files[name] for name in sorted(files)}


def act(submitted, inputs: dict[str, Any], trial: Trial) -> list[Any]:
    answers = []
    for call in inputs["calls"]:
        state = submitted(files_of(call), call["num_elements"], trial.rank, trial.world_size)
        memory = {name: own_memory(state.get(name)) for name in NAMES} if isinstance(state, Mapping) else {}
        answers.append({"state": state, "memory": memory})
    return answers


# -- the right one, and what people write instead --------------------------------------------------------------------
def resumed(
    files: Files,
    num_elements: int,
    rank: int,
    world_size: int,
    *,
    ordered: bool = True,
    trimmed: bool = True,
    cut: Callable[[Tensor, int, int], Tensor] = shard_of,
    step: Callable[[list[int]], Any] = max,
    forgets: tuple[str, ...] = (),
) -> State:
    parts = sorted(files.values(), key=lambda one: one["rank"]) if ordered else list(files.values())
    state: State = {"step": step([one["step"] for one in parts])}
    for name in NAMES:
        line = torch.cat([one[name] for one in parts])
        line = line[:num_elements] if trimmed else line
        shard = cut(line, rank, world_size)
        state[name] = torch.zeros_like(shard) if name in forgets else shard
    return state


def of_old_rank(files: Files, num_elements: int, rank: int, world_size: int) -> State:
    """The rank's own old file; where there was no such rank, the last."""
    parts = sorted(files.values(), key=lambda one: one["rank"])
    return dict(parts[min(rank, len(parts) - 1)])


def unpadded(line: Tensor, rank: int, world_size: int) -> Tensor:
    length = -(-line.numel() // world_size)
    return line[rank * length : (rank + 1) * length]


WRONG: dict[str, list[Callable[..., State]]] = {
    "old_boundaries": [of_old_rank],
    "sorted_by_name": [partial(resumed, ordered=False)],
    "old_zeros_kept": [partial(resumed, trimmed=False)],
    "shards_differ_in_length": [partial(resumed, cut=unpadded)],
    "whole_state": [partial(resumed, cut=lambda line, rank, n: line)],
    "step_lost": [partial(resumed, step=lambda steps: 0), partial(resumed, step=lambda steps: None)],
    "steps_added": [partial(resumed, step=sum), partial(resumed, step=lambda steps: sum(steps) // 2)],
    "moments_lost": [
        partial(resumed, forgets=("exp_avg", "exp_avg_sq")),
        partial(resumed, forgets=("exp_avg_sq",)),
    ],
}


def judge(world: World) -> Iterator[Finding]:
    yield from expect_only(world, [])
    for rank, answers in enumerate(world.outputs):
        for call, answer in zip(world.inputs[rank]["calls"], answers, strict=True):
            yield from judge_state(call, answer, rank, world.size)


def judge_state(call: Mapping[str, Any], answer: Mapping[str, Any], rank: int, world_size: int) -> Iterator[Finding]:
    state = answer["state"]
    is_state = isinstance(state, Mapping)
    yield expect(
        is_state,
        f"resume returns {type(state).__name__}, expected a dict with step, {', '.join(NAMES)}",
        f"resume 返回了 {type(state).__name__}，应为含 step、{'、'.join(NAMES)} 的 dict",
        rank=rank,
    )
    if not is_state:
        return
    case = files_of(call), call["num_elements"], rank, world_size
    right, note = resumed(*case), (call["old"], world_size)
    step = number(state.get("step"))
    is_right = step == right["step"] and all(same(right[name], state.get(name)) for name in NAMES)
    wrong = {} if is_right else {key: [one(*case) for one in several] for key, several in WRONG.items()}
    counts = {key: [one["step"] for one in several] for key, several in wrong.items()}
    known = {key: step for key, several in counts.items() if step in several}
    yield expect_equal(STEP.format(*note), right["step"], step, rank=rank, mistakes=known)
    for name in NAMES:
        values = {key: [one[name] for one in several] for key, several in wrong.items()}
        got = state.get(name)
        missing = {"moments_lost": None} if name != "parameters" and got is None else values
        yield expect_tensor(LINE.format(name, *note), right[name], got, rank=rank, mistakes=missing)
        if same(right[name], got):
            alone = ["whole_state"] if world_size == 1 else []
            what = LINE.format(name, *note)
            yield expect_own_memory(what, got, answer["memory"][name], rank=rank, mistakes=alone)


def number(value: Any) -> Any:
    """An optimizer's step may be a tensor of one number, and a float."""
    value = value.item() if isinstance(value, Tensor) and value.numel() == 1 else value
    return int(value) if isinstance(value, float) and value.is_integer() else value


STEP = Words(en="the step, from {} ranks to {},", zh="从 {} 个 rank 到 {} 个，step ")
LINE = Words(en="{}, from {} ranks to {},", zh="从 {1} 个 rank 到 {2} 个，{0} ")
RESUME = Task(
    key="08.resume",
    signature="resume(files, num_elements, rank, world_size)",
    make=make,
    axes=Axes(sizes=("uneven", "even", "few"), dtypes=("float64", "float32")),
    keeps=("files",),
    fresh=True,
    act=act,
    judge=judge,
    hints=LAB.hints(*WRONG, "view_of_the_whole"),
)
