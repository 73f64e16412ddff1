"""Judges 02.memory: the bytes that each simulated device holds, by kind; the master holds more than the others.

The N devices are simulated in one process, and device 0 is the master. The learner's function is asked several
questions, called cases: the number of devices, the number of parameters, and a batch. It returns for each device a dict
of the bytes of each kind. `judge` gets a JudgedWorld, whose inputs[0] has the cases and outputs[0] the learner's
answers, and yields one Judgement per number.

`words["…"]` is a sentence of messages.yaml, or what a sentence calls a value. `rng` draws random numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from helpers.grading.data_parallel import LAB
from helpers.grading.data_parallel.scatter_gather import batch_sizes
from helpers.grading.kit.comparisons import expect_equal
from helpers.grading.plain_data import simplified
from helpers.grading.task import JudgedWorld, Judgement, RankContext, Task
from helpers.grading.tensor_cases import CaseGenerator

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
    """Compares every number."""
    num_devices, cases, answers = world.inputs[0]["num_devices"], world.inputs[0]["cases"], world.outputs[0]
    for case, got in zip(cases, answers, strict=True):
        given = got if isinstance(got, list) else []
        yield expect_equal(words["num_devices"], num_devices, len(given))
        for device, (expected, of_device) in enumerate(zip(device_bytes(num_devices, **case), given, strict=False)):
            rows = rows_of(device, num_devices, case["batch"])
            of_device = of_device if isinstance(of_device, dict) else {}
            for kind in KINDS:
                place = "master" if device == 0 else "other"
                what = words[f"{kind}.{place}"].format(rows, case["batch"])
                yield expect_equal(what, expected[kind], of_device.get(kind), rank=device)


def rows_of(device: int, num_devices: int, batch: int) -> int:
    """The examples on a device; the last devices get fewer or none."""
    size = math.ceil(batch / num_devices)
    return max(0, min(size, batch - device * size))


def device_bytes(
    num_devices: int, num_parameters: int, batch: int, input_bytes: int, output_bytes: int
) -> BytesByDevice:
    """The bytes when backward is done and nothing is freed yet; a device without examples has no replica."""
    devices = []
    for device in range(num_devices):
        rows = rows_of(device, num_devices, batch)
        weights = FLOAT32_BYTES * num_parameters if rows else 0
        by_rows = {"input": rows * input_bytes, "outputs": rows * output_bytes}
        devices.append({"parameters": weights, "gradients": weights, "optimizer": 0} | by_rows)
    master = devices[0]
    master["optimizer"] = 2 * FLOAT32_BYTES * num_parameters  # Adam's two moments
    master["input"] = batch * input_bytes  # the full batch, which the master splits
    master["outputs"] += batch * output_bytes if num_devices > 1 else 0  # the gathered outputs, besides its own
    return devices


MEMORY = Task(
    key="02.memory",
    signature="memory(num_devices, num_parameters, batch, input_bytes, output_bytes)",
    make_inputs=make_inputs,
    run_submission=run_submission,
    judge=judge,
    runs_on="devices",
)
