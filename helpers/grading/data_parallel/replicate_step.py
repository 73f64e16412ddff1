"""Judges 02.replicate and 02.step: replicas of a model on simulated devices, and a whole training step on them.

The devices are simulated in one process; device 0 has the model itself, which is called the master. Outputs, gradients,
buffers and weights are compared with those of one process without devices. A layer that records its calls shows whether
each replica computes with weights of its own, and on how many rows.

The grader calls three functions of each task:
  make_…   draws the inputs of one test case; `rng.tensor(*shape)` has the dtype of the case
  run_…    calls the learner's function, `submitted`; what it returns, at the end if it yields, is the output
  judge_…  makes Judgements from inputs[0] and outputs[0] of a JudgedWorld, those of the one process

The `rank` of a Judgement is the number of a device.

Replica 0 may be the model itself or a copy with its buffers, and addresses differ from run to run. So the outputs say
only what memory replicas have in common. `words["…"]` is a sentence of messages.yaml, or what a sentence calls a value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from helpers.grading.data_parallel import LAB
from helpers.grading.data_parallel.scatter_gather import batch_sizes
from helpers.grading.kit import model_tools
from helpers.grading.kit.comparisons import expect, expect_equal
from helpers.grading.kit.tensor_comparisons import expect_tensor, expect_tensors
from helpers.grading.task import (
    JudgedWorld,
    Judgement,
    RankContext,
    Task,
    Variations,
    recognise_errors,
)
from helpers.grading.tensor_cases import CaseGenerator

words = LAB.messages


class RecordingLinear(nn.Linear):
    """A linear layer that records each call: in whose memory it computes, and on how many rows."""

    # One dict per call: the id of the module, its weight and bias, their addresses, and the number of rows. The list is
    # an attribute of the class, so that all layers and all their replicas share it. It keeps the tensors, so that no
    # later replica gets the memory of an earlier one.
    calls: list[dict[str, Any]] = []

    def forward(self, x: Tensor) -> Tensor:
        tensors = [self.weight] if self.bias is None else [self.weight, self.bias]
        call = {"module": id(self), "tensors": tensors, "addresses": addresses_of(tensors), "rows": len(x)}
        self.calls.append(call)
        return super().forward(x)


class RecordingBatchNorm(nn.BatchNorm1d):
    """A BatchNorm that records its calls among those of RecordingLinear, with its buffers in place of weights."""

    def forward(self, x: Tensor) -> Tensor:
        tensors = list(self.buffers())
        call = {"module": id(self), "tensors": tensors, "addresses": addresses_of(tensors), "rows": len(x)}
        RecordingLinear.calls.append(call)
        return super().forward(x)


def addresses_of(tensors) -> list[int]:
    """Where the memory of each tensor begins."""
    return [tensor.untyped_storage().data_ptr() for tensor in tensors]


class ReplicatedModel(nn.Module):
    """A model with all that `replicate` must handle.

    It has parameters at the root and deep inside, a weight that two layers share, a missing bias, a frozen bias, and
    the buffers of BatchNorm.
    """

    def __init__(self, width: int):
        super().__init__()
        inner = nn.Sequential(RecordingLinear(3, width), nn.Tanh(), RecordingBatchNorm(width))
        self.first = nn.Sequential(inner, RecordingLinear(width, width, bias=False), nn.Tanh())
        self.again = RecordingLinear(width, width)
        self.again.weight = self.first[1].weight
        self.last = nn.Linear(width, 2)
        self.last.bias.requires_grad_(False)
        self.scale = nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.last(self.again(self.first(x)))


def make_replicate(rng: CaseGenerator, num_devices: int) -> list[dict[str, Any]]:
    """One model that is replicated in two rounds, with different weights: in training mode, then in evaluation mode.

    In float32 both rounds are in evaluation mode, because in training the gradient in front of BatchNorm is a
    difference of large numbers, which float32 computes inexactly. pieces: the input of each replica.
    """
    width = rng.integer(3, 6)
    model = ReplicatedModel(width)
    shapes = {name: buffer.shape for name, buffer in model.named_buffers() if buffer.is_floating_point()}
    rounds = []
    for is_training in (rng.case.dtypes == "float64", False):
        buffers = {name: rng.normal(*shape).abs() for name, shape in shapes.items()}  # a variance is not negative
        buffers["first.0.2.num_batches_tracked"] = torch.tensor(rng.integer(1, 1000))  # BatchNorm's only int buffer
        pieces = [rng.tensor(rng.integer(3, 6), 3) for _ in range(num_devices)]
        values = {"weights": model_tools.random_weights(rng, model), "buffers": buffers, "pieces": pieces}
        rounds.append(values | {"is_training": is_training})
    return [{"width": width, "dtype": rng.case.dtypes, "rounds": rounds}]


def replicated_model(inputs: dict[str, Any]) -> nn.Module:
    """The model of these inputs, in their dtype."""
    return ReplicatedModel(inputs["width"]).to(getattr(torch, inputs["dtype"]))


@torch.no_grad()
def set_values(model: nn.Module, values: dict[str, Any]) -> None:
    """Set the mode, the parameters and the buffers of a model to these values, and forget its gradients."""
    model.train(values["is_training"])
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        tensor.grad = None
        tensor.copy_((values["weights"] | values["buffers"])[name])


def run_replicate(submitted, inputs: dict[str, Any], context: RankContext) -> Iterator[None]:
    """Replicates the model in each round, and runs the replicas if their number is right.

    It yields after `replicate`, so that the replicas of two cases exist at the same time, and a function that keeps
    something in a global variable is found out. Returns for each round a dict: `changed`, the names of the model's
    parameters that are other objects now; `is_mode_kept`, whether the model is in training mode as before; `number`,
    how many replicas came back, or the type of what came instead of a list; what run_replicas returns; and the model's
    gradients and buffers afterwards.
    """
    model, rounds = replicated_model(inputs), []
    for values in inputs["rounds"]:
        set_values(model, values)
        parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
        replicas = submitted(model, len(values["pieces"]))
        now = dict(model.named_parameters())
        is_mode_kept = all(module.training == values["is_training"] for module in model.modules())
        changed = [name for name, parameter in parameters.items() if now.get(name) is not parameter]
        yield
        number = len(replicas) if isinstance(replicas, list | tuple) else type(replicas).__name__
        output = {"changed": changed, "is_mode_kept": is_mode_kept, "number": number}
        if number == len(values["pieces"]):
            output |= run_replicas(replicas, values["pieces"], set(addresses_of(model.state_dict().values())))
        gradients = {name: parameter.grad for name, parameter in parameters.items()}
        output |= {"gradients": model_tools.detached_copies(gradients), "buffers": model_tools.detached_copies(buffers)}
        rounds.append(output)
        if changed:
            break  # all that follows would be a consequence
    return rounds


def run_replicas(replicas: list[Any], pieces: list[Tensor], of_model: set[int]) -> dict[str, Any]:
    """Runs each replica on its piece, then backward through all of them. of_model: addresses of the model's parameters
    and buffers.

    Returns the outputs; `shared`, whose memory each replica but the first computes with besides its own: "model",
    "replica", or ""; and `module_shared`, whether two of them run the same module.
    """
    outputs, shared, modules, of_replicas = [], [], [], set()
    for device, (replica, piece) in enumerate(zip(replicas, pieces, strict=True)):
        RecordingLinear.calls.clear()
        outputs.append(replica(piece))
        addresses = {address for call in RecordingLinear.calls for address in call["addresses"]}
        if device > 0:  # the first replica may be the model itself
            shared.append("model" if addresses & of_model else "replica" if addresses & of_replicas else "")
        of_replicas |= addresses
        modules += [call["module"] for call in RecordingLinear.calls]
    loss = sum(output.square().sum() for output in outputs)
    if isinstance(loss, Tensor) and loss.requires_grad:
        loss.backward()
    return {"outputs": outputs, "shared": shared, "module_shared": len(set(modules)) < len(modules)}


def judge_replicate(world: JudgedWorld) -> Iterator[Judgement]:
    """Expects one replica per device, and in each round what `judge_round` says."""
    inputs = world.inputs[0]
    for values, got in zip(inputs["rounds"], world.outputs[0], strict=False):  # a changed model ends after one round
        yield expect_equal(words["num_replicas"], len(values["pieces"]), got["number"])
        if got["number"] != len(values["pieces"]):
            return
        yield from judge_round(inputs, values, got)


def judge_round(inputs: dict[str, Any], values: dict[str, Any], got: dict[str, Any]) -> Iterator[Judgement]:
    """Expects an unchanged model, right outputs, the summed gradients in the model, and separate memory and buffers.

    values: the weights, buffers and pieces of this round. got: what run_replicate returned for it.
    """
    first = got["changed"][0] if got["changed"] else ""
    # What else is wrong then depends on how the model was changed.
    yield expect(not got["changed"], words["model_changed"].format(first), mistakes=["master_changed"])
    yield expect(got["is_mode_kept"], words["mode_changed"])
    by_piece = [one_process(inputs, values, piece) for piece in values["pieces"]]
    for device, (right, output) in enumerate(zip(by_piece, got["outputs"], strict=True)):
        yield expect_tensor(words["replica_output"], right["output"], output, rank=device)
    frozen = [name for name, gradient in by_piece[0]["gradients"].items() if gradient is None]
    trained = [name for name in values["weights"] if name not in frozen]
    total = {name: sum(one["gradients"][name] for one in by_piece) for name in trained}
    yield from expect_tensors(words["model_gradient"], total, got["gradients"])
    for name in frozen:
        yield expect_equal(words["frozen_gradient"].format(name), None, got["gradients"][name])
    for device, whose in enumerate(got["shared"], start=1):
        yield expect(not whose, words["memory_shared"], rank=device)
    yield expect(not got["module_shared"], words["module_shared"])
    # The model must have the buffers that replica 0 wrote; what the other replicas wrote is lost.
    yield from expect_tensors(words["model_buffer"], by_piece[0]["buffers"], got["buffers"])


def one_process(inputs: dict[str, Any], values: dict[str, Any], piece: Tensor) -> dict[str, Any]:
    """What one process gets for a piece: the output, the gradients of its squared sum, the buffers after forward."""
    model = replicated_model(inputs)
    set_values(model, values)
    output = model(piece)
    output.square().sum().backward()
    return {
        "output": output.detach(),
        "gradients": model_tools.gradients_of(model),
        "buffers": model_tools.detached_copies(dict(model.named_buffers())),
    }


REPLICATE = Task(
    key="02.replicate",
    signature="replicate(model, num_devices)",
    make_inputs=make_replicate,
    run_submission=run_replicate,
    judge=judge_replicate,
    runs_on="devices",
    variations=Variations(dtypes=("float64", "float32")),
    must_not_change=("model",),
)


# -- 02.step ---------------------------------------------------------------------------------------------------------
def step_model(inputs: dict[str, Any]) -> nn.Module:
    """The small model that 02.step trains, in the inputs' dtype."""
    widths = inputs["widths"]
    model = nn.Sequential(RecordingLinear(widths[0], widths[1]), nn.Tanh(), nn.Linear(widths[1], widths[2]))
    return model.to(getattr(torch, inputs["dtype"]))


def make_step(rng: CaseGenerator, num_devices: int) -> list[dict[str, Any]]:
    """Draws steps of one model, each from different weights and with stale gradients of an earlier step.

    The sizes of the batches are multiples of the number of devices, others, and fewer examples than devices.
    """
    widths = [rng.integer(3, 5), rng.integer(3, 5), rng.integer(2, 3)]
    inputs = {"num_devices": num_devices, "widths": widths, "dtype": rng.case.dtypes, "cases": []}
    model = step_model(inputs)
    for size in batch_sizes(rng, num_devices):
        data = {"x": rng.tensor(size, widths[0]), "y": rng.tensor(size, widths[2]), "lr": rng.integer(1, 9) / 20}
        for name in ("weights", "stale"):
            values = model_tools.random_weights(rng, model)
            data[name] = {parameter: tensor.to(data["x"].dtype) for parameter, tensor in values.items()}
        inputs["cases"].append(data)
    return [inputs]


def run_step(submitted, inputs: dict[str, Any], context: RankContext) -> list[dict[str, Any]]:
    """Runs all steps with the learner's function. Returns for each what it left behind.

    loss: what the function returned. rows: of each call of the model's first layer, on any device. on_master: how many
    of these calls used the model's own weights, or 1 if none did. on_copy: the same of the copy of a weight that most
    calls used. gradients, weights: of the model.
    """
    model, outputs = step_model(inputs), []
    parameters = dict(model.named_parameters())
    master_addresses = set(addresses_of(parameters.values()))
    for case in inputs["cases"]:
        model.load_state_dict(case["weights"])
        for name, parameter in parameters.items():
            parameter.grad = case["stale"][name].clone()
        optimizer = model_tools.GradientDescent(parameters.values(), case["lr"])
        RecordingLinear.calls.clear()
        loss = submitted(model, optimizer, case["x"], case["y"], inputs["num_devices"])
        on_master = [call for call in RecordingLinear.calls if master_addresses & set(call["addresses"])]
        copies = Counter(address for call in RecordingLinear.calls for address in {*call["addresses"]})
        on_copy = max((count for address, count in copies.items() if address not in master_addresses), default=1)
        if isinstance(loss, float):
            loss = torch.tensor(loss, dtype=case["x"].dtype)
        elif isinstance(loss, Tensor) and loss.numel() == 1:
            loss = loss.detach().reshape(())
        rows = sorted(call["rows"] for call in RecordingLinear.calls)
        gradients = model_tools.detached_copies({name: parameter.grad for name, parameter in parameters.items()})
        weights = model_tools.detached_copies(parameters)
        output = {"loss": loss, "rows": rows, "on_master": max(1, len(on_master)), "on_copy": on_copy}
        outputs.append(output | {"gradients": gradients, "weights": weights})
    return outputs


def judge_step(world: JudgedWorld) -> Iterator[Judgement]:
    """Expects in each step the gradients, weights and mean loss of one process, and each piece on a device of its own.

    On device 0 the piece may go through the model itself, so one call on the model is right, and several are not.
    """
    inputs = world.inputs[0]
    for case, got in zip(inputs["cases"], world.outputs[0], strict=True):
        size, model = len(case["x"]), step_model(inputs)
        model.load_state_dict(case["weights"])
        loss = (model(case["x"]) - case["y"]).square().sum() / size
        loss.backward()
        gradients = model_tools.gradients_of(model)
        weights = {name: tensor - case["lr"] * gradients[name] for name, tensor in case["weights"].items()}
        # "{}" stands for the name of a parameter, which expect_tensors fills in.
        yield from expect_tensors(words["step_gradient"].format("{}", size), gradients, got["gradients"])
        yield from expect_tensors(words["step_weight"].format("{}", size), weights, got["weights"])
        yield expect_tensor(words["loss_returned"].format(size), loss.detach(), got["loss"])
        rows = sorted(map(len, case["x"].chunk(inputs["num_devices"])))
        yield expect_equal(words["rows_computed"].format(size), rows, got["rows"])
        yield expect(got["on_master"] <= 1, words["too_many_on_model"].format(got["on_master"], size))
        yield expect(got["on_copy"] <= 1, words["too_many_on_copy"].format(got["on_copy"], size))


STEP = Task(
    key="02.step",
    signature="train_step(model, optimizer, x, y, num_devices)",
    make_inputs=make_step,
    run_submission=run_step,
    judge=judge_step,
    recognise_failure=recognise_errors({"index out of range": "fewer_pieces"}),
    runs_on="devices",
    variations=Variations(dtypes=("float64", "float32")),
    must_not_change=("x", "y"),
)
