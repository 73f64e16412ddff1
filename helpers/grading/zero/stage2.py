"""Judges 08.stage2, and the chapter's exercise 08.global_norm: ZeRO stage 2, gradients in shards.

The answer to 08.stage2 registers hooks that reduce-scatter each gradient as soon as backward has computed it, keep the
shard and free the full gradient. A check runs several backward passes on live ranks. It measures what stays allocated
after each, compares the shards with the gradients of one process, and looks at when each message was sent.

From shards.py: gradients are flat lines, `shard_of(flat, rank, n)` is a rank's piece of the line padded with zeros, and
`wrong_pieces` are other pieces of it. `padded_bytes` counts the bytes of lines with their padding. A
MemoryMeter counts the bytes of all tensors that are created within it, and a ReleaseWait gives memory a moment to be
freed before they are read.

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
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from helpers.grading.cases import CaseGenerator, Variations
from helpers.grading.kit import model_tools
from helpers.grading.kit.comparisons import (
    expect,
    expect_num_calls,
    expect_number,
    expect_payload_bytes,
    is_close,
    is_lone_rank_without_messages,
)
from helpers.grading.kit.model_tools import MemoryMeter, one_thread
from helpers.grading.task import JudgedWorld, Judgement, RankContext, Task
from helpers.grading.zero import LAB
from helpers.grading.zero.shards import (
    ReleaseWait,
    expect_shard,
    expect_zero_ops,
    explained,
    is_padding_error,
    naming_unfinished,
    padded_bytes,
    shard_of,
    wrong_pieces,
)
from helpers.learner.words import Words
from helpers.quantities.units import format_bytes

words = LAB.messages

# -- 08.stage2: run it on a rank -------------------------------------------------------------------------------------
NUM_EXAMPLES = 2  # in a micro-batch
SLACK_BYTES = 512  # for small tensors that an answer may keep
INDIVISIBLE = (7, 11, 13, 17)  # widths; 2, 3, 4 and 5 ranks divide neither one of them nor a product of two
GRADIENT_READY, BACKWARD_OVER = "gradient", "backward over"  # instants that a rank marks on the clock of its log
# How a sentence names what finish() returned in step 1 and step 2; {} is filled with the index of the parameter.
SHARDS = [Words(en=f"shards[{{}}] of step {n}", zh=f"第 {n} 步的 shards[{{}}] ") for n in (1, 2)]


def make_stage2(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """A small MLP, and micro-batches for two steps: in the first case one for step 1 and two for step 2.

    The ranks divide the numbers of elements of all parameters or of none, or a parameter has fewer elements than there
    are ranks. All numbers are positive, so that no sum of gradients cancels in float32.
    """
    n, dtype = world_size, rng.case.dtypes
    widths = {
        "uneven": [rng.one_of(*INDIVISIBLE) for _ in range(3)],
        "even": [n * rng.integer(2, 4) for _ in range(3)],
        "few": [rng.integer(1, max(1, n - 1)), 1, 1],
    }[rng.case.sizes]
    micro_batches = rng.one_of((1, 2), (1, 3), (2, 1)) if rng.case.number else (1, 2)
    weights = model_tools.random_weights(rng, model_tools.mlp(widths))
    # 0.3 keeps the positive terms small, so that tanh is not saturated.
    weights = {name: 0.3 * weight.abs().to(getattr(torch, dtype)) for name, weight in weights.items()}
    common = {"widths": widths, "dtype": dtype, "weights": weights, "micro_batches": micro_batches}
    num_batches = sum(micro_batches)
    # Each rank has the same model and inputs of its own for every micro-batch.
    return [common | {"x": [rng.tensor(NUM_EXAMPLES, widths[0]).abs() for _ in range(num_batches)]} for _ in range(n)]


def model_of(inputs: Mapping[str, Any]) -> nn.Module:
    """The MLP of a rank's inputs, with its weights."""
    model = model_tools.mlp(inputs["widths"]).to(getattr(torch, inputs["dtype"]))
    model.load_state_dict(inputs["weights"])
    return model


def run_stage2(submitted, inputs: dict[str, Any], context: RankContext) -> Iterator[None]:
    """Runs two steps of some micro-batches each, with `finish()` at the end of each step.

    The learner's function registers its hooks and returns `finish`, which returns the shards of all gradients. At each
    `yield` another case may take its turn on the ranks.
    """
    model = model_of(inputs)
    parameters, grad_bytes = list(model.parameters()), []  # grad_bytes: of all .grad, at several moments

    def before_hook(parameter: nn.Parameter) -> None:
        """Runs before the learner's hook: notes what the gradients that came earlier still hold."""
        context.mark(GRADIENT_READY)
        grad_bytes.append(sum(bytes_of(p.grad) for p in parameters if p is not parameter))

    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(before_hook)
    list_of_caller = list(parameters)  # a copy, to see whether the answer changes its caller's list
    finish, steps, batches = submitted(list_of_caller), [], iter(inputs["x"])
    if not callable(finish):
        return {"finish": type(finish).__name__}
    wait, limit, returned = ReleaseWait(), bytes_allowed(parameters, context.world_size), []
    for num_batches in inputs["micro_batches"]:
        bytes_left = []
        for _ in range(num_batches):
            yield
            bytes_left.append(bytes_after_backward(model, next(batches), wait, limit))
            grad_bytes.append(sum(bytes_of(p.grad) for p in parameters))
            context.mark(BACKWARD_OVER)
        shards = finish()
        returned.append(shards)
        copies = [one.clone() for one in shards] if is_list_of_tensors(shards) else type(shards).__name__
        steps.append({"shards": copies, "bytes_left": bytes_left})
    is_same_list = len(list_of_caller) == len(parameters) and all(map(operator.is_, list_of_caller, parameters))
    # Shards of the first step must keep their values while the second step runs.
    is_stable = all(are_unchanged(shards, step["shards"]) for shards, step in zip(returned, steps, strict=True))
    memory = {"grad_bytes": grad_bytes, "list_intact": is_same_list, "shards_stable": is_stable}
    return {"finish": "callable", "steps": steps} | memory


def are_unchanged(shards: Any, copies: Any) -> bool:
    """Whether the shards that finish() returned still have their values.

    True also for anything but a list of tensors, which `judge_values` rejects.
    """
    return not is_list_of_tensors(copies) or (len(shards) == len(copies) and all(map(torch.equal, shards, copies)))


def bytes_of(gradient: Tensor | None) -> int:
    """The bytes of a gradient's elements; 0 where there is none."""
    return 0 if gradient is None else gradient.numel() * gradient.element_size()


def is_list_of_tensors(shards: Any) -> bool:
    """Whether what finish() returned is a list or tuple of tensors."""
    return isinstance(shards, list | tuple) and all(isinstance(one, Tensor) for one in shards)


def bytes_allowed(parameters: Sequence[Tensor], world_size: int) -> float:
    """The bytes that a rank may hold after backward: all its shards, a margin of half their size, and SLACK_BYTES."""
    return 1.5 * padded_gradient_bytes(parameters, world_size) / world_size + SLACK_BYTES


def padded_gradient_bytes(parameters: Sequence[Tensor], world_size: int) -> int:
    """Bytes of the shards of these parameters' gradients on all ranks together."""
    return padded_bytes([one.numel() for one in parameters], world_size, parameters[0].element_size())


def bytes_after_backward(model: nn.Module, x: Tensor, wait: ReleaseWait, limit: float) -> int:
    """Runs forward and backward of a micro-batch, and returns the bytes that it leaves allocated.

    limit: bytes that are right; if there are more, `wait` gives a message that has just ended time to free its own.
    """
    with MemoryMeter([*model.parameters(), x]) as meter:
        loss = model(x).square().sum()
        loss.backward()
        del loss
        return wait.bytes_held(meter, limit)


# -- 08.stage2: compare with one process -----------------------------------------------------------------------------
def local_gradients(inputs: dict[str, Any], batch: int) -> list[Tensor]:
    """The flat gradients of one rank for one micro-batch."""
    model = model_of(inputs)
    model(inputs["x"][batch]).square().sum().backward()
    return [parameter.grad.flatten() for parameter in model.parameters()]


class StepGradients:
    """The gradients of one step, as batches[micro-batch][rank][parameter], each flat."""

    def __init__(self, world: JudgedWorld, numbers: Sequence[int]):
        """numbers: those of the step's micro-batches, counted through all steps."""
        self.n = world.size
        with one_thread():  # faster for so small a model
            self.batches = [[local_gradients(one, number) for one in world.inputs] for number in numbers]

    def mean(self, i: int, weights: Sequence[float] = ()) -> Tensor:
        """Of parameter i the mean over ranks, summed over micro-batches, each times its weight (1 if none is given)."""
        weights = weights or [1.0] * len(self.batches)
        pairs = zip(self.batches, weights, strict=True)
        return sum(weight * sum(rank[i] for rank in batch) for batch, weight in pairs) / self.n

    def local(self, rank: int, i: int) -> Tensor:
        """The rank's own gradient of parameter i, summed over micro-batches."""
        return sum(batch[rank][i] for batch in self.batches)

    def wrong_shards(self, rank: int, i: int, previous: StepGradients | None) -> dict[str, Any]:
        """What each mistake gives as shard of parameter i on this rank, a list where there are several ways.

        previous: the gradients of the step before, if there is one.
        """
        n, count, local = self.n, len(self.batches), shard_of(self.local(rank, i), rank, self.n)

        def shard(*weights: float) -> Tensor:
            """The shard if each micro-batch counts with its weight."""
            return shard_of(self.mean(i, weights), rank, n)

        wrong = wrong_pieces(self.mean(i), rank, n) | {
            "sum_for_mean": shard() * n,
            # With each micro-batch the sum so far may be divided once more.
            "divided_twice": [shard() / n, shard(*(float(n) ** (j + 1 - count) for j in range(count)))],
            "own_gradient": [local, local / n],
        }
        if count > 1:
            wrong["one_micro_batch_only"] = [shard(*(float(j == k) for j in range(count))) for k in (0, count - 1)]
            wrong["mean_of_micro_batches"] = shard() / count
            # A .grad that is kept also has the earlier micro-batches, so with three of them the first is sent three
            # times, the second twice and the last once.
            wrong["gradient_kept"] = shard(*(float(times) for times in range(count, 0, -1)))
        if previous is not None:
            wrong["step_before_kept"] = [shard() + shard_of(previous.mean(i), rank, n)]
        return wrong


def judge_stage2(world: JudgedWorld) -> Iterator[Judgement]:
    """Judges memory, then values, then messages; the messages only where there is somebody to send to."""
    kinds = [output["finish"] for output in world.outputs]  # what each rank's answer returned, by its type
    has_finish = kinds == ["callable"] * world.size
    yield expect(has_finish, words["no_function_returned"].format(kinds[0]))
    if not has_finish:
        return
    weights = list(world.inputs[0]["weights"].values())
    yield from judge_memory(world, weights)
    yield from judge_values(world, len(weights))
    if is_lone_rank_without_messages(world):
        return
    yield from judge_order(world, len(weights))
    yield from expect_zero_ops(world)
    num_batches = sum(world.inputs[0]["micro_batches"])
    num_bytes = num_batches * padded_gradient_bytes(weights, world.size)
    for finding in expect_payload_bytes(world, num_bytes, "reduce_scatter"):
        yield explained(finding, words["gradients_sent"].format(num_batches, len(weights)))


def judge_order(world: JudgedWorld, num_parameters: int) -> Iterator[Judgement]:
    """Each backward pass sends one message per parameter, the first one before the last gradient is computed."""
    for rank, (log, marks) in enumerate(zip(world.logs, world.marks, strict=True)):
        start = 0.0
        for end in [when for name, when in marks if name == BACKWARD_OVER]:
            last_gradient = max(when for name, when in marks if name == GRADIENT_READY and when < end)
            sent = [event for event in log.events if start < event.start < end]
            # A rank that never sends anything can only use its own gradients.
            mistakes = ["after_backward"] if log.events else ["own_gradient"]
            message = words["nothing_overlaps"]
            yield expect(any(event.start < last_gradient for event in sent), message, rank=rank, mistakes=mistakes)
            # The comparison above already says so if nothing was sent.
            message = words["messages_of_a_backward"].format(len(sent), num_parameters)
            yield expect(not sent or len(sent) == num_parameters, message, rank=rank)
            start = end  # the next backward pass begins


def judge_memory(world: JudgedWorld, weights: Sequence[Tensor]) -> Iterator[Judgement]:
    """Full gradients are freed as they come, a micro-batch leaves nothing but shards, and results stay as they are."""
    shards = format_bytes(padded_gradient_bytes(weights, world.size) // world.size)
    for rank, output in enumerate(world.outputs):
        in_grad = max(output["grad_bytes"])
        message = words["gradients_left"].format(format_bytes(in_grad))
        yield expect(in_grad == 0, message, rank=rank, mistakes=["gradient_kept"])
        left = max(num_bytes for step in output["steps"] for num_bytes in step["bytes_left"])
        # Where .grad is kept, too many bytes are left because of it, which has been said already.
        is_small = left <= bytes_allowed(weights, world.size) or in_grad > 0
        message = words["bytes_left"].format(format_bytes(left), shards)
        yield expect(is_small, message, rank=rank, mistakes=["whole_buffer_kept"])
        yield expect(output["list_intact"], words["parameter_list_changed"], rank=rank)
        yield expect(output["shards_stable"], words["shards_change"], rank=rank, mistakes=["shards_used_again"])


def judge_values(world: JudgedWorld, num_parameters: int) -> Iterator[Judgement]:
    """finish() returns one shard per parameter, in the order of the parameters."""
    counts = world.inputs[0]["micro_batches"]  # of each step
    steps = [StepGradients(world, range(sum(counts[:i]), sum(counts[: i + 1]))) for i in range(len(counts))]
    has_sent = all(log.count("reduce_scatter") == num_parameters * sum(counts) for log in world.logs)
    for rank, output in enumerate(world.outputs):
        for number, (step, outcome) in enumerate(zip(steps, output["steps"], strict=True)):
            got = outcome["shards"]
            is_complete = isinstance(got, list) and len(got) == num_parameters
            if isinstance(got, list):
                message = words["number_of_shards"].format(number + 1, len(got), num_parameters)
                # In the second step a longer list still has the shards of the step before.
                known = ["step_before_kept"] if number and len(got) > num_parameters else []
            else:  # `run_stage2` stores the type of anything but a list of tensors
                message = words["finish_returns"].format(got, num_parameters)
                known = ["nothing_returned"] if got == "NoneType" else []
            yield expect(is_complete, message, rank=rank, mistakes=known)
            if not is_complete:
                break
            means = [step.mean(i) for i in range(num_parameters)]
            right = [shard_of(mean, rank, world.size) for mean in means]
            # Backward computes the gradients of the last parameters first, so a list in that order is reversed.
            is_reversed = all(map(is_close, reversed(right), got))
            rule = words["mean_then_sum"].format(world.size, counts[number])
            for i, (mean, expected, one) in enumerate(zip(means, right, got, strict=True)):
                mistakes = {"order_of_arrival": one} if is_reversed else {}
                if not (is_reversed or is_close(expected, one)):
                    mistakes = step.wrong_shards(rank, i, steps[number - 1] if number else None)
                    if has_sent:  # it was reduced, and something else was taken
                        mistakes["result_not_used"] = mistakes.pop("own_gradient")
                what, place = SHARDS[number].format(i), (rank, world.size)
                yield expect_shard(what, mean, one, place, rank=rank, mistakes=mistakes, more=rule)


STAGE_2 = Task(
    key="08.stage2",
    signature="scatter_gradients(parameters)",
    make_inputs=make_stage2,
    variations=Variations(sizes=("uneven", "even", "few"), dtypes=("float64", "float32")),
    run_submission=run_stage2,
    judge=naming_unfinished(judge_stage2),
    recognise_failure=lambda failure: ["not_padded"] if is_padding_error(failure) else [],
)


# -- 08.global_norm --------------------------------------------------------------------------------------------------
NUMBER_BYTES = 8  # of one float64


def make_norm(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Gradient shards of any shape on each rank; with three ranks or more the last one has none."""
    counts = [rng.integer(1, 4) for _ in range(world_size)]
    if world_size > 2:
        counts[-1] = 0
    return [{"shards": [rng.tensor(rng.integer(1, 6)) for _ in range(count)]} for count in counts]


def run_norm(submitted, inputs: dict[str, Any], context: RankContext) -> float:
    """The norm that the learner's function returns on this rank, as a number."""
    return float(submitted(list(inputs["shards"])))


def judge_norm(world: JudgedWorld) -> Iterator[Judgement]:
    """Every rank returns the norm over the shards of all ranks, after an all-reduce of one number."""
    norms = [norm_of(one["shards"]) for one in world.inputs]
    right = math.sqrt(sum(norm**2 for norm in norms))
    for rank, got in enumerate(world.outputs):
        wrong = {"norm_of_own": norms[rank], "norms_added": sum(norms), "root_forgotten": right**2}
        finding = expect_number(words["norm"], right, got, rank=rank, mistakes=wrong)
        yield explained(finding, words["squares"].format(f"{norms[rank] ** 2:.6g}", world.size, f"{right**2:.6g}"))
    if not is_lone_rank_without_messages(world):
        yield from expect_num_calls(world, "all_reduce", 1)
        for rank, log in enumerate(world.logs):
            message = words["one_number_sent"].format(format_bytes(log.payload_bytes()))
            yield expect(log.payload_bytes() <= NUMBER_BYTES, message, rank=rank)


def norm_of(tensors: list[Tensor]) -> float:
    """The root of the sum of all squares, in float64."""
    return math.sqrt(sum(float(tensor.double().square().sum()) for tensor in tensors))


GLOBAL_NORM = Task(
    key="08.global_norm",
    signature="global_norm(shards)",
    make_inputs=make_norm,
    run_submission=run_norm,
    judge=judge_norm,
    world_sizes=(1, 2, 3, 4),  # for an exercise of the chapter; the task of the lab is tried on 5 ranks as well
)
