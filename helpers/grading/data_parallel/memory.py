"""Judges 02.memory: the bytes that each simulated device holds, by kind; the master holds more than the others.

The answer is asked about several batches. Each known mistake changes the right answer in one way, and it is named
only if the changed answers are exactly the learner's for all batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from helpers.grading.cases import CaseGenerator
from helpers.grading.data_parallel import LAB
from helpers.grading.data_parallel.scatter_gather import batch_sizes
from helpers.grading.kit.comparisons import expect_equal
from helpers.grading.task import JudgedWorld, Judgement, RankContext, Task

words = LAB.messages

KINDS = ("parameters", "gradients", "optimizer", "input", "outputs")
FLOAT32_BYTES = 4
BytesByDevice = list[dict[str, int]]  # one dict per device: kind -> bytes


def make_inputs(rng: CaseGenerator, num_devices: int) -> list[dict[str, Any]]:
    """The batch sizes of 02.scatter and a larger one, so that some pieces are short and some devices have no work."""
    cases = []
    for batch in (*batch_sizes(rng, num_devices), 3 * num_devices - 1 + num_devices * rng.integer(0, 9)):
        sizes = {"input_bytes": rng.integer(10, 999), "output_bytes": 4 * rng.integer(1, 999)}
        cases.append({"num_parameters": rng.integer(10**3, 10**6), "batch": batch} | sizes)
    return [{"num_devices": num_devices, "cases": cases}]


def run_submission(submitted, inputs: dict[str, Any], context: RankContext) -> list[Any]:
    return [with_integers(submitted(inputs["num_devices"], *case.values())) for case in inputs["cases"]]


def with_integers(value: Any) -> Any:
    """The answer with 12 for 12.0, since it is no mistake to divide with `/`."""
    if isinstance(value, dict):
        return {key: with_integers(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [with_integers(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def judge(world: JudgedWorld) -> Iterator[Judgement]:
    """Compares every number. A mistake is named if it gives the learner's answers to all cases."""
    num_devices, cases, answers = world.inputs[0]["num_devices"], world.inputs[0]["cases"], world.outputs[0]
    right_answers = [device_bytes(num_devices, **case) for case in cases]
    pairs = list(zip(cases, right_answers, strict=True))
    wrong_answers = {key: [wrong(num_devices, *pair) for pair in pairs] for key, wrong in MISTAKES.items()}
    mistakes = tuple(key for key, wrong in wrong_answers.items() if wrong == answers)
    for case, right, got in zip(cases, right_answers, answers, strict=True):
        given = got if isinstance(got, list) else []
        yield expect_equal(words["num_devices"], num_devices, len(given))
        for device, (expected, of_device) in enumerate(zip(right, given, strict=False)):
            for kind in KINDS:
                what = words["bytes_of_kind"].format(words[kind], case["batch"])
                judgement = expect_equal(what, expected[kind], of_device.get(kind), rank=device)
                yield judgement if judgement.ok else replace(judgement, mistakes=mistakes)


def device_bytes(
    num_devices: int, num_parameters: int, batch: int, input_bytes: int, output_bytes: int
) -> BytesByDevice:
    """The bytes when backward is done and nothing is freed yet; a device without examples has no replica."""
    size, devices = math.ceil(batch / num_devices), []
    for device in range(num_devices):
        rows = max(0, min(size, batch - device * size))
        weights = FLOAT32_BYTES * num_parameters if rows else 0
        by_rows = {"input": rows * input_bytes, "outputs": rows * output_bytes}
        devices.append({"parameters": weights, "gradients": weights, "optimizer": 0} | by_rows)
    master = devices[0]
    master["optimizer"] = 2 * FLOAT32_BYTES * num_parameters  # Adam's two moments
    master["input"] = batch * input_bytes
    master["outputs"] += batch * output_bytes if num_devices > 1 else 0
    return devices


# -- the known mistakes, each of which changes the right answer ------------------------------------------------------
def optimizer_everywhere(num_devices: int, case: dict, right: BytesByDevice) -> BytesByDevice:
    return [of_device | {"optimizer": 2 * of_device["parameters"]} for of_device in right]


def one_moment(num_devices: int, case: dict, right: BytesByDevice) -> BytesByDevice:
    return [of_device | {"optimizer": of_device["optimizer"] // 2} for of_device in right]


def gradients_on_master_only(num_devices: int, case: dict, right: BytesByDevice) -> BytesByDevice:
    return [
        of_device | {"gradients": of_device["gradients"] if device == 0 else 0}
        for device, of_device in enumerate(right)
    ]


def gathered_forgotten(num_devices: int, case: dict, right: BytesByDevice) -> BytesByDevice:
    rows = math.ceil(case["batch"] / num_devices)
    return [right[0] | {"outputs": rows * case["output_bytes"]}, *right[1:]]


def own_share_forgotten(num_devices: int, case: dict, right: BytesByDevice) -> BytesByDevice:
    return [right[0] | {"outputs": case["batch"] * case["output_bytes"]}, *right[1:]]


def input_cut_on_master(num_devices: int, case: dict, right: BytesByDevice) -> BytesByDevice:
    rows = math.ceil(case["batch"] / num_devices)
    return [right[0] | {"input": rows * case["input_bytes"]}, *right[1:]]


def idle_replicas(num_devices: int, case: dict, right: BytesByDevice) -> BytesByDevice:
    weights = FLOAT32_BYTES * case["num_parameters"]
    return [of_device | {"parameters": weights, "gradients": weights} for of_device in right]


MISTAKES: dict[str, Callable[[int, dict, BytesByDevice], BytesByDevice]] = {
    "optimizer_everywhere": optimizer_everywhere,
    "one_moment": one_moment,
    "gradients_on_master_only": gradients_on_master_only,
    "gathered_forgotten": gathered_forgotten,
    "own_share_forgotten": own_share_forgotten,
    "input_cut_on_master": input_cut_on_master,
    "idle_replicas": idle_replicas,
}
MEMORY = Task(
    key="02.memory",
    signature="memory(num_devices, num_parameters, batch, input_bytes, output_bytes)",
    make_inputs=make_inputs,
    run_submission=run_submission,
    judge=judge,
    hints=LAB.hints(*MISTAKES),
    runs_on="devices",
)
