"""Judges 02.memory: the bytes that each simulated device holds, by kind; the master holds more than the others.

The N devices are simulated in one process, and device 0 is the master. The learner's function is asked several
questions, called cases: the number of devices, the number of parameters, and a batch. It returns for each device a dict
of the bytes of each kind. `judge` gets a JudgedWorld, whose inputs[0] has the cases and outputs[0] the learner's
answers, and yields one Judgement per number.

A mistake is a wrong answer that learners often give. Its key, such as "one_moment", is that of its hint in hints.yaml.
Each mistake changes the right answer in one way, and it is named if the changed answers are the learner's in all cases.
`words["…"]` is a sentence of messages.yaml, or what a sentence calls a value. `rng` draws random numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from helpers.grading.cases import CaseGenerator
from helpers.grading.data_parallel import LAB
from helpers.grading.data_parallel.scatter_gather import batch_sizes
from helpers.grading.kit.comparisons import expect_equal
from helpers.grading.kit.model_tools import simplified
from helpers.grading.task import JudgedWorld, Judgement, RankContext, Task

words = LAB.messages

KINDS = ("parameters", "gradients", "optimizer", "input", "outputs")
FLOAT32_BYTES = 4
BytesByDevice = list[dict[str, int]]  # one dict per device, with the bytes of each of KINDS


def make_inputs(rng: CaseGenerator, num_devices: int) -> list[dict[str, Any]]:
    """The batch sizes of 02.scatter and a larger one, so that some pieces are short and some devices have no work.

    input_bytes and output_bytes are those of one example.
    """
    cases = []
    for batch in (*batch_sizes(rng, num_devices), 3 * num_devices - 1 + num_devices * rng.integer(0, 9)):
        sizes = {"input_bytes": rng.integer(10, 999), "output_bytes": 4 * rng.integer(1, 999)}  # 4: outputs are float32
        cases.append({"num_parameters": rng.integer(10**3, 10**6), "batch": batch} | sizes)
    return [{"num_devices": num_devices, "cases": cases}]


def run_submission(submitted, inputs: dict[str, Any], context: RankContext) -> list[Any]:
    """The learner's answer in each case, with 12 for 12.0, since it is no mistake to divide with `/`."""
    return [simplified(submitted(inputs["num_devices"], *case.values())) for case in inputs["cases"]]


def judge(world: JudgedWorld) -> Iterator[Judgement]:
    """Compares every number. A mistake is named if it gives the learner's answers to all cases."""
    num_devices, cases, answers = world.inputs[0]["num_devices"], world.inputs[0]["cases"], world.outputs[0]
    right_answers = [device_bytes(num_devices, **case) for case in cases]
    wrong_answers = [wrong_bytes(*pair) for pair in zip(cases, right_answers, strict=True)]
    mistakes = tuple(key for key in wrong_answers[0] if [wrong[key] for wrong in wrong_answers] == answers)
    for case, right, got in zip(cases, right_answers, answers, strict=True):
        given = got if isinstance(got, list) else []
        left_out = {"idle_left_out": sum(one["parameters"] > 0 for one in right)}
        yield expect_equal(words["num_devices"], num_devices, len(given), mistakes=left_out)
        for device, (expected, of_device) in enumerate(zip(right, given, strict=False)):
            rows = rows_of(device, num_devices, case["batch"])
            of_device = of_device if isinstance(of_device, dict) else {}
            for kind in KINDS:
                place = "master" if device == 0 else "other"
                what = words[f"{kind}.{place}"].format(rows, case["batch"])
                judgement = expect_equal(what, expected[kind], of_device.get(kind), rank=device)
                yield judgement if judgement.ok else replace(judgement, mistakes=mistakes)


def rows_of(device: int, num_devices: int, batch: int) -> int:
    """The examples on a device; the last devices get fewer or none."""
    size = math.ceil(batch / num_devices)
    return max(0, min(size, batch - device * size))


def device_bytes(
    num_devices: int,
    num_parameters: int,
    batch: int,
    input_bytes: int,
    output_bytes: int,
    all_rows: Sequence[int] | None = None,
) -> BytesByDevice:
    """The bytes when backward is done and nothing is freed yet; a device without examples has no replica.

    all_rows: the number of examples on each device; None for the right ones.
    """
    devices = []
    for rows in all_rows or [rows_of(device, num_devices, batch) for device in range(num_devices)]:
        weights = FLOAT32_BYTES * num_parameters if rows else 0
        by_rows = {"input": rows * input_bytes, "outputs": rows * output_bytes}
        devices.append({"parameters": weights, "gradients": weights, "optimizer": 0} | by_rows)
    master = devices[0]
    master["optimizer"] = 2 * FLOAT32_BYTES * num_parameters  # Adam's two moments
    master["input"] = batch * input_bytes  # the full batch, which the master splits
    master["outputs"] += batch * output_bytes if num_devices > 1 else 0  # the gathered outputs, besides its own
    return devices


def wrong_bytes(case: dict[str, int], right: BytesByDevice) -> dict[str, BytesByDevice]:
    """The answer that each known mistake gives, by the key of its hint: the right one with some numbers changed."""
    (master, *others), batch = right, case["batch"]
    master_rows = math.ceil(batch / len(right))  # examples in the master's own piece
    weights, n = FLOAT32_BYTES * case["num_parameters"], len(right)
    even_rows = [batch // n + (device < batch % n) for device in range(n)]
    return {
        "other_pieces": device_bytes(n, **case, all_rows=even_rows),
        "optimizer_everywhere": [one | {"optimizer": 2 * one["parameters"]} for one in right],
        "optimizer_forgotten": [master | {"optimizer": 0}, *others],
        "half_precision": [one | {kind: one[kind] // 2 for kind in KINDS[:3]} for one in right],
        "one_moment": [one | {"optimizer": one["optimizer"] // 2} for one in right],
        "gradients_on_master_only": [master, *(one | {"gradients": 0} for one in others)],
        "gathered_forgotten": [master | {"outputs": master_rows * case["output_bytes"]}, *others],
        "own_share_forgotten": [master | {"outputs": batch * case["output_bytes"]}, *others],
        "input_cut_on_master": [master | {"input": master_rows * case["input_bytes"]}, *others],
        "input_twice": [master | {"input": (batch + master_rows) * case["input_bytes"]}, *others],
        "gathered_alone": [master | {"outputs": (batch + master_rows) * case["output_bytes"]}, *others],
        "idle_replicas": [one | {"parameters": weights, "gradients": weights} for one in right],
    }


MEMORY = Task(
    key="02.memory",
    signature="memory(num_devices, num_parameters, batch, input_bytes, output_bytes)",
    make_inputs=make_inputs,
    run_submission=run_submission,
    judge=judge,
    runs_on="devices",
)
