"""02.replicate: copies whose gradients come back to the master."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from helpers.grading.cases import CaseGenerator, Variations
from helpers.grading.data_parallel import LAB
from helpers.grading.kit import model_tools
from helpers.grading.kit.comparisons import expect, expect_equal, expect_tensor, expect_tensors
from helpers.grading.task import JudgedWorld, Judgement, RankContext, Task
from helpers.learner.words import Words


class Witness(nn.Linear):
    """Notes in whose memory it computes, on how many rows."""

    notes: list[dict[str, Any]] = []  # of this process, whatever copies there are

    def forward(self, x: Tensor) -> Tensor:
        places = places_of([self.weight] if self.bias is None else [self.weight, self.bias])
        self.notes.append({"module": id(self), "places": places, "rows": len(x)})
        return super().forward(x)


def places_of(tensors) -> list[int]:
    return [tensor.untyped_storage().data_ptr() for tensor in tensors]


class Net(nn.Module):
    """Parameters at the root and deep inside, one in two places, one that is None, one frozen; buffers of BatchNorm."""

    def __init__(self, width: int):
        super().__init__()
        inner = nn.Sequential(Witness(3, width), nn.Tanh(), nn.BatchNorm1d(width))  # a bias before it has no gradient
        self.first = nn.Sequential(inner, Witness(width, width, bias=False), nn.Tanh())
        self.again = Witness(width, width)
        self.again.weight = self.first[1].weight
        self.last = nn.Linear(width, 2)
        self.last.bias.requires_grad_(False)
        self.scale = nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.last(self.again(self.first(x)))


def make_replicate(rng: CaseGenerator, num_devices: int) -> list[dict[str, Any]]:
    """The same model replicated twice, with other weights: in training, and in evaluation.

    In float32 only in evaluation: the gradient in front of BatchNorm is a difference of large numbers in training.
    """
    width = rng.integer(3, 6)
    model = Net(width)
    sets = {name: b.shape for name, b in model.named_buffers() if b.is_floating_point()}
    rounds = []
    for is_training in (rng.case.dtypes == "float64", False):
        buffers = {name: rng.normal(*shape).abs() for name, shape in sets.items()}
        buffers["first.0.2.num_batches_tracked"] = torch.tensor(rng.integer(1, 1000))
        shares = [rng.tensor(rng.integer(3, 6), 3) for _ in range(num_devices)]
        values = {"weights": model_tools.random_weights(rng, model), "buffers": buffers, "shares": shares}
        rounds.append(values | {"is_training": is_training})
    return [{"width": width, "dtype": rng.case.dtypes, "rounds": rounds}]


def built(inputs: dict[str, Any]) -> nn.Module:
    return Net(inputs["width"]).to(getattr(torch, inputs["dtype"]))


@torch.no_grad()
def fill(model: nn.Module, values: dict[str, Any]) -> None:
    """Weights and buffers in their places, no gradients."""
    model.train(values["is_training"])
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        tensor.grad = None
        tensor.copy_((values["weights"] | values["buffers"])[name])


def run_replicate(submitted, inputs: dict[str, Any], context: RankContext) -> Iterator[None]:
    """Replicas of two models are about at the same time."""
    model, rounds = built(inputs), []
    for values in inputs["rounds"]:
        fill(model, values)
        parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
        replicas = submitted(model, len(values["shares"]))
        changed = [name for name, p in parameters.items() if dict(model.named_parameters()).get(name) is not p]
        yield
        got = {"changed": changed, "master": places_of(parameters.values())}
        if not isinstance(replicas, list | tuple) or len(replicas) != len(values["shares"]):
            got["number"] = len(replicas) if isinstance(replicas, list | tuple) else type(replicas).__name__
        else:
            got |= {"number": len(replicas), **used(replicas, values["shares"])}
        rounds.append(got | {"gradients": gradients(parameters), "buffers": model_tools.detached_copies(buffers)})
        if changed:
            break  # what comes now is a consequence
    return rounds


def used(replicas: list[Any], shares: list[Tensor]) -> dict[str, Any]:
    """Outputs and notes of each replica, after backward through all."""
    outputs, notes = [], []
    for replica, share in zip(replicas, shares, strict=True):
        Witness.notes.clear()
        outputs.append(replica(share))
        notes.append(list(Witness.notes))
    loss = sum(output.square().sum() for output in outputs)
    if isinstance(loss, Tensor) and loss.requires_grad:
        loss.backward()
    return {"outputs": outputs, "notes": notes}


def gradients(parameters: dict[str, nn.Parameter]) -> dict[str, Tensor | None]:
    return model_tools.detached_copies({name: parameter.grad for name, parameter in parameters.items()})


def judge_replicate(world: JudgedWorld) -> Iterator[Judgement]:
    inputs = world.inputs[0]
    for values, got in zip(inputs["rounds"], world.outputs[0], strict=False):
        yield expect_equal(NUM_REPLICAS, len(values["shares"]), got["number"])
        if got["number"] != len(values["shares"]):
            return
        yield from judge_round(inputs, values, got)


def judge_round(inputs: dict[str, Any], values: dict[str, Any], got: dict[str, Any]) -> Iterator[Judgement]:
    kept = not got["changed"]
    first = got["changed"][0] if got["changed"] else ""
    en, zh = (
        f"the model itself is changed: its {first} is another tensor now",
        f"模型本身被改动了：{first} 换成了别的张量",
    )
    yield expect(kept, en, zh, mistakes=["master_changed"])
    own = [one_share(inputs, values, share) for share in values["shares"]]
    for device, (right, output) in enumerate(zip(own, got["outputs"], strict=True)):
        yield expect_tensor(OUTPUT, right["output"], output, rank=device)
    frozen = [name for name, gradient in own[0]["gradients"].items() if gradient is None]
    total = {name: sum(one["gradients"][name] for one in own) for name in values["weights"] if name not in frozen}
    nowhere, of_one = dict.fromkeys(total), own[0]["gradients"]
    mistakes = {"gradients_stay": [nowhere, of_one] if len(own) > 1 else [nowhere]} if kept else {}
    yield from expect_tensors(GRADIENT, total, got["gradients"], mistakes=mistakes)
    for name in frozen:
        yield expect_equal(GRADIENT.format(name), None, got["gradients"][name])
    yield from judge_places(got)
    yield from judge_buffers(inputs, values, got, own)


def one_share(inputs: dict[str, Any], values: dict[str, Any], share: Tensor) -> dict[str, Any]:
    """What one process gets from the first weights: output, gradients of the summed squares, buffers after forward."""
    model = built(inputs)
    fill(model, values)
    output = model(share)
    output.square().sum().backward()
    return {
        "output": output.detach(),
        "gradients": model_tools.gradients_of(model),
        "buffers": model_tools.detached_copies(dict(model.named_buffers())),
    }


def judge_places(got: dict[str, Any]) -> Iterator[Judgement]:
    """Every replica but the first computes with weights of its own, in modules of its own."""
    taken, modules = set(got["master"]), [note["module"] for note in got["notes"][0]]
    for device, notes in enumerate(got["notes"][1:], start=1):
        places = {place for note in notes for place in note["places"]}
        yield expect(
            not places & taken,
            "the replica computes with the memory of another one, so not all was copied to this device",
            "副本用的是别的副本的内存：没有全部复制到这个设备",
            rank=device,
            mistakes=["weights_shared"] if places & set(got["master"]) else [],
        )
        taken |= places
        modules += [note["module"] for note in notes]
    yield expect(
        len(set(modules)) == len(modules),
        "replicas share a module, and they will run at the same time",
        "多个副本共用同一个 module，而它们将同时运行",
        mistakes=["module_shared"],
    )


def judge_buffers(
    inputs: dict[str, Any], values: dict[str, Any], got: dict[str, Any], own: list[dict[str, Any]]
) -> Iterator[Judgement]:
    """The model has what replica 0 wrote, and what the others wrote is lost."""
    model = built(inputs)
    fill(model, values)
    before = model_tools.detached_copies(dict(model.named_buffers()))
    for share in values["shares"]:
        model(share)
    mistakes = {"buffers_lost": before, "buffers_shared": model_tools.detached_copies(dict(model.named_buffers()))}
    yield from expect_tensors(BUFFER, own[0]["buffers"], got["buffers"], mistakes=mistakes)


NUM_REPLICAS = Words(en="the number of replicas", zh="副本个数")
OUTPUT = Words(en="the output of the replica", zh="副本的输出")
GRADIENT = Words(en="the gradient that reaches the model's {}", zh="传回模型 {} 的梯度")
BUFFER = Words(en="the model's buffer {} after forward", zh="前向之后模型的 buffer {} ")
REPLICATE = Task(
    key="02.replicate",
    signature="replicate(model, num_devices)",
    make_inputs=make_replicate,
    run_submission=run_replicate,
    judge=judge_replicate,
    hints=LAB.hints(
        "master_changed", "gradients_stay", "weights_shared", "buffers_shared", "buffers_lost", "module_shared"
    ),
    runs_on="devices",
    variations=Variations(dtypes=("float64", "float32")),
    must_not_change=("model",),
)
