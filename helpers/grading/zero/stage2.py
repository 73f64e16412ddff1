"""Judges 08.stage2, and the chapter's exercise 08.global_norm: ZeRO stage 2, gradients in shards.

The answer to 08.stage2 registers hooks that reduce-scatter each gradient as soon as backward has computed it, keep the
shard and free the full gradient. A check runs several backward passes on live ranks. It measures what stays allocated
after each, compares the shards with the gradients of one process, and looks at when each message was sent.

From shards.py: gradients are flat lines, `expect_shard` compares a rank's piece of the line padded with zeros, and
`padded_bytes` counts the bytes of lines with their padding. A MemoryMeter counts the bytes of all tensors that are
created within it, and a ReleaseWait gives memory a moment to be freed before they are read.

How to read it. Each task has three functions. `make_…` draws the inputs of every rank for one case, `run_…` calls the
learner's answer, `submitted`, on one rank, and `judge_…` runs in another process: it compares what the ranks returned
with the right values, and yields one Judgement per comparison. A case is one choice of sizes, dtypes and memory layouts
(`rng.case`), and `rng` draws the numbers. The `expect…` functions compare one value. `words[…]` is a text of
messages.yaml, in English and Chinese. A mistake is a wrong solution that learners often write; its name, such as
"gradient_kept", is the key of its hint in hints.yaml.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from helpers.grading.kit import model_tools
from helpers.grading.kit.comparisons import (
    expect,
    expect_num_calls,
    expect_payload_bytes,
    is_lone_rank_without_messages,
    with_rule,
)
from helpers.grading.kit.model_tools import MemoryMeter, one_thread
from helpers.grading.kit.tensor_comparisons import expect_number
from helpers.grading.task import JudgedWorld, Judgement, RankContext, Task, Variations
from helpers.grading.tensor_cases import CaseGenerator
from helpers.grading.zero import LAB
from helpers.grading.zero.shards import (
    ReleaseWait,
    expect_shard,
    expect_zero_ops,
    is_padding_error,
    naming_unfinished,
    padded_bytes,
)
from helpers.quantities.units import format_bytes

words = LAB.messages

# -- 08.stage2: run it on a rank -------------------------------------------------------------------------------------
NUM_EXAMPLES = 2  # in a micro-batch
SLACK_BYTES = 512  # for small tensors that an answer may keep
INDIVISIBLE = (7, 11, 13, 17)  # widths; 2, 3, 4 and 5 ranks divide neither one of them nor a product of two
GRADIENT_READY, BACKWARD_OVER = "gradient", "backward over"  # instants that a rank marks on the clock of its log


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
    # In the order of the layers in the first case, and then in another, which backward does not reverse either.
    order = torch.arange(len(weights)).roll(rng.integer(1, len(weights) - 1) if rng.case.number else 0).tolist()
    common = {"widths": widths, "dtype": dtype, "weights": weights, "micro_batches": micro_batches, "order": order}
    num_batches = sum(micro_batches)
    # Each rank has the same model and inputs of its own for every micro-batch.
    return [common | {"x": [rng.tensor(NUM_EXAMPLES, widths[0]).abs() for _ in range(num_batches)]} for _ in range(n)]


def model_of(inputs: Mapping[str, Any]) -> nn.Module:
    """The MLP of a rank's inputs, with its weights."""
    model = model_tools.mlp(inputs["widths"]).to(getattr(torch, inputs["dtype"]))
    model.load_state_dict(inputs["weights"])
    return model


def parameters_in_order(model: nn.Module, inputs: Mapping[str, Any]) -> list[nn.Parameter]:
    """The parameters of the model in the order in which the learner's function gets them."""
    parameters = list(model.parameters())
    return [parameters[i] for i in inputs["order"]]


def run_stage2(submitted, inputs: dict[str, Any], context: RankContext) -> Iterator[None]:
    """Runs two steps of some micro-batches each, with `finish()` at the end of each step.

    The learner's function registers its hooks and returns `finish`, which returns the shards of all gradients. At each
    `yield` another case may take its turn on the ranks.
    """
    model = model_of(inputs)
    parameters = parameters_in_order(model, inputs)
    grad_bytes, bytes_left = [], []  # grad_bytes: of all .grad, at each moment

    def before_hook(parameter: nn.Parameter) -> None:
        """Runs before the learner's hook: notes what the gradients that came earlier still hold."""
        context.mark(GRADIENT_READY)
        grad_bytes.append(sum(bytes_of(p.grad) for p in parameters if p is not parameter))

    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(before_hook)
    list_of_caller = list(parameters)  # a copy, to see whether the answer changes its caller's list
    finish, batches = submitted(list_of_caller), iter(inputs["x"])
    if not callable(finish):
        return {"returned_instead": type(finish).__name__}
    wait, limit = ReleaseWait(), bytes_allowed(parameters, context.world_size)
    returned, copied = [], []  # by finish() in each step
    for num_batches in inputs["micro_batches"]:
        for _ in range(num_batches):
            yield
            bytes_left.append(bytes_after_backward(model, next(batches), wait, limit))
            grad_bytes.append(sum(bytes_of(p.grad) for p in parameters))
            context.mark(BACKWARD_OVER)
        shards = finish()
        returned.append(shards)
        copied.append([one.clone() for one in shards] if is_list_of_tensors(shards) else type(shards).__name__)
    is_same_list = list(map(id, list_of_caller)) == list(map(id, parameters))
    # Shards of the first step must keep their values while the second step runs.
    is_stable = all(map(are_unchanged, returned, copied))
    memory = {"grad_bytes": max(grad_bytes), "bytes_left": max(bytes_left), "shards_stable": is_stable}
    return {"shards": copied, "list_intact": is_same_list} | memory


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
    """Runs forward and backward of a micro-batch, and returns the bytes that it leaves allocated beyond gradients.

    limit: bytes that are right; for no more it returns 0. It also does for gradients in .grad, which count elsewhere.
    """
    with MemoryMeter([*model.parameters(), x]) as meter:
        loss = model(x).square().sum()
        loss.backward()
        del loss
        has_gradients = any(parameter.grad is not None for parameter in model.parameters())
        return 0 if has_gradients else wait.bytes_above(limit, meter)


# -- 08.stage2: compare with one process -----------------------------------------------------------------------------
def mean_gradients(world: JudgedWorld, numbers: Iterable[int]) -> list[Tensor]:
    """The flat gradient of each parameter, as the mean over ranks of the sum over these micro-batches.

    numbers: those of the micro-batches, counted through all steps.
    """
    model = model_of(world.inputs[0])  # the same on every rank
    with one_thread():  # faster for so small a model
        for number in numbers:
            for inputs in world.inputs:
                model(inputs["x"][number]).square().sum().backward()
    parameters = parameters_in_order(model, world.inputs[0])
    return [parameter.grad.flatten() / world.size for parameter in parameters]


def judge_stage2(world: JudgedWorld) -> Iterator[Judgement]:
    """Judges memory, then values, then messages; the messages only where there is somebody to send to."""
    for rank, output in enumerate(world.outputs):
        if "returned_instead" in output:
            yield expect(False, words["no_function_returned"].format(output["returned_instead"]), rank=rank)
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
    rule = words["gradients_sent"].format(num_batches, len(weights))
    yield from with_rule(rule, expect_payload_bytes(world, num_bytes, "reduce_scatter"))


def judge_order(world: JudgedWorld, num_parameters: int) -> Iterator[Judgement]:
    """Each backward pass sends one message per parameter, the first one before the last gradient is computed.

    The judge names what it sees here, because an answer that sends late can do so in many places.
    """
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
    """Full gradients are freed as they come, a micro-batch leaves nothing but shards, and results stay as they are.

    The judge names what it sees here, because how many bytes a mistake keeps differs from answer to answer.
    """
    shards = format_bytes(padded_gradient_bytes(weights, world.size) // world.size)
    for rank, output in enumerate(world.outputs):
        in_grad, left = output["grad_bytes"], output["bytes_left"]
        message = words["gradients_left"].format(format_bytes(in_grad))
        yield expect(in_grad == 0, message, rank=rank, mistakes=["gradient_kept"])
        message = words["bytes_left"].format(format_bytes(left), shards)
        yield expect(left == 0, message, rank=rank, mistakes=["whole_buffer_kept"])
        yield expect(output["list_intact"], words["parameter_list_changed"], rank=rank)
        yield expect(output["shards_stable"], words["shards_change"], rank=rank, mistakes=["shards_used_again"])


def judge_values(world: JudgedWorld, num_parameters: int) -> Iterator[Judgement]:
    """finish() returns one shard per parameter, in the order of the parameters."""
    first = 0  # micro-batch of the step, counted through all steps
    for number, count in enumerate(world.inputs[0]["micro_batches"]):
        means, rule = (
            mean_gradients(world, range(first, first + count)),
            words["mean_then_sum"].format(world.size, count),
        )
        first += count
        for rank, output in enumerate(world.outputs):
            got = output["shards"][number]
            if isinstance(got, list):
                message = words["number_of_shards"].format(number + 1, len(got), num_parameters)
            else:  # `run_stage2` stores the type of anything but a list of tensors
                message = words["finish_returns"].format(got, num_parameters)
            is_complete = isinstance(got, list) and len(got) == num_parameters
            yield expect(is_complete, message, rank=rank)
            for i, (mean, shard) in enumerate(zip(means, got, strict=True) if is_complete else ()):
                what, place = words["shard_of_step"].format(i, number + 1), (rank, world.size)
                yield from with_rule(rule, expect_shard(what, mean, shard, place, rank=rank))


STAGE2 = Task(
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
    squares = [sum(float(shard.square().sum()) for shard in one["shards"]) for one in world.inputs]  # of each rank
    right = math.sqrt(sum(squares))
    for rank, got in enumerate(world.outputs):
        rule = words["squares"].format(f"{squares[rank]:.6g}", world.size, f"{sum(squares):.6g}")
        yield from with_rule(rule, [expect_number(words["norm"], right, got, rank=rank)])
    if not is_lone_rank_without_messages(world):
        yield from expect_num_calls(world, "all_reduce", 1)
        for rank, log in enumerate(world.logs):
            message = words["one_number_sent"].format(format_bytes(log.payload_bytes()))
            yield expect(log.payload_bytes() <= NUMBER_BYTES, message, rank=rank)


GLOBAL_NORM = Task(
    key="08.global_norm",
    signature="global_norm(shards)",
    make_inputs=make_norm,
    run_submission=run_norm,
    judge=judge_norm,
    world_sizes=(1, 2, 3, 4),  # for an exercise of the chapter; the task of the lab is tried on 5 ranks as well
)
