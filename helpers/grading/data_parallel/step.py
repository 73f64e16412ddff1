"""02.step: a whole step on replicas. What a mistake leaves is played through beside the right step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from helpers.grading.cases import CaseGenerator, Variations
from helpers.grading.data_parallel import LAB
from helpers.grading.data_parallel.cutting import batch_sizes
from helpers.grading.data_parallel.replicas import Witness, places_of
from helpers.grading.kit import model_tools
from helpers.grading.kit.comparisons import expect, expect_equal, expect_tensor, expect_tensors, is_close
from helpers.grading.task import JudgedWorld, Judgement, RankContext, Task
from helpers.learner.words import Words

Named = Mapping[str, Tensor | None]
After = tuple[Named, Named]  # a step leaves gradients and weights


def network(inputs: dict[str, Any]) -> nn.Module:
    widths = inputs["widths"]
    model = nn.Sequential(Witness(widths[0], widths[1]), nn.Tanh(), nn.Linear(widths[1], widths[2]))
    return model.to(getattr(torch, inputs["dtype"]))


def make_step(rng: CaseGenerator, num_devices: int) -> list[dict[str, Any]]:
    """Steps of one model, each from other weights, with batches of every size."""
    widths = [rng.integer(3, 5), rng.integer(3, 5), rng.integer(2, 3)]
    inputs = {"num_devices": num_devices, "widths": widths, "dtype": rng.case.dtypes, "cases": []}
    model = network(inputs)
    for size in batch_sizes(rng, num_devices):
        data = {"x": rng.tensor(size, widths[0]), "y": rng.tensor(size, widths[2]), "lr": rng.integer(1, 9) / 20}
        weights, stale = (
            {name: tensor.to(model[0].weight) for name, tensor in model_tools.random_weights(rng, model).items()}
            for _ in range(2)
        )
        inputs["cases"].append(data | {"weights": weights, "stale": stale})
    return [inputs]


def run_step(submitted, inputs: dict[str, Any], context: RankContext) -> list[dict[str, Any]]:
    model, outputs = network(inputs), []
    parameters = dict(model.named_parameters())
    masters = set(places_of(parameters.values()))
    for case in inputs["cases"]:
        model.load_state_dict(case["weights"])
        for name, parameter in parameters.items():
            parameter.grad = case["stale"][name].clone()
        optimizer = model_tools.GradientDescent(parameters.values(), case["lr"])
        Witness.notes.clear()
        loss = submitted(model, optimizer, case["x"], case["y"], inputs["num_devices"])
        on_master = [note for note in Witness.notes if masters & set(note["places"])]
        if isinstance(loss, float):
            loss = torch.tensor(loss, dtype=case["x"].dtype)
        after = {"gradients": {name: p.grad for name, p in parameters.items()}, "weights": parameters}
        after = {kind: model_tools.detached_copies(tensors) for kind, tensors in after.items()}
        rows = sorted(note["rows"] for note in Witness.notes)
        outputs.append({"loss": loss, "rows": rows, "on_master": len(on_master)} | after)
    return outputs


def judge_step(world: JudgedWorld) -> Iterator[Judgement]:
    """A mistake is one that explains every step."""
    inputs, outputs = world.inputs[0], world.outputs[0]
    parts = [pieces_of(inputs, case) for case in inputs["cases"]]
    told = [stories(case, some, inputs["num_devices"]) for case, some in zip(inputs["cases"], parts, strict=True)]
    known = tuple(key for key in told[0] if key != "right" and explains(key, told, outputs))
    for case, some, story, got in zip(inputs["cases"], parts, told, outputs, strict=True):
        for finding in judge_one(case, some, story["right"][0], got):
            yield finding if finding.ok or finding.mistakes else replace(finding, mistakes=known)


def judge_one(case: dict[str, Any], parts: Sequence[dict], right: After, got: dict[str, Any]) -> Iterator[Judgement]:
    size = len(case["x"])
    yield from expect_tensors(STEP_GRADIENT.format("{}", size), right[0], got["gradients"])
    yield from expect_tensors(STEP_WEIGHT.format("{}", size), right[1], got["weights"])
    yield expect_tensor(LOSS.format(size), sum(part["loss"] for part in parts) / size, got["loss"])
    rows = sorted(part["rows"] for part in parts)
    known = {"one_device": [size]} if rows != [size] else {}
    yield expect_equal(ROWS.format(size), rows, got["rows"], mistakes=known)
    yield expect(
        got["on_master"] <= 1,
        f"{got['on_master']} pieces (batch of {size}) are computed with the model's own weights: only replica 0 may",
        f"{got['on_master']} 份数据（batch 大小 {size}）用了模型自己的权重：只有副本 0 可以",
    )


def explains(key: str, told: Sequence[Mapping[str, Sequence[After]]], outputs: Sequence[dict]) -> bool:
    """Whether one way to make this mistake leaves what was left, in every step, and is wrong in some."""
    for ways in zip(*(story[key] for story in told), strict=True):
        is_told = all(
            alike(way[0], got["gradients"]) and alike(way[1], got["weights"])
            for way, got in zip(ways, outputs, strict=True)
        )
        is_wrong = not all(alike(way[0], story["right"][0][0]) for way, story in zip(ways, told, strict=True))
        if is_told and is_wrong:
            return True
    return False


def alike(expected: Named, got: Any) -> bool:
    pairs = [(tensor, got.get(name)) for name, tensor in expected.items()]
    return all(other is None if tensor is None else is_close(tensor, other) for tensor, other in pairs)


def pieces_of(inputs: dict[str, Any], case: dict[str, Any]) -> list[dict[str, Any]]:
    """Of each piece of the batch: rows, summed loss and its gradients, as one process gets them."""
    parts = []
    chunks = (case[name].chunk(inputs["num_devices"]) for name in ("x", "y"))
    for x, y in zip(*chunks, strict=True):
        model = network(inputs)
        model.load_state_dict(case["weights"])
        loss = (model(x) - y).square().sum()
        loss.backward()
        parts.append({"rows": len(x), "loss": loss.detach(), "gradients": model_tools.gradients_of(model)})
    return parts


def stories(case: dict[str, Any], parts: Sequence[dict], num_devices: int) -> dict[str, list[After]]:
    """What the right step leaves, and each known mistake, in each way to make it."""
    rows, size, number, columns = [part["rows"] for part in parts], len(case["x"]), len(parts), case["y"].shape[1]

    def after(factors: Sequence[float]) -> After:
        pairs = list(zip(parts, factors, strict=False))
        gradients = {name: sum(one["gradients"][name] * factor for one, factor in pairs) for name in case["weights"]}
        return gradients, moved(case, gradients)

    right, means = after([1 / size] * number), [1 / n for n in rows]
    nowhere, zeros = dict.fromkeys(right[0]), {name: torch.zeros_like(tensor) for name, tensor in right[0].items()}
    stale = {name: right[0][name] + case["stale"][name] for name in right[0]}
    return {
        "right": [right],
        "not_cleared": [(stale, moved(case, stale))],
        "cleared_after": [(none, new) for none in (nowhere, zeros) for new in (right[1], moved(case, stale))],
        "gradients_never_back": [(nowhere, case["weights"]), *(after([one]) for one in (1 / size, means[0], 1.0))],
        "divided_by_devices": [after([mean / num_devices for mean in means])],
        "divided_by_elements": [after([1 / size / columns] * number)],
        "mean_of_means": [after([mean / number / by for mean in means]) for by in (1, columns)],
        "sum_for_mean": [after(means), after([1.0] * number)],
    }


def moved(case: dict[str, Any], gradients: Named) -> Named:
    return {name: tensor - case["lr"] * gradients[name] for name, tensor in case["weights"].items()}


STEP_GRADIENT = Words(en="the gradient of {} (batch of {})", zh="{} 的梯度（batch 大小 {}）")
STEP_WEIGHT = Words(en="the parameter {} after the step (batch of {})", zh="更新后的参数 {}（batch 大小 {}）")
LOSS = Words(en="the loss that is returned (batch of {})", zh="返回的 loss（batch 大小 {}）")
ROWS = Words(en="the rows that the replicas compute on (batch of {})", zh="各副本计算的行数（batch 大小 {}）")
STEP = Task(
    key="02.step",
    signature="train_step(model, optimizer, x, y, num_devices)",
    make_inputs=make_step,
    run_submission=run_step,
    judge=judge_step,
    hints=LAB.hints(
        "not_cleared",
        "cleared_after",
        "gradients_never_back",
        "divided_by_devices",
        "divided_by_elements",
        "mean_of_means",
        "sum_for_mean",
        "one_device",
    ),
    runs_on="devices",
    variations=Variations(dtypes=("float64", "float32")),
    must_not_change=("x", "y"),
)
