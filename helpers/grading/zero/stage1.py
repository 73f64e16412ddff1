"""Judges 08.stage1, and the chapter's exercise 08.zero1_step: ZeRO stage 1, optimizer states in shards.

Every rank reduce-scatters the gradients, updates its shard of the parameters, and all-gathers the updated parameters.
A check runs three steps on live ranks. It compares the parameters after each step with a simulation of all ranks in one
process, and names a mistake if the simulation with this mistake gives the same parameters.
The check's optimizer is gradient descent with momentum, so there is a state to shard. A sum of gradients in place of
their mean changes its steps, which Adam would hide.

From shards.py: `flatten` puts all tensors in one line, `shard_of(flat, rank, n)` is a rank's piece of the padded line,
`shards_of(flat, n)` are all of them, and `shard_length` and `padded_bytes` count their elements and bytes.
`WRONG_PIECES` are functions that take a wrong piece. A *history* is a list with one dict for each step,
which maps "parameter 0" and so on to its values; `judge_history` compares two of them.

How to read it. Each task has three functions. `make_…` draws the inputs of every rank for one case, `run_…` calls the
learner's answer, `submitted`, on one rank, and `judge_…` runs in another process: it compares what the ranks returned
with the right values, and yields one Judgement per comparison. A case is one choice of sizes, dtypes and memory layouts
(`rng.case`), and `rng` draws the numbers. A mistake is a wrong solution that learners often write. Its name, such as
"sum_for_mean", is the key of its hint in hints.yaml. The `expect…` functions compare one value; their `mistakes` maps
such keys to the value that the mistake gives. `words[…]` is a text of messages.yaml, in English and Chinese.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from helpers.grading.cases import CaseGenerator, Variations, with_layout
from helpers.grading.kit.comparisons import COMMA, expect, is_lone_rank_without_messages
from helpers.grading.kit.histories import History, histories_of_mistakes, judge_history
from helpers.grading.kit.model_tools import GradientDescent
from helpers.grading.task import JudgedWorld, Judgement, RankContext, RunFailure, Task
from helpers.grading.zero import LAB
from helpers.grading.zero.shards import (
    OPS,
    WRONG_PIECES,
    TakePiece,
    calls_others,
    expect_calls_and_bytes,
    expect_zero_ops,
    explained,
    flatten,
    is_padding_error,
    naming_unfinished,
    padded_bytes,
    shard_length,
    shard_of,
    shards_of,
)

words = LAB.messages

NUM_STEPS = 3  # of training in one case


# -- 08.stage1 -------------------------------------------------------------------------------------------------------
def make_stage1(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """The same weights on every rank, and for each rank other gradients for three steps.

    Weights are around 10, so that no step brings one near 0, where float32 would lose digits. Except in the first case,
    matrices are stored transposed.
    """
    layout = "transposed" if rng.case.number else "contiguous"
    shapes = draw_shapes(rng, world_size)
    constants = draw_constants(rng)
    weights = [with_layout(10 + rng.tensor(*shape), layout) for shape in shapes]
    # Gradients as [rank][step][parameter].
    steps = [[[rng.tensor(*shape) for shape in shapes] for _ in range(NUM_STEPS)] for _ in range(world_size)]
    return [{"weights": weights, "steps": of_rank} | constants for of_rank in steps]


def draw_constants(rng: CaseGenerator) -> dict[str, float]:
    """The optimizer's learning rate and momentum."""
    return {"lr": rng.one_of(0.05, 0.1, 0.3), "momentum": rng.one_of(0.5, 0.8, 0.9)}


def draw_shapes(rng: CaseGenerator, world_size: int) -> list[tuple[int, ...]]:
    """Zero to three dimensions, and a vector that makes the number of all elements what the case asks for.

    In the case "few" there are only vectors of one element, fewer than ranks.
    """
    if rng.case.sizes == "few":
        return [(1,)] * rng.size(world_size)  # rng.size: here below world_size, but at least 1
    a, b = rng.integer(2, 4), rng.integer(3, 6)
    shapes: list[tuple[int, ...]] = [(a, b), (b,), (), (2, a, 2)]
    # rng.size draws a number of elements that the ranks divide, or not, as the case asks. With the last vector,
    # all elements together leave the same remainder. It has world_size elements more, so that it is never empty.
    missing = (rng.size(world_size) - sum(map(math.prod, shapes))) % world_size
    return [*shapes, (missing + world_size,)]


def run_stage1(submitted, inputs: dict[str, Any], context: RankContext) -> Iterator[None]:
    """Runs the steps with the learner's class `submitted`. At each `yield` another case may take its turn on the ranks.

    Returns the parameters after each step, and what the judge needs to know about side effects.
    """
    parameters, optimizers, steps = [nn.Parameter(one.clone()) for one in inputs["weights"]], [], []

    def make_optimizer(tensors: Any) -> GradientDescent:
        """What the learner's class calls to make the optimizer of its shard; each one is noted."""
        optimizers.append(GradientDescent(tensors, inputs["lr"], inputs["momentum"]))
        return optimizers[-1]

    list_of_caller = list(parameters)  # a copy, to see whether the answer changes its caller's list
    sharded = submitted(list_of_caller, make_optimizer)
    num_first = len(optimizers)  # those that __init__ has made
    for gradients in inputs["steps"]:
        yield
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient.clone()
        sharded.step()
        context.mark("step over")
        steps.append({f"parameter {i}": parameter.detach().clone() for i, parameter in enumerate(parameters)})
    is_same_list = len(list_of_caller) == len(parameters) and all(map(operator.is_, list_of_caller, parameters))
    kept = optimizers[:num_first] or optimizers[-1:]  # those of __init__, or else the last one
    return {
        "history": steps,
        # buffers: those of the momentum, which are these optimizers' only state.
        "state_elements": sum(one.numel() for made in kept for one in made.buffers.values()),
        "num_optimizers": (len(optimizers), num_first),
        "parameters_intact": is_same_list and all(one.requires_grad and one.is_leaf for one in parameters),
    }


@dataclass(frozen=True, kw_only=True)
class Zero1Simulation:
    """Simulates ZeRO stage 1 on all ranks in one process, without a mistake or with one that a field switches on."""

    divisor: float | None = None  # of the summed gradients; None for the number of ranks
    reduces: bool = True  # False: each rank uses its own gradients
    take_shard: TakePiece = shard_of  # the shard of the parameters that the optimizer gets
    gathered: str = "all"  # "own": only the rank's own shard; "none": nothing; "early": the shards before the update
    into_copies: bool = False  # a parameter that is not contiguous stays as it is, since only a copy of it is written
    renews_optimizer: bool = False  # the optimizer is made again at every step
    accumulates: bool = False  # the gradient of the shard is never cleared

    def run(self, world: JudgedWorld) -> list[History]:
        """For each rank its history: the parameters after each step, by name."""
        n = world.size
        weights, lr, momentum = (world.inputs[0][name] for name in ("weights", "lr", "momentum"))
        flats = [flatten(weights)] * n  # of each rank all parameters in one line
        shards = [self.take_shard(flats[0], rank, n).clone() for rank in range(n)]
        # The parameters that never change.
        fixed = {f"parameter {i}": one for i, one in enumerate(weights) if not one.clone().is_contiguous()}
        fixed = fixed if self.into_copies else {}
        # The momentum of each rank's optimizer, and the gradient of its shard.
        buffers, gradients = [torch.zeros_like(one) for one in shards], [torch.zeros_like(one) for one in shards]
        steps: list[list[dict[str, Tensor]]] = [[] for _ in range(n)]
        for step in range(NUM_STEPS):
            local = [flatten(one["steps"][step]) for one in world.inputs]
            mean = sum(local) / (n if self.divisor is None else self.divisor)
            early = list(shards)
            for rank in range(n):
                # What the reduce-scatter gives the rank, and the step of the optimizer with it.
                new = shard_of(mean if self.reduces else local[rank], rank, n)
                gradients[rank] = new + gradients[rank] if self.accumulates else new
                buffers[rank] = (0.0 if self.renews_optimizer else momentum) * buffers[rank] + gradients[rank]
                shards[rank] = shards[rank] - lr * buffers[rank]
            gathered = early if self.gathered == "early" else shards
            flats = [self._gathered(flats[rank], gathered, rank) for rank in range(n)]
            for rank in range(n):
                steps[rank].append(named_parameters(weights, flats[rank]) | fixed)
        return steps

    def _gathered(self, flat: Tensor, shards: list[Tensor], rank: int) -> Tensor:
        """The flat parameters of a rank once it has gathered the updated shards."""
        old = shards_of(flat, len(shards))
        updated = {"none": old, "own": [*old[:rank], shards[rank], *old[rank + 1 :]]}
        return torch.cat(updated.get(self.gathered, shards))[: flat.numel()]


def named_parameters(weights: Sequence[Tensor], flat: Tensor) -> dict[str, Tensor]:
    """The flat line as parameters with their shapes, named as `run_stage1` names them."""
    pieces = flat.split([tensor.numel() for tensor in weights])
    pairs = enumerate(zip(weights, pieces, strict=True))
    return {f"parameter {i}": piece.view(tensor.shape) for i, (tensor, piece) in pairs}


def simulations_of_mistakes(world_size: int) -> dict[str, list[Zero1Simulation]]:
    """For each mistake the simulations that make it, one for each way in which it can be made."""
    return {
        "gather_forgotten": [Zero1Simulation(gathered="own")],
        "not_copied_back": [Zero1Simulation(gathered="none")],
        "sum_for_mean": [Zero1Simulation(divisor=1)],
        "divided_twice": [Zero1Simulation(divisor=world_size**2)],
        "own_gradient": [Zero1Simulation(reduces=False)],
        "wrong_place": [Zero1Simulation(take_shard=take) for take in WRONG_PIECES["wrong_place"]],
        "gathered_early": [Zero1Simulation(gathered="early")],
        "copied_into_a_copy": [Zero1Simulation(into_copies=True)],
        "optimizer_made_anew": [Zero1Simulation(renews_optimizer=True)],
        "gradient_added_up": [Zero1Simulation(accumulates=True)],
    }


def judge_stage1(world: JudgedWorld) -> Iterator[Judgement]:
    """Judges the parameters after each step, the size of the optimizer's state, side effects, and messages."""
    n, lengths = world.size, [one.numel() for one in world.inputs[0]["weights"]]
    right = Zero1Simulation().run(world)

    @cache  # a simulation gives the parameters of all ranks, so it runs once and not again for each rank
    def run_once(simulation: Zero1Simulation) -> list[History]:
        return simulation.run(world)

    for rank, output in enumerate(world.outputs):
        # Where the parameters never change, the copy back is what is missing only if an optimizer has made an update.
        has_state = output["state_elements"] > 0
        known = {k: ways for k, ways in simulations_of_mistakes(n).items() if k != "not_copied_back" or has_state}
        # A function that returns for each mistake the histories of this rank; it is called only if a value is wrong.
        wrong = histories_of_mistakes(lambda simulation, rank=rank: run_once(simulation)[rank], known)
        findings = judge_history(right[rank], output["history"], wrong, rank=rank)
        yield from map(partial(with_element, world), findings)
        yield judge_state_size(output["state_elements"], lengths, n, rank)
        yield from judge_side_effects(output, rank)
    if not is_lone_rank_without_messages(world):  # with one rank it is right to send nothing
        yield from expect_zero_ops(world)
        yield from judge_one_message_each(world, sum(lengths))


def with_element(world: JudgedWorld, finding: Judgement) -> Judgement:
    """Adds to a sentence about a parameter which rank updates the element of which it tells."""
    if finding.ok or finding.compared is None or not finding.compared.is_comparable:
        return finding
    compared, weights = finding.compared, world.inputs[0]["weights"]
    worst = int((compared.got - compared.expected).abs().nan_to_num(nan=math.inf).argmax())
    number = int(re.search(r"parameter (\d+)", finding.message.en)[1])
    element = sum(map(torch.numel, weights[:number])) + worst
    owner = element // shard_length(flatten(weights).numel(), world.size)
    return explained(finding, words["element_of_rank"].format(element, owner, world.size))


def judge_side_effects(output: Mapping[str, Any], rank: int) -> Iterator[Judgement]:
    """There is one optimizer, and the caller's list and its Parameters are what they were."""
    count, num_first = output["num_optimizers"]  # no optimizer passes here, since `judge_state_size` finds it
    known = ["optimizer_made_anew"] if count > num_first else []
    yield expect(count <= 1, words["optimizers_made"].format(count, num_first), rank=rank, mistakes=known)
    yield expect(output["parameters_intact"], words["parameters_replaced"], rank=rank)


def judge_one_message_each(world: JudgedWorld, num_elements: int) -> Iterator[Judgement]:
    """Each step issues one reduce-scatter of all gradients and one all-gather of this rank's parameters.

    Where a rank calls others, that is the mistake, and a missing reduce-scatter or all-gather only follows from it.
    """
    weights = world.inputs[0]["weights"]
    num_bytes = padded_bytes([num_elements], world.size, weights[0].element_size())
    rule = words["line_per_step"].format(NUM_STEPS, num_elements, num_bytes // weights[0].element_size() - num_elements)
    # A rank passes all gradients to a reduce-scatter, and one shard of the parameters to an all-gather.
    for op, payload, mistake in (
        ("reduce_scatter", NUM_STEPS * num_bytes, "own_gradient"),
        ("all_gather", NUM_STEPS * (num_bytes // world.size), "gather_forgotten"),
    ):
        # The mistake that explains 0 calls of `op`; with one call for each parameter, each is split by itself.
        mistakes = {} if calls_others(world) else {mistake: 0, "each_tensor_cut": NUM_STEPS * len(weights)}
        yield from expect_calls_and_bytes(world, op, NUM_STEPS, payload, mistakes, rule)


def judge_state_size(num_state: int, lengths: Sequence[int], n: int, rank: int) -> Judgement:
    """The optimizer has states for one shard; on the last ranks it may leave the padding out.

    num_state: elements for which it has states. lengths: of all parameters. n: the number of ranks.
    """
    num_elements = sum(lengths)
    most = shard_length(num_elements, n)  # elements of a shard with its padding
    least = max(0, min(most, num_elements - rank * most))  # without the padding
    known = {sum(shard_length(one, n) for one in lengths): "each_tensor_cut"}
    known |= {num_elements: "whole_state", most * n: "whole_state", 0: "no_optimizer"}
    mistakes = [known[num_state]] if num_state in known else []
    message = words["optimizer_state"].format(num_state, most, num_elements)
    return expect(least <= num_state <= most, message, rank=rank, mistakes=mistakes)


def recognise_failure(failure: RunFailure) -> list[str]:
    """The hints that fit the error with which a run ended."""
    if is_padding_error(failure):
        return ["not_padded"]
    return ["no_grad_forgotten"] if "in-place operation" in failure.text else []


STAGE_1 = Task(
    key="08.stage1",
    signature="Zero1(parameters, make_optimizer)",
    make_inputs=make_stage1,
    variations=Variations(sizes=("uneven", "even", "few"), dtypes=("float64", "float32")),
    run_submission=run_stage1,
    judge=naming_unfinished(judge_stage1),
    recognise_failure=recognise_failure,
    # The keys are the same for any number of ranks, so 2 is as good as another.
)


# -- 08.zero1_step ---------------------------------------------------------------------------------------------------
def make_step(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """All weights and all gradients as one line whose length the ranks divide, so that nothing is padded.

    Weights are around 10, as in `make_stage1`.
    """
    length = world_size * rng.integer(2, 5)
    constants = draw_constants(rng)
    weights = [10 + rng.tensor(length)]
    # Gradients as [rank][step], each a list of the one line.
    steps = [[[rng.tensor(length)] for _ in range(NUM_STEPS)] for _ in range(world_size)]
    return [{"weights": weights, "steps": of_rank} | constants for of_rank in steps]


def run_step(submitted: Callable, inputs: dict[str, Any], context: RankContext) -> Iterator[None]:
    """Runs the steps with the learner's function, which gets the gradients, this rank's shard and the optimizer's step.

    The step has the same momentum as that of a GradientDescent.
    """
    shard = shard_of(inputs["weights"][0], context.rank, context.world_size).clone()
    velocity, steps = torch.zeros_like(shard), []

    def step(tensor: Tensor, gradient: Tensor) -> None:
        """One step of the optimizer on a tensor, in place."""
        velocity.mul_(inputs["momentum"]).add_(gradient)
        tensor.sub_(inputs["lr"] * velocity)

    for (gradient,) in inputs["steps"]:
        yield
        flat = gradient.clone()
        submitted(flat, shard, step)  # replaces the gradients in `flat` by the updated parameters
        steps.append({"parameter 0": flat})
    return steps


def judge_step(world: JudgedWorld) -> Iterator[Judgement]:
    """Judges the parameters after each step on each rank, and the messages of all steps."""
    simulations = {"sum_for_mean": [Zero1Simulation(divisor=1)], "own_gradient": [Zero1Simulation(reduces=False)]}
    right = Zero1Simulation().run(world)
    for rank, steps in enumerate(world.outputs):
        wrong = histories_of_mistakes(lambda simulation, rank=rank: simulation.run(world)[rank], simulations)
        yield from map(partial(with_element, world), judge_history(right[rank], steps, wrong, rank=rank))
    if is_lone_rank_without_messages(world):
        return
    for rank, log in enumerate(world.logs):
        others = [op for op in log.ops() if op not in OPS]
        message = words["calls_others"].format(COMMA.join(others))
        yield expect(not others, message, rank=rank, mistakes=["all_reduced"] if "all_reduce" in others else [])
    yield from judge_one_message_each(world, world.inputs[0]["weights"][0].numel())


ZERO1_STEP = Task(
    key="08.zero1_step",
    signature="zero1_step(flat, shard, step)",
    make_inputs=make_step,
    variations=Variations(dtypes=("float64", "float32")),
    run_submission=run_step,
    judge=judge_step,
    world_sizes=(1, 2, 3, 4),  # for an exercise of the chapter; the task of the lab is tried on 5 ranks as well
)
