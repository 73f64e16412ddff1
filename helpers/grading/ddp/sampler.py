"""Judges 03.sampler of lab 03: which examples each rank sees in each epoch.

The learner's class is tried on live ranks with three seeds and three epochs, and nothing may be sent. There are many
right orders, so none is compared with a stored one. The judge checks what every right order has: shares of one length,
every example seen, the same order for the same epoch and seed, and other orders for others.

The grader calls three functions:
  make_sampler   draws the inputs, one dict per rank; `rng.case.sizes` says whether the ranks divide the number of
                 examples ("even"), do not ("uneven"), or are more than the examples ("few")
  run_sampler    runs the learner's class, `submitted`, on each live rank; what it returns is that rank's output
  judge_sampler  makes Judgements from the inputs and outputs of a JudgedWorld, each a list by rank

A mistake is a wrong solution that learners often write, and mistakes.yaml has each. Here the judge names them itself,
by the key of the hint, such as "not_shuffled", because each way to seed the shuffle gives other orders.
An `expect…` function that finds a wrong value names keys of its argument `mistakes`: all if it is a list; if it is a
dict, those whose value is the learner's. `words["…"]` is a sentence of messages.yaml, or what a sentence calls a value.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise
from typing import Any

from helpers.grading.ddp import LAB
from helpers.grading.kit.comparisons import expect, expect_equal, expect_only_ops, with_rule
from helpers.grading.task import JudgedWorld, Judgement, RankContext, Task, Variations
from helpers.grading.tensor_cases import CaseGenerator

words = LAB.messages

NUM_EPOCHS = 3
MANY = 24  # examples: two shuffles of so many, or more, do not give the same order by chance
Shares = list[list[int]]  # shares[rank] are the indices that this rank sees in one epoch


def make_sampler(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Draws three seeds and the number of examples: many, divisible by the ranks or not, or fewer than ranks.

    The first seed is 0, so that a sampler which multiplies seed and epoch has the same order in every epoch.
    """
    num_examples, seed = (MANY + rng.integer(0, 2)) * world_size, rng.integer(1, 10**6)
    if rng.case.sizes == "uneven":
        # From 3 ranks on, two examples or more must be repeated, so that all shares have one length.
        num_examples += rng.integer(1, max(1, world_size - 2))
    elif rng.case.sizes == "few":
        num_examples = max(1, (world_size - 1) // 2)  # so few that some example comes more than twice
    return [{"num_examples": num_examples, "seeds": [0, seed, seed + 1]} for _ in range(world_size)]


def run_sampler(submitted, inputs: dict[str, Any], context: RankContext) -> dict[str, Any]:
    """Makes one sampler per seed, and lets them take turns, each in another epoch, since none may affect the others.

    Returns `first`, the order of each sampler before set_epoch is called; `orders`, for each sampler its order in each
    epoch; `twice`, a second pass of sampler 0 through the epoch of its last turn; `again`, its epoch 1, set once more;
    and `lengths`, the len() of each new sampler, and once more at the end.
    """
    samplers = [submitted(inputs["num_examples"], context.rank, context.world_size, seed) for seed in inputs["seeds"]]
    lengths = [len(sampler) for sampler in samplers]
    outputs: dict[str, Any] = {"first": [indices(sampler) for sampler in samplers], "orders": [{} for _ in samplers]}
    for turn in range(NUM_EPOCHS):
        epochs = [(turn + number) % NUM_EPOCHS for number in range(len(samplers))]
        for sampler, epoch in zip(samplers, epochs, strict=True):
            sampler.set_epoch(epoch)
        for sampler, epoch, orders in zip(samplers, epochs, outputs["orders"], strict=True):
            orders[epoch] = indices(sampler)
    outputs["twice"] = indices(samplers[0])
    samplers[0].set_epoch(1)
    return outputs | {"again": indices(samplers[0]), "lengths": lengths + [len(sampler) for sampler in samplers]}


def indices(sampler) -> list[int]:
    """One pass through the sampler."""
    return [int(index) for index in sampler]


def judge_sampler(world: JudgedWorld) -> Iterator[Judgement]:
    """Expects no messages, shares of one length that cover all examples, and orders that follow seed and epoch."""
    yield from expect_only_ops(world, [])
    # shares[number of the seed, epoch][rank]. On the way from the ranks the keys of a dict become texts, so str(epoch).
    shares = {
        (number, epoch): [output["orders"][number][str(epoch)] for output in world.outputs]
        for number in range(len(world.inputs[0]["seeds"]))
        for epoch in range(NUM_EPOCHS)
    }
    repeats = list(judge_repeats(world))
    yield from judge_lengths(world, shares)
    yield from judge_coverage(world, shares, is_repeatable=all(judgement.ok for judgement in repeats))
    yield from repeats
    if world.inputs[0]["num_examples"] >= MANY:
        yield from judge_orders(world, shares)


# -- the same epoch once more ----------------------------------------------------------------------------------------
def judge_repeats(world: JudgedWorld) -> Iterator[Judgement]:
    """Expects the same order whenever an epoch is repeated, and the order of epoch 0 before set_epoch is called."""
    # With few examples orders may be equal by chance, so neither mistake can be ruled out, and both are named.
    is_few = world.inputs[0]["num_examples"] < MANY
    for rank, output in enumerate(world.outputs):
        orders = output["orders"]
        what = words["order_before_set_epoch"]
        # Each comparison has the name of the order, the order when it was seen first, and the one that repeats it.
        comparisons = [(what, of_seed["0"], first) for of_seed, first in zip(orders, output["first"], strict=True)]
        comparisons += [
            (words["second_pass"], orders[0][str(NUM_EPOCHS - 1)], output["twice"]),
            (words["order_of_epoch_1_again"], orders[0]["1"], output["again"]),
        ]
        is_new = [expected != got for _, expected, got in comparisons]
        mistakes = keys_of(
            # Samplers that share one variable for the epoch gave epoch 1 in the epoch that the last sampler had set.
            epoch_of_another=is_few or (is_new[-1] and sum(is_new) == 1),
            not_seeded=is_few or all(is_new),
            pass_changes_order=is_few or (is_new[-2] and sum(is_new) == 1),
            first_epoch_not_0=is_few or not any(is_new[-2:]),
        )
        for what, expected, got in comparisons:
            # expect_equal names the keys whose value is the learner's order. With it for every key, it names all.
            judgement = expect_equal(what, expected, got, rank=rank, mistakes=dict.fromkeys(mistakes, got))
            yield from with_rule(words["order_rule"], [judgement])


def keys_of(**is_possible: bool) -> list[str]:
    """The mistakes that are possible, by the keys of their hints."""
    return [key for key, possible in is_possible.items() if possible]


# -- the shares of an epoch ------------------------------------------------------------------------------------------
def judge_lengths(world: JudgedWorld, shares: dict[tuple[int, int], Shares]) -> Iterator[Judgement]:
    """Expects shares of the smallest length that is enough, and `len` to return it."""
    num_examples = world.inputs[0]["num_examples"]
    length = math.ceil(num_examples / world.size)
    lengths = list(map(len, shares[0, 0]))
    # With fewer examples than ranks a share has one index. Whoever repeats the order just once has two of each example.
    is_padded_once = lengths == [int(rank < 2 * num_examples) for rank in range(world.size)]
    # Several mistakes give a rank the length that is rounded down.
    known = "padded_once" if is_padded_once else "unequal_shares" if len(set(lengths)) > 1 else "tail_dropped"
    mistakes = {known: num_examples // world.size}
    wrong_len = {"length_of_all": num_examples, "length_rounded_down": num_examples // world.size}
    rule = words["length_rule"].format(num_examples, world.size, length)
    for rank, output in enumerate(world.outputs):
        real_length = first_other(length, [len(of_ranks[rank]) for of_ranks in shares.values()])
        said_length = first_other(length, output["lengths"])
        judgements = [
            expect_equal(words["num_indices"], length, real_length, rank=rank, mistakes=mistakes),
            expect_equal(words["len_of_sampler"], length, said_length, rank=rank, mistakes=wrong_len),
        ]
        yield from with_rule(rule, judgements)


def first_other(expected: int, lengths: Sequence[int]) -> int:
    """The first length that is not the expected one; if there is none, the expected one."""
    return next((length for length in lengths if length != expected), expected)


def judge_coverage(
    world: JudgedWorld, shares: dict[tuple[int, int], Shares], is_repeatable: bool
) -> Iterator[Judgement]:
    """Expects that the ranks together see every example, and that the counts of two examples differ by 1 at most.

    is_repeatable: whether an epoch that is set again has the same order. If not, each rank takes its share of another
    order, which explains missing examples; otherwise ranks that shuffle differently do. With few, either may be true.
    """
    num_examples = world.inputs[0]["num_examples"]
    length, is_few = math.ceil(num_examples / world.size), num_examples < MANY
    for (_, epoch), of_ranks in shares.items():
        counts = Counter(index for share in of_ranks for index in share)  # how often each example is seen
        missing, invalid = set(range(num_examples)) - set(counts), set(counts) - set(range(num_examples))
        mistakes = []
        has_valid_shares = all(len(share) == length for share in of_ranks) and not invalid
        if has_valid_shares and (missing or is_few):  # few examples may all be seen, yet some of them too often
            is_double = any(len(set(share)) < len(share) for share in of_ranks)
            mistakes = keys_of(
                ranks_shuffle_apart=is_repeatable and (is_few or (has_two_orders(of_ranks) and not is_double)),
                not_seeded=is_few or not is_repeatable,
                drawn_twice=is_few or (is_repeatable and is_double),
            )
        if missing and world.size > 1 and all(share == of_ranks[0] for share in of_ranks):
            mistakes.append("rank_ignored")
        message = words["examples_never_seen"].format(len(missing), num_examples, epoch)
        yield expect(not missing, message, mistakes=mistakes)
        message = words["invalid_index"].format(min(invalid, default=0), num_examples)
        from_one = keys_of(counted_from_one=invalid == {num_examples} and 0 in missing)
        yield expect(not invalid, message, mistakes=from_one)
        if not counts:
            continue
        (most, often), (least, rarely) = counts.most_common()[0], counts.most_common()[-1]
        # The examples that come more than once more than another, which is one if the rest is filled with copies of it.
        too_often = [index for index, count in counts.items() if count > rarely + 1]
        mistakes += keys_of(one_repeated=not missing and len(too_often) == 1)
        message = words["too_often"].format(most=most, often=often, least=least, rarely=rarely, epoch=epoch)
        yield expect(not too_often, message, mistakes=mistakes)


def has_two_orders(shares: Shares) -> bool:
    """Whether two ranks see their common examples in different orders.

    One shuffle that is divided among the ranks cannot give that.
    """
    for a, b in combinations(shares, 2):
        if [index for index in a if index in b] != [index for index in b if index in a]:
            return True
    return False


# -- one epoch compared with another ---------------------------------------------------------------------------------
def judge_orders(world: JudgedWorld, shares: dict[tuple[int, int], Shares]) -> Iterator[Judgement]:
    """Expects shuffled orders, which differ between epochs and between seeds, and other examples in each epoch."""
    seeds = world.inputs[0]["seeds"]
    by_seed = [[shares[number, epoch] for epoch in range(NUM_EPOCHS)] for number in range(len(seeds))]
    # A share in ascending order may descend once, where the examples that fill the last share begin.
    is_ascending = {key: all(num_descents(share) <= 1 for share in of_ranks) for key, of_ranks in shares.items()}
    same_sets = [rank for rank in range(world.size) if all(has_one_set(epochs, rank) for epochs in by_seed)]
    # Whoever never shuffles seems to ignore epoch and seed as well, so only the first that applies is named. Whoever
    # multiplies seed and epoch has one order with seed 0 alone, since 0 times any epoch is 0.
    mistakes = keys_of(
        not_shuffled=all(is_ascending.values()),
        epoch_ignored=all(epochs.count(epochs[0]) == NUM_EPOCHS for epochs in by_seed),
        seed_times_epoch=by_seed[0].count(by_seed[0][0]) == NUM_EPOCHS,
        seed_ignored=all(epochs == by_seed[0] for epochs in by_seed),
        shuffled_within=world.size > 1 and bool(same_sets),
    )[:1]
    yield expect(not is_ascending[0, 0], words["share_in_order"].format(seeds[0]), mistakes=mistakes)
    for seed, epochs in zip(seeds, by_seed, strict=True):
        num_orders = len(set(map(str, epochs)))
        message = words["one_order" if num_orders == 1 else "two_equal_orders"].format(seed)
        yield expect(num_orders == NUM_EPOCHS, message, mistakes=mistakes)
    has_new_orders = all(one[0] != next_one[0] for one, next_one in pairwise(by_seed))  # in epoch 0, with each seed
    yield expect(has_new_orders, words["seed_without_effect"], mistakes=mistakes)
    has_other_cause = world.size == 1 or mistakes in (["not_shuffled"], ["epoch_ignored"])
    message = words["same_examples"].format(same_sets[0] if same_sets else 0)
    yield expect(has_other_cause or not same_sets, message, mistakes=mistakes)
    # by_epoch[epoch][number of the seed]
    by_epoch = list(zip(*by_seed, strict=True))
    fixed = [rank for rank in range(world.size) if any(has_one_set(of_seeds, rank) for of_seeds in by_epoch)]
    has_other_cause |= bool(same_sets) or not has_new_orders
    message = words["same_examples_for_seeds"].format(fixed[0] if fixed else 0)
    yield expect(has_other_cause or not fixed, message, mistakes=["seed_within_share"])


def has_one_set(epochs: Sequence[Shares], rank: int) -> bool:
    """Whether a rank sees the same set of examples in every epoch."""
    return len({str(sorted(of_ranks[rank])) for of_ranks in epochs}) == 1


def num_descents(share: Sequence[int]) -> int:
    """How often an index is smaller than the one before it."""
    return sum(after < before for before, after in pairwise(share))


SAMPLER = Task(
    key="03.sampler",
    signature="ShareSampler(num_examples, rank, world_size, seed)",
    make_inputs=make_sampler,
    run_submission=run_sampler,
    judge=judge_sampler,
    variations=Variations(sizes=("uneven", "even", "few")),
)
