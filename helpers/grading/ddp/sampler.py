"""03.sampler: which examples a rank sees."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise
from typing import Any

from helpers.grading.ddp import LAB
from helpers.grading.drawing import Axes, Draw
from helpers.grading.kit.judging import expect, expect_equal, expect_only
from helpers.grading.task import Finding, Task, Trial, World
from helpers.learner.words import Words

EPOCHS = 3
MANY = 24  # examples: no two shuffles of as many are alike by chance
Shares = list[list[int]]  # of each rank


def make(rng: Draw, world_size: int) -> list[dict[str, Any]]:
    """Fewer examples than ranks, or many. The first seed is 0: what multiplies seed and epoch has one order then."""
    num_examples, seed = (MANY + rng.integer(0, 2)) * world_size, rng.integer(1, 10**6)
    if rng.case.sizes == "uneven":
        num_examples += rng.integer(1, max(1, world_size - 2))  # two or more are missing then, but on two ranks
    elif rng.case.sizes == "few":
        num_examples = max(1, (world_size - 1) // 2)  # some come more than twice
    return [{"num_examples": num_examples, "seeds": [0, seed, seed + 1]} for _ in range(world_size)]


def act(submitted, inputs: dict[str, Any], trial: Trial) -> dict[str, Any]:
    """All samplers are made first and take turns, each in another epoch: none may know of the others."""
    samplers = [submitted(inputs["num_examples"], trial.rank, trial.world_size, seed) for seed in inputs["seeds"]]
    outputs: dict[str, Any] = {"fresh": [indices(sampler) for sampler in samplers], "orders": [{} for _ in samplers]}
    for turn in range(EPOCHS):
        epochs = [(turn + place) % EPOCHS for place in range(len(samplers))]
        for sampler, epoch in zip(samplers, epochs, strict=True):
            sampler.set_epoch(epoch)
        for sampler, epoch, orders in zip(samplers, epochs, outputs["orders"], strict=True):
            orders[epoch] = indices(sampler)
    outputs["twice"] = indices(samplers[0])
    samplers[0].set_epoch(1)
    return outputs | {"again": indices(samplers[0]), "lens": [len(sampler) for sampler in samplers]}


def indices(sampler) -> list[int]:
    return [int(index) for index in sampler]


def judge(world: World) -> Iterator[Finding]:
    yield from expect_only(world, [])
    shares = {  # (which seed, epoch): of each rank
        (place, epoch): [out["orders"][place][str(epoch)] for out in world.outputs]
        for place in range(len(world.inputs[0]["seeds"]))
        for epoch in range(EPOCHS)
    }
    repeats = list(judge_repeats(world))
    yield from judge_lengths(world, shares)
    yield from judge_cover(world, shares, unseeded=not all(finding.ok for finding in repeats))
    yield from repeats
    if world.inputs[0]["num_examples"] >= MANY:
        yield from judge_orders(world, shares)


# -- the same epoch once more ----------------------------------------------------------------------------------------
FRESH = Words(en="the order before set_epoch", zh="调用 set_epoch 之前的顺序")
TWICE = Words(en="the second pass through the same epoch", zh="同一个 epoch 的第二次遍历")
AGAIN = Words(en="the order of epoch 1, when it is set again", zh="再次设为 epoch 1 时的顺序")


def judge_repeats(world: World) -> Iterator[Finding]:
    """The same epoch gives the same order; before set_epoch it is epoch 0's."""
    # Where they share it, each had the epoch that the last one was set to, two further: epoch 1 showed in turn 2.
    shared = all(out["orders"][0]["2"] == out["again"] != out["orders"][0]["1"] for out in world.outputs)
    for rank, output in enumerate(world.outputs):
        orders = output["orders"]
        pairs = [(FRESH, one["0"], fresh) for one, fresh in zip(orders, output["fresh"], strict=True)]
        pairs += [(TWICE, orders[0][str(EPOCHS - 1)], output["twice"]), (AGAIN, orders[0]["1"], output["again"])]
        is_few = world.inputs[0]["num_examples"] < MANY  # then some are alike by chance
        moved = is_few or all(expected != got for _, expected, got in pairs)
        known = ["epoch_of_another"] * (shared or is_few) + ["not_seeded"] * moved
        for what, expected, got in pairs:
            yield expect_equal(what, expected, got, rank=rank, mistakes=dict.fromkeys(known, got))


# -- the shares of an epoch ------------------------------------------------------------------------------------------
LENGTH = Words(en="the number of indices", zh="下标个数")
LEN = Words(en="len(sampler)", zh="len(sampler) ")


def judge_lengths(world: World, shares: dict[tuple[int, int], Shares]) -> Iterator[Finding]:
    """All as long as the smallest length that is enough, and as `len` says."""
    num_examples = world.inputs[0]["num_examples"]
    length, first = math.ceil(num_examples / world.size), shares[0, 0]
    short = {"unequal_shares" if len(set(map(len, first))) > 1 else "tail_dropped": num_examples // world.size}
    for rank, output in enumerate(world.outputs):
        for what, lengths in ((LENGTH, [len(of[rank]) for of in shares.values()]), (LEN, output["lens"])):
            odd = next((one for one in lengths if one != length), length)
            yield expect_equal(what, length, odd, rank=rank, mistakes=short if what is LENGTH else {})


def judge_cover(world: World, shares: dict[tuple[int, int], Shares], unseeded: bool) -> Iterator[Finding]:
    """In every epoch the ranks see every example, and none comes two times more often than another."""
    num_examples = world.inputs[0]["num_examples"]
    length = math.ceil(num_examples / world.size)
    for (_, epoch), of_ranks in shares.items():
        counts = Counter(index for share in of_ranks for index in share)
        missing, extra = set(range(num_examples)) - set(counts), set(counts) - set(range(num_examples))
        whole = all(len(share) == length for share in of_ranks) and not extra
        whole = whole and bool(missing or num_examples < MANY)
        is_apart = num_examples < MANY or disagree(of_ranks)
        apart = ["ranks_shuffle_apart"] if whole and is_apart and not unseeded else []
        apart += ["not_seeded"] if whole and (unseeded or num_examples < MANY) else []
        yield expect(
            not missing,
            f"{len(missing)} of {num_examples} examples are seen by no rank in epoch {epoch}",
            f"epoch {epoch} 中 {num_examples} 个样本有 {len(missing)} 个没有被任何 rank 看到",
            mistakes=apart,
        )
        often = max(counts.values(), default=0) - min(counts.values(), default=0)
        yield expect(
            not extra and often <= 1,
            f"some index of epoch {epoch} does not exist, or comes {often} times more often than another",
            f"epoch {epoch} 中有不存在的下标，或某个下标比别的多出现 {often} 次",
            mistakes=apart,
        )


def disagree(shares: Shares) -> bool:
    """Whether two ranks have examples in common in another order, as from two shuffles and not from one cut twice."""
    pairs = combinations(shares, 2)
    return any([one for one in a if one in b] != [one for one in b if one in a] for a, b in pairs)


# -- one epoch beside another ----------------------------------------------------------------------------------------
def judge_orders(world: World, shares: dict[tuple[int, int], Shares]) -> Iterator[Finding]:
    """Another epoch or another seed gives another order, and each rank other examples."""
    places = range(len(world.inputs[0]["seeds"]))
    epochs = [[shares[place, epoch] for epoch in range(EPOCHS)] for place in places]
    in_order = {of: all(num_descents(share) <= 1 for share in shares[of]) for of in shares}  # 1: the padding
    is_sorted = all(in_order.values())
    yield expect(
        not in_order[0, 0],
        f"with seed {world.inputs[0]['seeds'][0]}, every share of epoch 0 is in order",
        f"seed 为 {world.inputs[0]['seeds'][0]} 时，epoch 0 中每个 rank 的下标都是顺序排列的",
        mistakes=["not_shuffled"] if is_sorted else [],
    )
    constant = all(one.count(one[0]) == EPOCHS for one in epochs)
    for place, of in enumerate(epochs):
        seed, alike = world.inputs[0]["seeds"][place], of.count(of[0]) == EPOCHS
        yield expect(
            len(set(map(str, of))) == EPOCHS,
            f"with seed {seed}, epochs 0, 1 and 2 give {'the same order' if alike else 'two equal orders'}",
            f"seed 为 {seed} 时，epoch 0、1、2 {'的顺序都一样' if alike else '中有两个顺序相同'}",
            mistakes=["not_shuffled"] if is_sorted else ["epoch_ignored"] if constant else [],
        )
    unheard = all(one == epochs[0] for one in epochs)
    yield expect(
        all(a != b for a, b in pairwise(shares[place, 0] for place in places)),
        "in epoch 0 another seed gives the same order",
        "在 epoch 0 中，换一个 seed，顺序却相同",
        mistakes=["not_shuffled"] if is_sorted else ["seed_ignored"] if unheard else [],
    )
    same_sets = [rank for rank in range(world.size) if all(has_one_set(of, rank) for of in epochs)]
    yield expect(
        world.size == 1 or is_sorted or constant or not same_sets,
        f"rank {same_sets[0] if same_sets else 0} sees the same examples in every epoch",
        f"rank {same_sets[0] if same_sets else 0} 在每个 epoch 看到的都是同一批样本",
        mistakes=["shuffled_within"],
    )


def has_one_set(epochs: Sequence[Shares], rank: int) -> bool:
    return len({str(sorted(of_ranks[rank])) for of_ranks in epochs}) == 1


def num_descents(share: Sequence[int]) -> int:
    return sum(after < before for before, after in pairwise(share))


SAMPLER = Task(
    key="03.sampler",
    signature="ShareSampler(num_examples, rank, world_size, seed)",
    make=make,
    act=act,
    judge=judge,
    hints=LAB.hints(
        "not_shuffled",
        "epoch_ignored",
        "seed_ignored",
        "shuffled_within",
        "epoch_of_another",
        "not_seeded",
        "ranks_shuffle_apart",
        "tail_dropped",
        "unequal_shares",
    ),
    axes=Axes(sizes=("uneven", "even", "few")),
)
