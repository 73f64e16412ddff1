"""Runs the forward and backward pass of an answer on a rank, and judges which messages each of the two passes sent.

operators.py, linear_layers.py and vocab_loss.py use the first two sections. The last two are for 07.column and 07.row
alone: they run the learner's layer on two batches, and judge what both layers have to do alike.

A task has three functions. The first draws the inputs of every rank for one case with `rng`, the second runs the
learner's answer, `submitted`, on one rank, and the third, the judge, runs in another process and compares what all
ranks returned with the right values. This file has parts of the second and of the third. A case is one choice of sizes,
dtypes and memory layouts, numbered `rng.case.number`. A mistake is a wrong solution that learners often write. Its
name, such as "no_gradient", is the key of its hint in hints.yaml. The `expect…` functions compare one value and return
or yield Judgements; their `mistakes` maps such keys to the value that the mistake gives. `words[…]` is a text of
messages.yaml, in English and Chinese.
"""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from helpers.grading.cases import CaseGenerator, Variations
from helpers.grading.kit.comparisons import expect, expect_equal, expect_tensor, is_close
from helpers.grading.kit.model_tools import describe_if_detached
from helpers.grading.run_on_ranks import is_unchanged, snapshot, storage_addresses
from helpers.grading.task import JudgedWorld, Judgement, RankContext, RunFailure
from helpers.grading.tensor_parallel import LAB
from helpers.quantities.units import format_bytes
from helpers.records import CommEvent

words = LAB.messages

FORWARD, BACKWARD = "forward", "backward"  # names of the passes, and of the marks that a rank sets at their ends
PASSES = (FORWARD, BACKWARD)
TORCH_WARNING = "an autograd kernel was not registered"  # torch warns so when backward reaches a bare dist.all_reduce
HIDDEN_COLLECTIVE = "torch warns: backward goes through a collective that autograd does not know"  # our error's text
# From the messages of a pass, in the order in which a rank issued them, to the keys of the hints that explain them.
MistakesOf = Callable[[Sequence[CommEvent]], Sequence[str]]
Judge = Callable[[JudgedWorld], Iterator[Judgement]]  # a task's judge


# -- on a rank -------------------------------------------------------------------------------------------------------
def run_backward(context: RankContext, outputs: Sequence[Any], gradients: Sequence[Tensor]) -> str:
    """Runs backward from each output with its gradient, and marks the end of the pass.

    Returns "" if backward could run. Otherwise none runs, and the text says what an output is instead of a tensor that
    requires a gradient, for example "None".
    """
    not_differentiable = [describe_if_detached(output) for output in outputs]  # "" for a tensor with a gradient
    if not any(not_differentiable):
        with errors_for_hidden_collectives():
            for output, gradient in zip(outputs, gradients, strict=True):
                if output.shape == gradient.shape:  # if not, the judge says that the output has another shape
                    output.backward(gradient)
    context.mark(BACKWARD)
    return next(filter(None, not_differentiable), "")


@contextmanager
def errors_for_hidden_collectives() -> Iterator[None]:
    """Raises RuntimeError for a collective that autograd cannot see; torch itself only warns of wrong gradients."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=f".*{TORCH_WARNING}")
        try:
            yield
        except UserWarning as warning:
            raise (RuntimeError(HIDDEN_COLLECTIVE) if TORCH_WARNING in str(warning) else warning) from None


# -- inputs, and the messages of each pass ---------------------------------------------------------------------------
def by_case_number(rng: CaseGenerator, *values: Any) -> Any:
    """The value whose turn it is: case 0 gets the first one, case 1 the second one, and so on in a circle."""
    return values[rng.case.number % len(values)]


def draw_exact(rng: CaseGenerator, *shape: int) -> Tensor:
    """A random tensor with the dtype and layout of the case, whose sums are exact where its dtype is narrow.

    `rng.tensor` draws normally distributed numbers. Where the dtype is narrower than float64 they become small whole
    numbers, whose sums are exact in any order, so that a right answer equals the reference in bfloat16 as well.
    """
    tensor = rng.tensor(*shape)
    return tensor if tensor.dtype == torch.float64 else (2 * tensor).round()


class ForwardBackward:
    """One case as it ran on all ranks, with the messages of each pass.

    inputs and outputs have one item per rank. size: the number of ranks. events[rank]["forward"] are the messages that
    the rank issued in forward, in order; likewise "backward".
    """

    def __init__(self, world: JudgedWorld):
        self.inputs, self.outputs, self.size = world.inputs, world.outputs, world.size
        self.events: list[dict[str, list[CommEvent]]] = []
        for log, marks in zip(world.logs, world.marks, strict=True):
            ends = dict(marks)  # name of a pass -> the time at which it ended on this rank
            before = [event for event in log.events if event.start < ends[FORWARD]]
            after = [event for event in log.events if ends[FORWARD] <= event.start < ends[BACKWARD]]
            self.events.append({FORWARD: before, BACKWARD: after})

    @property
    def returned_instead(self) -> str:
        """What a rank returned if backward cannot start from it; "" where backward ran on every rank."""
        return next((got["returned_instead"] for got in self.outputs if got["returned_instead"]), "")

    @property
    def passes_with_messages(self) -> frozenset[str]:
        """The passes in which some rank sends something."""
        return frozenset(name for events in self.events for name in PASSES if events[name])


def describe(event: CommEvent) -> str:
    """A message as a learner reads it: 'all_reduce (SUM) of 96 B'."""
    kind = f" ({event.reduce_op})" if event.reduce_op else ""
    return f"{event.op}{kind} of {format_bytes(event.payload_bytes)}"


def all_reduce(num_bytes: int, reduce_op: str = "SUM") -> str:
    """The description of an all-reduce with this payload."""
    return f"all_reduce ({reduce_op}) of {format_bytes(num_bytes)}"


def unreduced_key(run: ForwardBackward, rank: int, name: str) -> str:
    """The hint for a value that is this rank's own part, where the pass `name` has to add those of all ranks."""
    has_sum = any(event.reduce_op == "SUM" for event in run.events[rank][name])
    return "sum_not_used" if has_sum else f"{name}_not_reduced"


def keys_by_passes(run: ForwardBackward, right_pass: str, does_other: bool = True) -> list[str]:
    """The hints that explain in which passes some rank sent a message, where the right one is `right_pass` alone.

    does_other: whether messages in the other pass alone are those of the other operator. Returns [] for the right pass
    alone.
    """
    wrong_pass = FORWARD if right_pass == BACKWARD else BACKWARD
    known = {
        frozenset(): [f"{right_pass}_not_reduced"],
        frozenset([wrong_pass]): ["operators_swapped"] if does_other else [],
        frozenset(PASSES): [f"{wrong_pass}_reduced"],
    }
    return known.get(run.passes_with_messages, [])


def has_all_gather(events: Sequence[CommEvent]) -> bool:
    """Whether an all-gather is among these messages."""
    return any(event.op == "all_gather" for event in events)


def expect_messages(
    run: ForwardBackward, task: str, name: str, *allowed: Sequence[str], mistakes_of: MistakesOf = lambda events: ()
) -> Iterator[Judgement]:
    """In the pass `name` every rank issues one of the `allowed` lists of messages, in this order.

    task: "f", under which messages.yaml says what this task sends in the pass. Messages are given by their description
    (see `describe`). With one rank there is nobody to send to, so no message is right as well. mistakes_of: which hints
    explain the messages of a rank that issued others.
    """
    for rank, events in enumerate(run.events):
        got = [describe(event) for event in events[name]]
        expected = got if got in map(list, allowed) else list(allowed[0])
        expected = [] if run.size == 1 and not got else expected
        # expect_equal names the mistakes whose value is `got`, so each one that explains the messages is given `got`.
        mistakes = dict.fromkeys(mistakes_of(events[name]), got)
        yield expect_equal(words[f"messages.{task}.{name}"], expected, got, rank=rank, mistakes=mistakes)


def judges_both_passes(call: str) -> Callable[[Callable[[ForwardBackward], Iterator[Judgement]]], Judge]:
    """Makes a task's judge of a function that judges a ForwardBackward, which is a case in which backward could run.

    A decorator. Where backward could not run on every rank, the judge says so and does not call that function.
    call: how the sentence names the call of the learner's code, "layer(x)".
    """

    def decorator(judge_run: Callable[[ForwardBackward], Iterator[Judgement]]) -> Judge:
        def judge(world: JudgedWorld) -> Iterator[Judgement]:
            run = ForwardBackward(world)
            text = words["no_gradient_from"].format(call, run.returned_instead)
            yield expect(not run.returned_instead, text, mistakes=["no_gradient"])
            if not run.returned_instead:
                yield from judge_run(run)

        return judge

    return decorator


def recognise_hidden_collective(failure: RunFailure) -> list[str]:
    """The hint for a run that ended because backward went through a collective that autograd does not know."""
    return ["unknown_to_autograd"] if HIDDEN_COLLECTIVE in failure.text else []


# -- 07.column and 07.row: run the learner's layer -------------------------------------------------------------------
# What the inputs of both tasks vary in. There are at least four cases, since `by_case_number` takes turns of up to
# four.
LAYER_VARIATIONS = Variations(dtypes=("float64", "float32"), layouts=("contiguous", "transposed"), min_cases=4)
NUM_BATCHES = 2  # that one layer gets: forward of both, then backward of both


def draw_linear(rng: CaseGenerator, in_features: int, out_features: int) -> dict[str, Any]:
    """The parameters of a full layer, the same on every rank; every other case has no bias."""
    weight, bias = draw_exact(rng, out_features, in_features).contiguous(), draw_exact(rng, out_features).contiguous()
    return {"weight": weight, "bias": by_case_number(rng, bias, None)}


def draw_leading_shape(rng: CaseGenerator) -> list[int]:
    """The dimensions of x before the last one: the batches, then one to three dimensions with 6 or 8 rows together."""
    return [NUM_BATCHES, *by_case_number(rng, [2, 3], [6], [8], [2, 1, 4])]


def run_layer(submitted, inputs: dict[str, Any], context: RankContext) -> Iterator[None]:
    """Runs the learner's class, `submitted`, and returns everything that the judge looks at.

    It makes a parallel layer of a full nn.Linear, sends two batches forward and then both back, and doubles the
    parameters in place, as an optimizer step might change them. At the end it deletes its nn.Linear, to see whether the
    layer keeps that alive. At each `yield` another case may take its turn on the ranks.
    """
    linear = linear_from(inputs)
    before, memory_of_linear = snapshot(linear), storage_addresses(linear)
    layer = submitted(linear)
    shares_memory = any(storage_addresses(parameter) & memory_of_linear for parameter in parameters_of(layer).values())
    yield
    batches = [x.detach().requires_grad_() for x in inputs["x"].unbind()]
    outputs = [layer(x) for x in batches]
    context.mark(FORWARD)
    yield
    returned_instead = run_backward(context, outputs, [one.clone() for one in inputs["gradient"].unbind()])
    parameters = parameters_of(layer)
    result = {
        "returned_instead": returned_instead,
        "parameters": {name: parameter.detach().clone() for name, parameter in parameters.items()},
        "gradients": {name: parameter.grad for name, parameter in parameters.items()},
        "stored_bytes": {name: parameter.untyped_storage().nbytes() for name, parameter in parameters.items()},
        "shares_memory": shares_memory,
    }
    result["stepped"] = output_after_doubling(layer, parameters, batches[0])
    result["linear_changed"] = not is_unchanged(before, linear)
    full_weight = weakref.ref(linear.weight)
    del linear, before
    if full_weight() is not None:
        gc.collect()  # a cycle of references may keep it alive, which is no mistake
    result |= {"y": stacked(outputs), "x_gradient": stacked([x.grad for x in batches])}
    # The gradient that x gets from a use outside the layer; a hook that the layer has left on x would change it.
    batches[0].grad = None
    batches[0].sum().backward()
    return result | {"outside": batches[0].grad, "linear_alive": full_weight() is not None}


@torch.no_grad()
def output_after_doubling(layer: Any, parameters: Mapping[str, nn.Parameter], x: Tensor) -> Any:
    """Doubles the parameters in place and runs the layer once more."""
    for parameter in parameters.values():
        parameter.mul_(2)
    return layer(x.detach())


def stacked(values: list[Any]) -> Any:
    """One tensor, if all values are tensors of one shape; else the first value that is no tensor, or the first one."""
    if all(isinstance(one, Tensor) for one in values) and len({one.shape for one in values}) == 1:
        return torch.stack(values)
    return next((one for one in values if not isinstance(one, Tensor)), values[0])


def linear_from(inputs: Mapping[str, Any]) -> nn.Linear:
    """The full layer, which the learner's class gets."""
    out_features, in_features = inputs["weight"].shape
    linear = nn.Linear(in_features, out_features, bias=inputs["bias"] is not None, dtype=inputs["weight"].dtype)
    linear.load_state_dict({name: inputs[name] for name in ("weight", "bias") if inputs[name] is not None})
    return linear


def parameters_of(layer: Any) -> dict[str, nn.Parameter]:
    """The layer's parameters "weight" and "bias", which may also be those of a layer inside it."""
    named = layer.named_parameters() if isinstance(layer, nn.Module) else []
    return {name.rpartition(".")[2]: parameter for name, parameter in named}


# -- 07.column and 07.row: judge what both layers do alike -----------------------------------------------------------
class LinearReference:
    """The output y and all gradients of the full layer in one process.

    gradient: that of y. gradients: those of "x", "weight" and, if there is one, "bias".
    """

    def __init__(self, x: Tensor, weight: Tensor, bias: Tensor | None, gradient: Tensor):
        leaves = {"x": x, "weight": weight} | ({} if bias is None else {"bias": bias})
        leaves = {name: tensor.clone().requires_grad_() for name, tensor in leaves.items()}
        y = F.linear(leaves["x"], leaves["weight"], leaves.get("bias"))
        y.backward(gradient)
        self.y, self.gradients = y.detach(), {name: leaf.grad for name, leaf in leaves.items()}


def judge_parameter(
    run: ForwardBackward, rank: int, name: str, full: Tensor, dim: int | None, mistakes: Mapping[str, Any] | None = None
) -> Iterator[Judgement]:
    """The parameter has the values of this rank's shard, and no more memory than the shard needs.

    full: that of the given layer, which the ranks split along `dim`; None if each has all of it. mistakes: maps the key
    of a hint to the value that the mistake gives.
    """
    right = full if dim is None else full.chunk(run.size, dim)[rank]
    what, count = words["shard.all" if dim is None else f"shard.{dim}"], right.shape[dim or 0]
    got = run.outputs[rank]
    parameter, stored = got["parameters"].get(name), got["stored_bytes"].get(name, 0)
    what = what.format(name, count, rank * count)
    yield expect_tensor(
        what, right, parameter, rank=rank, mistakes=(mistakes or {}) | wrong_shards(full, run, rank, dim)
    )
    is_larger = isinstance(parameter, Tensor) and parameter.numel() > right.numel()
    is_view = stored > (parameter.nbytes if isinstance(parameter, Tensor) else 0)  # it keeps more than its elements
    if stored == right.nbytes * run.size and is_larger:
        known = ["not_cut"]
    else:
        known = ["view_of_the_whole"] if is_view else []
    message = words["bytes_in_memory"].format(name, format_bytes(stored), format_bytes(right.nbytes))
    yield expect(stored <= right.nbytes, message, rank=rank, mistakes=known)


def judge_behaviour(run: ForwardBackward, rank: int, y: Tensor) -> Iterator[Judgement]:
    """What both layers must do alike, on one rank. y: the right output of both batches."""
    got, inputs = run.outputs[rank], run.inputs[rank]
    # The shard is a copy, even with one rank, and the full nn.Linear stays as it was and can be freed.
    has_bias, is_full = inputs["bias"] is not None, is_close(inputs["weight"], got["parameters"].get("weight"))
    yield expect(has_bias or "bias" not in got["parameters"], words["bias_is_a_parameter"], rank=rank)
    # With one rank the shard is the full weight, so memory that is shared may be either mistake.
    mistakes = ["not_cut"] if is_full else []
    if not is_full or run.size == 1:
        mistakes.append("view_of_the_whole")
    yield expect(not got["shares_memory"], words["shares_memory"], rank=rank, mistakes=mistakes)
    yield expect(not got["linear_changed"], words["layer_changed"], rank=rank)
    yield expect(not got["linear_alive"], words["layer_kept_alive"], rank=rank)
    # A use of x outside the layer, x.sum(), gets a gradient of ones, so the layer must have put no hook on x.
    ones, wrong = torch.ones_like(inputs["x"][0]), {"hook_on_x": got["outside"]}
    yield expect_tensor(words["gradient_beside_layer"], ones, got["outside"], rank=rank, mistakes=wrong)
    # The layer computes with its current parameters, so its output doubles when they do, if it was right before.
    if is_close(y, got["y"]) and "weight" in got["parameters"]:
        wrong = {"old_values": got["stepped"]}
        yield expect_tensor(words["output_after_doubling"], 2 * y[0], got["stepped"], rank=rank, mistakes=wrong)


def wrong_shards(full: Tensor, run: ForwardBackward, rank: int, dim: int | None) -> dict[str, Any]:
    """For each mistake what a rank holds of a weight or bias that the ranks split along `dim`; {} for None."""
    if dim is None:
        return {}
    return {
        "not_cut": full,
        "not_parameters": None,
        "part_of_another_rank": [*full.chunk(run.size, dim)],
        "dealt_out": full.transpose(0, dim)[rank :: run.size].transpose(0, dim),
    }


def judge_gradient(
    run: ForwardBackward, rank: int, task: str, name: str, right: Tensor, y: Tensor, wrong: dict[str, Any]
) -> Judgement:
    """The gradient of the parameter `name`. task: "column" or "row". y: the right output of this rank.

    wrong: maps the key of a hint to the value that the mistake gives.
    """
    got = run.outputs[rank]
    has_one_elsewhere = any(one["gradients"].get(name) is not None for one in run.outputs)
    if not has_one_elsewhere and is_close(y, got["y"]) and got["x_gradient"] is not None:
        wrong = {**wrong, "parameter_gets_nothing": None}
    return expect_tensor(words[f"gradient.{task}.{name}"], right, got["gradients"][name], rank=rank, mistakes=wrong)


def error_about(text: str) -> str:
    """What torch's error is about: "dtype", "product" (shapes of x and the weight), "bias", or "" for another text."""
    if "must have the same dtype" in text:
        return "dtype"
    if "mat1 and mat2 shapes cannot be multiplied" in text or "size mismatch" in text:
        return "product"
    bias_errors = ("The expanded size of the tensor", "The size of tensor a")  # how torch's errors about adding begin
    return "bias" if any(part in text for part in bias_errors) else ""
