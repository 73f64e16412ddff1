"""Judges 02.replicate and 02.step: replicas of a model on simulated devices, and a whole training step on them.

The devices are simulated in one process; device 0 has the model itself, which is called the master. Outputs, gradients,
buffers and weights are compared with those of one process without devices. A layer that records its calls shows whether
each replica computes with weights of its own, and on how many rows.

The grader calls three functions of each task:
  make_…   draws the inputs of one test case; `rng.tensor(*shape)` has the dtype of the case
  run_…    calls the learner's function, `submitted`; what it returns, at the end if it yields, is the output
  judge_…  makes Judgements from inputs[0] and outputs[0] of a JudgedWorld, those of the one process

The `rank` of a Judgement is the number of a device.

A mistake is a wrong solution that learners often write. Its key, such as "sum_for_mean", is that of its hint in
hints.yaml. An `expect…` function that finds a wrong value names keys of its argument `mistakes`: all if it is a list;
if it is a dict, those whose value is the learner's, or is a list that contains it. In 02.step a mistake is named if
it leaves what the learner's step left, for batches of every size. `words["…"]` is a sentence of messages.yaml, or what
a sentence calls a value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from helpers.grading.cases import CaseGenerator, Variations
from helpers.grading.data_parallel import LAB
from helpers.grading.data_parallel.scatter_gather import batch_sizes
from helpers.grading.kit import model_tools
from helpers.grading.kit.comparisons import expect, expect_equal, expect_tensor, expect_tensors, is_close
from helpers.grading.task import JudgedWorld, Judgement, RankContext, Task, recognise_errors

words = LAB.messages

Named = Mapping[str, Tensor | None]
StepResult = tuple[Named, Named]  # the gradients and the weights after a step


class RecordingLinear(nn.Linear):
    """A linear layer that records each call: in whose memory it computes, and on how many rows."""

    # One dict per call: the id of the module, the addresses of its weight and bias, and the number of rows. The list is
    # an attribute of the class, so that all layers and all their replicas share it.
    calls: list[dict[str, Any]] = []

    def forward(self, x: Tensor) -> Tensor:
        addresses = addresses_of([self.weight] if self.bias is None else [self.weight, self.bias])
        self.calls.append({"module": id(self), "addresses": addresses, "rows": len(x)})
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
        inner = nn.Sequential(RecordingLinear(3, width), nn.Tanh(), nn.BatchNorm1d(width))
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
    parameters that are other objects now; `master`, the addresses of its parameters; `number`, how many replicas came
    back, or the type of what came instead of a list; the outputs and calls of run_replicas; and the model's gradients
    and buffers afterwards.
    """
    model, rounds = replicated_model(inputs), []
    for values in inputs["rounds"]:
        set_values(model, values)
        parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
        replicas = submitted(model, len(values["pieces"]))
        now = dict(model.named_parameters())
        changed = [name for name, parameter in parameters.items() if now.get(name) is not parameter]
        yield
        number = len(replicas) if isinstance(replicas, list | tuple) else type(replicas).__name__
        output = {"changed": changed, "master": addresses_of(parameters.values()), "number": number}
        if number == len(values["pieces"]):
            output |= run_replicas(replicas, values["pieces"])
        gradients = {name: parameter.grad for name, parameter in parameters.items()}
        output |= {"gradients": model_tools.detached_copies(gradients), "buffers": model_tools.detached_copies(buffers)}
        rounds.append(output)
        if changed:
            break  # all that follows would be a consequence
    return rounds


def run_replicas(replicas: list[Any], pieces: list[Tensor]) -> dict[str, Any]:
    """The output and the recorded calls of each replica, on its piece; then backward through all of them."""
    outputs, calls = [], []
    for replica, piece in zip(replicas, pieces, strict=True):
        RecordingLinear.calls.clear()
        outputs.append(replica(piece))
        calls.append(list(RecordingLinear.calls))
    loss = sum(output.square().sum() for output in outputs)
    if isinstance(loss, Tensor) and loss.requires_grad:
        loss.backward()
    return {"outputs": outputs, "calls": calls}


def judge_replicate(world: JudgedWorld) -> Iterator[Judgement]:
    """Expects one replica per device, and in each round what `judge_round` says."""
    inputs = world.inputs[0]
    for values, got in zip(inputs["rounds"], world.outputs[0], strict=False):  # a changed model ends after one round
        yield expect_equal(words["num_replicas"], len(values["pieces"]), got["number"])
        if got["number"] != len(values["pieces"]):
            return
        yield from judge_round(inputs, values, got)


TIED_WEIGHT = "first.1.weight"  # of ReplicatedModel, whose layer `again` has it too


def judge_round(inputs: dict[str, Any], values: dict[str, Any], got: dict[str, Any]) -> Iterator[Judgement]:
    """Expects an unchanged model, right outputs, the summed gradients in the model, and separate memory and buffers.

    values: the weights, buffers and pieces of this round. got: what run_replicate returned for it.
    """
    is_unchanged = not got["changed"]
    first = got["changed"][0] if got["changed"] else ""
    yield expect(is_unchanged, words["model_changed"].format(first), mistakes=["master_changed"])
    by_piece = [one_process(inputs, values, piece) for piece in values["pieces"]]
    first_round = inputs["rounds"][0]
    stale = values | {name: first_round[name] for name in ("is_training", "buffers")}
    other_mode = values | {"is_training": not values["is_training"]}
    for device, (right, output) in enumerate(zip(by_piece, got["outputs"], strict=True)):
        mistakes: dict[str, Any] = {}
        if not is_close(right["output"], output):
            all_stale = stale | {"weights": first_round["weights"]}
            wrong = {"mode_changed": [other_mode], "replicas_kept": [stale, all_stale]}
            for key, states in wrong.items():
                mistakes[key] = [one_process(inputs, state, values["pieces"][device])["output"] for state in states]
        yield expect_tensor(words["replica_output"], right["output"], output, rank=device, mistakes=mistakes)
    frozen = [name for name, gradient in by_piece[0]["gradients"].items() if gradient is None]
    trained = [name for name in values["weights"] if name not in frozen]
    total = {name: sum(one["gradients"][name] for one in by_piece) for name in trained}
    # Gradients that stay on the replicas: the model has none, or those of device 0, which are right if it is alone.
    wrong_gradients = [dict.fromkeys(total), by_piece[0]["gradients"]][: len(by_piece)]
    mistakes = {"gradients_averaged": model_tools.scaled(total, 1 / len(by_piece))}
    mistakes |= {"gradients_stay": wrong_gradients} if is_unchanged else {}
    judgements = list(expect_tensors(words["model_gradient"], total, got["gradients"], mistakes=mistakes))
    is_only_tied = [name for name, one in zip(total, judgements, strict=True) if not one.ok] == [TIED_WEIGHT]
    for judgement in judgements:
        is_tied = is_only_tied and not judgement.ok
        yield replace(judgement, mistakes=("tied_weight_once",)) if is_tied else judgement
    for name in frozen:
        yield expect_equal(words["frozen_gradient"].format(name), None, got["gradients"][name])
    yield from judge_memory(got)
    yield from judge_buffers(inputs, values, got, by_piece[0]["buffers"])


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


def judge_memory(got: dict[str, Any]) -> Iterator[Judgement]:
    """Every replica but the first must compute with weights of its own, in modules of its own."""
    # taken: addresses that the master or an earlier replica uses. The first replica may be the master itself.
    taken, modules = set(got["master"]), [call["module"] for call in got["calls"][0]]
    for device, calls in enumerate(got["calls"][1:], start=1):
        addresses = {address for call in calls for address in call["addresses"]}
        mistakes = ["weights_shared" if addresses & set(got["master"]) else "clones_shared"]
        yield expect(not addresses & taken, words["memory_shared"], rank=device, mistakes=mistakes)
        taken |= addresses
        modules += [call["module"] for call in calls]
    yield expect(len(set(modules)) == len(modules), words["module_shared"], mistakes=["module_shared"])


def judge_buffers(
    inputs: dict[str, Any], values: dict[str, Any], got: dict[str, Any], right: dict[str, Tensor]
) -> Iterator[Judgement]:
    """The model must have the buffers that replica 0 wrote; what the other replicas wrote is lost."""
    model = replicated_model(inputs)
    set_values(model, values)
    before = model_tools.detached_copies(dict(model.named_buffers()))
    for piece in values["pieces"]:  # if replicas share their buffers, every piece changes them
        model(piece)
    mistakes = {"buffers_lost": before, "buffers_shared": model_tools.detached_copies(dict(model.named_buffers()))}
    yield from expect_tensors(words["model_buffer"], right, got["buffers"], mistakes=mistakes)


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
    of these calls used the model's own weights. gradients, weights: of the model.
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
        if isinstance(loss, float):
            loss = torch.tensor(loss, dtype=case["x"].dtype)
        rows = sorted(call["rows"] for call in RecordingLinear.calls)
        gradients = model_tools.detached_copies({name: parameter.grad for name, parameter in parameters.items()})
        weights = model_tools.detached_copies(parameters)
        output = {"loss": loss, "rows": rows, "on_master": len(on_master)}
        outputs.append(output | {"gradients": gradients, "weights": weights})
    return outputs


def judge_step(world: JudgedWorld) -> Iterator[Judgement]:
    """Compares every step. A mistake is named if one way to make it leaves what the learner's steps left, in each."""
    inputs, outputs = world.inputs[0], world.outputs[0]
    pieces_by_case = [pieces_of(inputs, case) for case in inputs["cases"]]
    cases = list(zip(inputs["cases"], pieces_by_case, strict=True))
    results = [step_results(case, pieces, inputs["num_devices"]) for case, pieces in cases]
    mistakes = tuple(key for key in results[0] if key != "right" and is_step_mistake(key, results, outputs))
    for (case, pieces), of_case, got in zip(cases, results, outputs, strict=True):
        (right,) = of_case["right"]
        for judgement in judge_one_step(case, pieces, right, got, inputs["num_devices"]):
            # A failed Judgement that names no mistake yet gets those of all steps.
            yield judgement if judgement.ok or judgement.mistakes else replace(judgement, mistakes=mistakes)


def judge_one_step(
    case: dict[str, Any], pieces: Sequence[dict], right: StepResult, got: dict[str, Any], num_devices: int
) -> Iterator[Judgement]:
    """Expects the gradients, the weights and the mean loss of one process, and each piece on a device of its own.

    On device 0 the piece may go through the model itself, so one call on the model is right, and several are not.
    """
    size = len(case["x"])
    gradients, weights = right
    # "{}" stands for the name of a parameter, which expect_tensors fills in.
    yield from expect_tensors(words["step_gradient"].format("{}", size), gradients, got["gradients"])
    yield from expect_tensors(words["step_weight"].format("{}", size), weights, got["weights"])
    total = sum(piece["loss"] for piece in pieces)
    mistakes = {"sum_for_mean": total, "returns_nothing": None}
    yield expect_tensor(words["loss_returned"].format(size), total / size, got["loss"], mistakes=mistakes)
    rows = sorted(piece["rows"] for piece in pieces)
    mistakes = {"one_device": [size]} if rows != [size] else {}
    mistakes["even_pieces"] = sorted(map(len, case["x"].tensor_split(min(num_devices, size))))
    yield expect_equal(words["rows_computed"].format(size), rows, got["rows"], mistakes=mistakes)
    message = words["too_many_on_model"].format(got["on_master"], size)
    yield expect(got["on_master"] <= 1, message, mistakes=["weights_shared"])


def is_step_mistake(key: str, results: Sequence[Mapping[str, Sequence[StepResult]]], outputs: Sequence[dict]) -> bool:
    """Whether one way to make this mistake leaves what the learner's steps left, and is wrong in some of them.

    A way that is right in every step, as a mean of means is with pieces of one length, would explain no error.
    results: for each step a dict from the key to the results of each way. outputs: what run_step returned.
    """
    for way in zip(*(of_step[key] for of_step in results), strict=True):  # the result of one way, in each step
        is_learners, is_right = True, True
        for (gradients, weights), of_step, got in zip(way, results, outputs, strict=True):
            right_gradients, right_weights = of_step["right"][0]
            is_learners &= is_same(gradients, got["gradients"]) and is_same(weights, got["weights"])
            is_right &= is_same(gradients, right_gradients) and is_same(weights, right_weights)
        if is_learners and not is_right:
            return True
    return False


def is_same(expected: Named, got: Any) -> bool:
    """Whether two dicts of tensors are equal, and lack the same ones."""
    pairs = [(tensor, got.get(name)) for name, tensor in expected.items()]
    return all(other is None if tensor is None else is_close(tensor, other) for tensor, other in pairs)


def pieces_of(inputs: dict[str, Any], case: dict[str, Any]) -> list[dict[str, Any]]:
    """For each piece of the batch its rows, its summed loss and the gradients of that, as one process gets them."""
    pieces = []
    chunks = (case[name].chunk(inputs["num_devices"]) for name in ("x", "y"))
    for x, y in zip(*chunks, strict=True):
        model = step_model(inputs)
        model.load_state_dict(case["weights"])
        loss = (model(x) - y).square().sum()
        loss.backward()
        pieces.append({"rows": len(x), "loss": loss.detach(), "gradients": model_tools.gradients_of(model)})
    return pieces


def step_results(case: dict[str, Any], pieces: Sequence[dict], num_devices: int) -> dict[str, list[StepResult]]:
    """What the right step leaves ("right"), and what each known mistake leaves, in each way to make it.

    The pieces have the gradients of summed losses, so the right step divides their sum by the size of the batch.
    """
    size, num_pieces, num_columns = len(case["x"]), len(pieces), case["y"].shape[1]

    def weighted(factors: Sequence[float]) -> StepResult:
        """The result if the pieces' gradients are added with these factors; pieces without a factor are left out."""
        pairs = list(zip(pieces, factors, strict=False))
        gradients = {name: sum(one["gradients"][name] * factor for one, factor in pairs) for name in case["weights"]}
        return gradients, updated(case, gradients)

    # means: the factors that turn the sum of each piece into its mean.
    right, means = weighted([1 / size] * num_pieces), [1 / piece["rows"] for piece in pieces]
    gradients, weights = right
    missing, zeros = dict.fromkeys(gradients), {name: torch.zeros_like(tensor) for name, tensor in gradients.items()}
    with_stale = {name: gradients[name] + case["stale"][name] for name in gradients}  # those of an earlier step
    not_cleared = (with_stale, updated(case, with_stale))
    return {
        "right": [right],
        "not_cleared": [not_cleared],
        "never_stepped": [(gradients, case["weights"])],
        "stepped_twice": [(gradients, updated(case | {"lr": 2 * case["lr"]}, gradients))],
        # The step may have used the right gradients or those with stale ones; afterwards there are none, or zeros.
        "cleared_after": [(after, used) for after in (missing, zeros) for used in (weights, not_cleared[1])],
        # The model has no gradients, or only those of the first piece: over the batch size, as a mean, or as a sum.
        "gradients_never_back": [(missing, case["weights"]), *(weighted([one]) for one in (1 / size, means[0], 1.0))],
        "divided_by_devices": [weighted([mean / num_devices for mean in means])],
        "sum_divided_by_devices": [weighted([1 / count] * num_pieces) for count in (num_devices, num_pieces)],
        "divided_by_padded": [
            weighted([1 / num_pieces / length] * num_pieces) for length in (pieces[0]["rows"], size // num_devices or 1)
        ],
        "divided_by_elements": [weighted([1 / size / num_columns] * num_pieces)],
        # With `.mean()` as the loss of a piece, the columns of y are divided by as well.
        "mean_of_means": [weighted([mean / num_pieces / divisor for mean in means]) for divisor in (1, num_columns)],
        "sum_for_mean": [weighted(means), weighted([1.0] * num_pieces)],  # the sum of the means, or of all rows
    }


def updated(case: dict[str, Any], gradients: Named) -> Named:
    """The weights after a step of gradient descent."""
    return {name: tensor - case["lr"] * gradients[name] for name, tensor in case["weights"].items()}


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
