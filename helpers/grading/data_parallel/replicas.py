"""02.replicate and 02.step: copies whose gradients come back to the master, and a whole step with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from helpers.grading.data_parallel import hints
from helpers.grading.data_parallel.cutting import batch_sizes
from helpers.grading.kit import making
from helpers.grading.kit.judging import expect, expect_equal, expect_tensor, expect_tensors
from helpers.grading.task import Finding, Task, Trial, World
from helpers.words import Words

Named = Mapping[str, Tensor]
LEARNING_RATE = 0.1


class Witness(nn.Linear):
    """Notes in whose memory it computes, on how many rows."""

    notes: list[dict[str, int]] = []  # of this process, whatever copies there are

    def forward(self, x: Tensor) -> Tensor:
        place = self.weight.untyped_storage().data_ptr()
        self.notes.append({"module": id(self), "weight": place, "rows": len(x)})
        return super().forward(x)


# -- 02.replicate ----------------------------------------------------------------------------------------------------
def normed(width: int) -> nn.Module:
    """With BatchNorm in the middle of a nested module: buffers that forward writes. 3 inputs, 2 outputs."""
    inner = nn.Sequential(Witness(3, width), nn.Tanh(), nn.BatchNorm1d(width))  # a bias in front of it has no gradient
    return nn.Sequential(inner, nn.Linear(width, 2)).double()


def make_replicate(rng: torch.Generator, num_devices: int) -> list[dict[str, Any]]:
    width = making.integer(rng, 3, 6)
    model = normed(width)
    buffers = {name: making.normal(rng, *b.shape).abs() for name, b in model.named_buffers() if b.is_floating_point()}
    buffers["0.2.num_batches_tracked"] = torch.tensor(making.integer(rng, 1, 1000))
    shares = [making.normal(rng, making.integer(rng, 3, 6), 3) for _ in range(num_devices)]
    return [{"width": width, "weights": making.weights_for(rng, model), "buffers": buffers, "shares": shares}]


def loaded(inputs: dict[str, Any]) -> nn.Module:
    model = normed(inputs["width"])
    model.load_state_dict(inputs["weights"] | inputs["buffers"])
    return model


def act_replicate(submitted, inputs: dict[str, Any], trial: Trial) -> dict[str, Any]:
    model = loaded(inputs)
    parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    master = parameters["0.0.weight"].untyped_storage().data_ptr()
    replicas = submitted(model, len(inputs["shares"]))
    changed = [name for name, p in parameters.items() if dict(model.named_parameters()).get(name) is not p]
    if not isinstance(replicas, list | tuple) or len(replicas) != len(inputs["shares"]):
        return {"number": len(replicas) if isinstance(replicas, list | tuple) else type(replicas).__name__}
    Witness.notes.clear()
    outputs = [replica(share) for replica, share in zip(replicas, inputs["shares"], strict=True)]
    notes = list(Witness.notes)
    loss = sum(output.square().sum() for output in outputs)
    if isinstance(loss, Tensor) and loss.requires_grad:
        loss.backward()
    gradients = {name: parameter.grad for name, parameter in parameters.items()}
    more = {"master": master, "notes": notes, "changed": changed, "buffers": buffers}
    return {"number": len(replicas), "outputs": outputs, "gradients": gradients} | more


def judge_replicate(world: World) -> Iterator[Finding]:
    inputs, got = world.inputs[0], world.outputs[0]
    yield expect_equal(NUM_REPLICAS, len(inputs["shares"]), got["number"])
    if got["number"] != len(inputs["shares"]):
        return
    kept = not got["changed"]
    first = got["changed"][0] if got["changed"] else ""
    en, zh = (
        f"the model itself is changed: its {first} is another tensor now",
        f"模型本身被改动了：{first} 换成了别的张量",
    )
    yield expect(kept, en, zh, mistakes=["master_changed"])
    own = [one_share(inputs, share) for share in inputs["shares"]]
    for device, (right, output) in enumerate(zip(own, got["outputs"], strict=True)):
        yield expect_tensor(OUTPUT, right["output"], output, rank=device)
    total = {name: sum(one["gradients"][name] for one in own) for name in inputs["weights"]}
    nowhere, of_one = dict.fromkeys(total), own[0]["gradients"]
    mistakes = {"gradients_stay": [nowhere, of_one] if len(own) > 1 else [nowhere]} if kept else {}
    yield from expect_tensors(GRADIENT, total, got["gradients"], mistakes=mistakes)
    yield from judge_places(got)
    yield from judge_buffers(inputs, got, own)


def one_share(inputs: dict[str, Any], share: Tensor) -> dict[str, Any]:
    """What one process gets from the first weights: output, gradients of the summed squares, buffers after forward."""
    model = loaded(inputs)
    output = model(share)
    output.square().sum().backward()
    return {
        "output": output.detach(),
        "gradients": making.gradients_of(model),
        "buffers": making.copies(dict(model.named_buffers())),
    }


def judge_places(got: dict[str, Any]) -> Iterator[Finding]:
    """Every replica but the first computes with weights of its own, in a module of its own."""
    notes = got["notes"]
    taken = {got["master"]}
    for device, note in enumerate(notes[1:], start=1):
        yield expect(
            note["weight"] not in taken,
            "the replica computes with the memory of another one, so nothing was copied to this device",
            "副本用的是别的副本的内存：没有复制到这个设备",
            rank=device,
            mistakes=["weights_shared"] if note["weight"] == got["master"] else [],
        )
        taken.add(note["weight"])
    modules = {note["module"] for note in notes}
    yield expect(
        len(modules) == len(notes),
        "replicas share a module, and they will run at the same time",
        "多个副本共用同一个 module，而它们将同时运行",
        mistakes=["module_shared"],
    )


def judge_buffers(inputs: dict[str, Any], got: dict[str, Any], own: Sequence[dict]) -> Iterator[Finding]:
    """The model has what replica 0 wrote, and what the others wrote is lost."""
    model = loaded(inputs)
    for share in inputs["shares"]:
        model(share)
    mistakes = {"buffers_lost": inputs["buffers"], "buffers_shared": making.copies(dict(model.named_buffers()))}
    yield from expect_tensors(BUFFER, own[0]["buffers"], got["buffers"], mistakes=mistakes)


NUM_REPLICAS = Words(en="the number of replicas", zh="副本个数")
OUTPUT = Words(en="the output of the replica", zh="副本的输出")
GRADIENT = Words(en="the gradient that reaches the model's {}", zh="传回模型 {} 的梯度")
BUFFER = Words(en="the model's buffer {} after forward", zh="前向之后模型的 buffer {} ")
REPLICATE = Task(
    key="02.replicate",
    signature="replicate(model, num_devices)",
    make=make_replicate,
    act=act_replicate,
    judge=judge_replicate,
    hints=hints.of(
        "master_changed", "gradients_stay", "weights_shared", "buffers_shared", "buffers_lost", "module_shared"
    ),
    unit="device",
)


# -- 02.step ---------------------------------------------------------------------------------------------------------
def network(widths: Sequence[int]) -> nn.Module:
    return nn.Sequential(Witness(widths[0], widths[1]), nn.Tanh(), nn.Linear(widths[1], widths[2])).double()


def make_step(rng: torch.Generator, num_devices: int) -> list[dict[str, Any]]:
    """Two steps, each of a fresh model, with a batch that leaves unequal pieces and with one below N."""
    widths = [making.integer(rng, 3, 5), making.integer(rng, 3, 5), 2]
    model, cases = network(widths), []
    for size in batch_sizes(rng, num_devices):
        data = {"x": making.normal(rng, size, widths[0]), "y": making.normal(rng, size, widths[2])}
        cases.append({"weights": making.weights_for(rng, model), "stale": making.weights_for(rng, model)} | data)
    return [{"num_devices": num_devices, "widths": widths, "cases": cases}]


def act_step(submitted, inputs: dict[str, Any], trial: Trial) -> list[dict[str, Any]]:
    outputs = []
    for case in inputs["cases"]:
        model = network(inputs["widths"])
        model.load_state_dict(case["weights"])
        parameters = dict(model.named_parameters())
        for name, parameter in parameters.items():
            parameter.grad = case["stale"][name].clone()
        optimizer = making.Descent(parameters.values(), LEARNING_RATE)
        Witness.notes.clear()
        loss = submitted(model, optimizer, case["x"].clone(), case["y"].clone(), inputs["num_devices"])
        rows = [note["rows"] for note in Witness.notes]
        if isinstance(loss, float):
            loss = torch.tensor(loss, dtype=torch.float64)
        gradients = making.copies({name: parameter.grad for name, parameter in parameters.items()})
        outputs.append({"loss": loss, "rows": sorted(rows), "gradients": gradients, "weights": parameters})
    return outputs


def judge_step(world: World) -> Iterator[Finding]:
    inputs = world.inputs[0]
    for case, got in zip(inputs["cases"], world.outputs[0], strict=True):
        size = len(case["x"])
        parts = pieces_of(inputs, case)
        sums = [part["gradients"] for part in parts]
        right = combined(sums, [1 / size] * len(parts))
        wrong = wrong_steps(case, parts, right, inputs["num_devices"])
        yield from expect_tensors(STEP_GRADIENT.format("{}", size), right, got["gradients"], mistakes=wrong)
        moved = {name: case["weights"][name] - LEARNING_RATE * right[name] for name in right}
        yield from expect_tensors(STEP_WEIGHT.format("{}", size), moved, got["weights"])
        yield expect_tensor(LOSS.format(size), sum(part["loss"] for part in parts) / size, got["loss"])
        rows = sorted(part["rows"] for part in parts)
        known = {"one_device": [size]} if rows != [size] else {}
        yield expect_equal(ROWS.format(size), rows, got["rows"], mistakes=known)


def pieces_of(inputs: dict[str, Any], case: dict[str, Any]) -> list[dict[str, Any]]:
    """Of each piece of the batch: rows, summed loss and its gradients, as one process gets them."""
    parts = []
    chunks = (case[name].chunk(inputs["num_devices"]) for name in ("x", "y"))
    for x, y in zip(*chunks, strict=True):
        model = network(inputs["widths"])
        model.load_state_dict(case["weights"])
        loss = (model(x) - y).square().sum()
        loss.backward()
        parts.append({"rows": len(x), "loss": loss.detach(), "gradients": making.gradients_of(model)})
    return parts


def combined(gradients: Sequence[Named], factors: Sequence[float]) -> dict[str, Tensor]:
    pairs = list(zip(gradients, factors, strict=True))
    return {name: sum(one[name] * factor for one, factor in pairs) for name in gradients[0]}


def wrong_steps(case: dict, parts: Sequence[dict], right: Named, num_devices: int) -> dict[str, list]:
    """What the known mistakes leave in .grad. divided_by_devices tells itself apart where devices have no piece."""
    sums, rows, size = [part["gradients"] for part in parts], [part["rows"] for part in parts], len(case["x"])
    means, number = [1 / n for n in rows], len(parts)
    mean_of_means = combined(sums, [factor / number for factor in means])
    by_element = combined(sums, [factor / number / case["y"].shape[1] for factor in means])  # .mean() of all squares
    over_devices = combined(sums, [factor / num_devices for factor in means])
    first = [combined(sums[:1], [factor]) for factor in (1 / size, 1 / rows[0], 1.0)]
    stale = {name: right[name] + case["stale"][name] for name in right}
    return {
        "not_cleared": [stale],
        "gradients_never_back": [dict.fromkeys(right)] + (first if number > 1 else []),
        "divided_by_devices": [over_devices] if number < num_devices else [],
        "mean_of_means": [mean_of_means, by_element],
        "sum_for_mean": [combined(sums, means), combined(sums, [1.0] * number)] if number > 1 else [],
    }


STEP_GRADIENT = Words(en="the gradient of {} (batch of {})", zh="{} 的梯度（batch 大小 {}）")
STEP_WEIGHT = Words(en="the parameter {} after the step (batch of {})", zh="更新后的参数 {}（batch 大小 {}）")
LOSS = Words(en="the loss that is returned (batch of {})", zh="返回的 loss（batch 大小 {}）")
ROWS = Words(en="the rows that the replicas compute on (batch of {})", zh="各副本计算的行数（batch 大小 {}）")
STEP = Task(
    key="02.step",
    signature="train_step(model, optimizer, x, y, num_devices)",
    make=make_step,
    act=act_step,
    judge=judge_step,
    hints=hints.of(
        "not_cleared", "gradients_never_back", "divided_by_devices", "mean_of_means", "sum_for_mean", "one_device"
    ),
    unit="device",
)
