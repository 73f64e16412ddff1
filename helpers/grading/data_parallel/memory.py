"""02.memory: the bytes of each device, by kind. The master holds more."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from helpers.grading.cases import CaseGenerator
from helpers.grading.data_parallel import LAB
from helpers.grading.data_parallel.cutting import batch_sizes
from helpers.grading.kit.comparisons import expect_equal
from helpers.grading.task import JudgedWorld, Judgement, RankContext, Task
from helpers.learner.words import Words

KINDS = ("parameters", "gradients", "optimizer", "input", "outputs")
FLOAT32 = 4  # bytes
Held = list[dict[str, int]]  # a dict a device


def make_inputs(rng: CaseGenerator, num_devices: int) -> list[dict[str, Any]]:
    """The sizes of batches of task 1, and larger ones: some pieces short, some devices without work."""
    cases = []
    for batch in (*batch_sizes(rng, num_devices), 3 * num_devices - 1 + num_devices * rng.integer(0, 9)):
        sizes = {"input_bytes": rng.integer(10, 999), "output_bytes": 4 * rng.integer(1, 999)}
        cases.append({"num_parameters": rng.integer(10**3, 10**6), "batch": batch} | sizes)
    return [{"num_devices": num_devices, "cases": cases}]


def run_submission(submitted, inputs: dict[str, Any], context: RankContext) -> list[Any]:
    return [whole(submitted(inputs["num_devices"], *case.values())) for case in inputs["cases"]]


def whole(value: Any) -> Any:
    """12.0 becomes 12: a division that leaves no rest is no mistake."""
    if isinstance(value, dict):
        return {key: whole(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [whole(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def judge(world: JudgedWorld) -> Iterator[Judgement]:
    """A mistake is one that explains every answer."""
    num_devices, cases, answers = world.inputs[0]["num_devices"], world.inputs[0]["cases"], world.outputs[0]
    rights = [held(num_devices, **case) for case in cases]
    pairs = list(zip(cases, rights, strict=True))
    told = {key: [wrong(num_devices, case, right) for case, right in pairs] for key, wrong in MISTAKES.items()}
    known = tuple(key for key, wrong in told.items() if wrong == answers)
    for case, right, got in zip(cases, rights, answers, strict=True):
        given = got if isinstance(got, list) else []
        yield expect_equal(NUM_DEVICES, num_devices, len(given))
        for device, (expected, mine) in enumerate(zip(right, given, strict=False)):
            for kind in KINDS:
                what = BYTES.format(NAMES[kind], case["batch"])
                found = expect_equal(what, expected[kind], mine.get(kind), rank=device)
                yield found if found.ok else replace(found, mistakes=known)


def held(num_devices: int, num_parameters: int, batch: int, input_bytes: int, output_bytes: int) -> Held:
    """Bytes when backward is done and nothing is let go of yet; a device without examples has no replica."""
    size, devices = math.ceil(batch / num_devices), []
    for device in range(num_devices):
        rows = max(0, min(size, batch - device * size))
        weights = FLOAT32 * num_parameters if rows else 0
        moving = {"input": rows * input_bytes, "outputs": rows * output_bytes}
        devices.append({"parameters": weights, "gradients": weights, "optimizer": 0} | moving)
    master = devices[0]
    master["optimizer"] = 2 * FLOAT32 * num_parameters  # Adam's two moments
    master["input"] = batch * input_bytes
    master["outputs"] += batch * output_bytes if num_devices > 1 else 0
    return devices


# -- what the known mistakes give: each changes the right answer -----------------------------------------------------
def optimizer_everywhere(num_devices: int, case: dict, right: Held) -> Held:
    return [one | {"optimizer": 2 * one["parameters"]} for one in right]


def one_moment(num_devices: int, case: dict, right: Held) -> Held:
    return [one | {"optimizer": one["optimizer"] // 2} for one in right]


def gradients_on_master_only(num_devices: int, case: dict, right: Held) -> Held:
    return [one | {"gradients": one["gradients"] if device == 0 else 0} for device, one in enumerate(right)]


def gathered_forgotten(num_devices: int, case: dict, right: Held) -> Held:
    rows = math.ceil(case["batch"] / num_devices)
    return [right[0] | {"outputs": rows * case["output_bytes"]}, *right[1:]]


def own_share_forgotten(num_devices: int, case: dict, right: Held) -> Held:
    return [right[0] | {"outputs": case["batch"] * case["output_bytes"]}, *right[1:]]


def input_cut_on_master(num_devices: int, case: dict, right: Held) -> Held:
    rows = math.ceil(case["batch"] / num_devices)
    return [right[0] | {"input": rows * case["input_bytes"]}, *right[1:]]


def idle_replicas(num_devices: int, case: dict, right: Held) -> Held:
    weights = FLOAT32 * case["num_parameters"]
    return [one | {"parameters": weights, "gradients": weights} for one in right]


MISTAKES: dict[str, Callable[[int, dict, Held], Held]] = {
    "optimizer_everywhere": optimizer_everywhere,
    "one_moment": one_moment,
    "gradients_on_master_only": gradients_on_master_only,
    "gathered_forgotten": gathered_forgotten,
    "own_share_forgotten": own_share_forgotten,
    "input_cut_on_master": input_cut_on_master,
    "idle_replicas": idle_replicas,
}
NAMES = {
    "parameters": Words(en="parameters", zh="参数"),
    "gradients": Words(en="gradients", zh="梯度"),
    "optimizer": Words(en="optimizer states", zh="优化器状态"),
    "input": Words(en="input", zh="输入"),
    "outputs": Words(en="outputs", zh="输出"),
}
NUM_DEVICES = Words(en="the number of dicts in the list", zh="列表中 dict 的个数")
BYTES = Words(en="the number of bytes of {} (batch of {})", zh="{}的字节数（batch 大小 {}）")
MEMORY = Task(
    key="02.memory",
    signature="memory(num_devices, num_parameters, batch, input_bytes, output_bytes)",
    make_inputs=make_inputs,
    run_submission=run_submission,
    judge=judge,
    hints=LAB.hints(*MISTAKES),
    runs_on="devices",
)
