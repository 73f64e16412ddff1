"""Judges 11.step, in which the learner predicts the four terms of a training step of a dense Llama.

Only the chapter asks it. The function is called in one process with drawn models, plans and hardware.

How to read it. A case is the list of arguments of one call of the learner's function. `question_task` builds the Task,
which calls the learner's function with each case and compares each term with the term of `step_terms`. Below the
sentence about a wrong one, `rule_of_term` says what the right one is made of. `Words` is a text in English and Chinese.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from helpers.grading.kit.answers import question_task
from helpers.grading.scaling import LAB
from helpers.grading.scaling.planning import operations_per_token
from helpers.grading.task import NumberGenerator
from helpers.learner.words import Words

words = LAB.messages  # the texts of messages.yaml
Numbers = Mapping[str, Any]  # a model, a plan or hardware, whose keys stand in the chapter's exercise
EIGHT = {"parameters": 8 * 10**9, "layers": 32, "hidden": 4096, "seq": 8192}
ONE_NODE = {"dp": 8, "tp": 1, "pp": 1, "chunks": 1, "micro_batch": 2, "micro_batches": 1, "recomputed": 0}
H100 = {"peak": 989e12, "utilization": 0.45, "nvlink": 370e9, "network": 50e9}


def make_step(rng: NumberGenerator, world_size: int) -> list[dict[str, Any]]:
    """One node, one replica of a long pipeline, a slow network that compute cannot hide; then random cases."""
    long_pipeline = {"dp": 1, "tp": 8, "pp": 16, "chunks": 4, "micro_batch": 1, "micro_batches": 32, "recomputed": 1}
    cases = [
        [EIGHT, ONE_NODE, H100],
        [EIGHT | {"layers": 64, "seq": 4096}, long_pipeline, H100],
        [EIGHT, ONE_NODE | {"dp": 64, "recomputed": 0.5}, H100 | {"network": 1e9}],
    ]
    while len(cases) < 10:
        model = {"parameters": 10**9 * rng.integer(3, 400), "layers": 16 * rng.integer(2, 8)}
        model |= {"hidden": 1024 * rng.integer(2, 16), "seq": 2 ** rng.integer(11, 14)}
        plan = {axis: 2 ** rng.integer(1, most) for axis, most in (("dp", 6), ("tp", 3), ("pp", 4))}
        plan |= {"chunks": rng.integer(2, 4), "micro_batch": rng.integer(1, 4), "micro_batches": 2 ** rng.integer(3, 6)}
        plan["recomputed"] = rng.one_of(0.25, 0.5, 1)
        hardware = H100 | {"utilization": rng.integer(25, 60) / 100}
        if len(cases) % 2:  # every second network is so slow that compute hides only a part of its messages
            hardware["network"] = 10**8 * rng.integer(1, 9) / 100
        cases.append([model, plan, hardware])
    return [{"cases": cases}]


def sent_per_layer(model: Numbers, plan: Numbers) -> float:
    """The bytes that a GPU sends for a layer of one micro-batch in tensor-parallel messages."""
    messages = 8 + 4 * plan["recomputed"]
    return messages * 2 * plan["micro_batch"] * model["seq"] * model["hidden"] * (plan["tp"] - 1) / plan["tp"]


def data_seconds(model: Numbers, plan: Numbers, hardware: Numbers) -> float:
    """The seconds of all data-parallel messages."""
    num_bytes = 6 * model["parameters"] / (plan["tp"] * plan["pp"]) * (plan["dp"] - 1) / plan["dp"]
    return num_bytes / hardware["network"]


def step_terms(model: Numbers, plan: Numbers, hardware: Numbers) -> tuple[float, float, float, float]:
    """The seconds of compute, of the bubble and of tensor-parallel messages, and those of data-parallel messages that
    compute does not hide."""
    tokens = plan["micro_batches"] * plan["micro_batch"] * model["seq"]  # the tokens of a replica
    operations = tokens * operations_per_token(model) * (3 + plan["recomputed"]) / 3  # of one replica
    compute = operations / (plan["tp"] * plan["pp"] * hardware["peak"] * hardware["utilization"])
    bubble = compute * (plan["pp"] - 1) / (plan["micro_batches"] * plan["chunks"])
    tensor = model["layers"] / plan["pp"] * plan["micro_batches"] * sent_per_layer(model, plan) / hardware["nvlink"]
    return compute, bubble, tensor, max(0.0, data_seconds(model, plan, hardware) - compute)


def rule_of_term(index: int, case: Sequence[Any], answer: Any) -> Words:
    """What a term is made of."""
    model, plan, _ = case
    compute, bubble, _, _ = step_terms(*case)
    values = [
        (plan["micro_batches"] * plan["micro_batch"], operations_per_token(model), (3 + plan["recomputed"]) / 3, plan),
        (bubble / compute, compute),
        (model["layers"] / plan["pp"], sent_per_layer(model, plan), plan["micro_batches"]),
        (data_seconds(*case), compute),
    ]
    return words[f"term_rule.{index}"].format(*values[index])


STEP = question_task(
    "11.step",
    "step_terms(model, plan, hardware)",
    [words["compute"], words["bubble_seconds"], words["tensor_seconds"], words["data_seconds"]],
    step_terms,
    rules=[functools.partial(rule_of_term, index) for index in range(4)],
    make_inputs=make_step,
    needs_torch=False,
)
