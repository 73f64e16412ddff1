"""Judges 11.step, in which the learner predicts the four terms of a training step of a dense Llama.

Only the chapter asks it. The function is called in one process with drawn models, plans and hardware. `step_terms()`
makes the right function; with other arguments it makes a wrong one, which contains a known mistake.

How to read it. A case is the list of arguments of one call of the learner's function. `task_with_reasons` builds the
Task, which calls the learner's function with each case and compares each term with that of the right function. Where
one differs, `reason_of_term` says what the right one is made of. WRONG_TERMS maps the key of a hint in hints.yaml to
functions that contain the mistake. `Words` is a text in English and Chinese.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from helpers.grading.cases import CaseGenerator
from helpers.grading.scaling import LAB
from helpers.grading.scaling.reasons import short, task_with_reasons
from helpers.learner.words import Words

words = LAB.messages  # the texts of messages.yaml
Numbers = Mapping[str, Any]  # a model, a plan or hardware, whose keys stand in the chapter's exercise
Terms = Callable[[Numbers, Numbers, Numbers], tuple[float, float, float, float]]
EIGHT = {"parameters": 8 * 10**9, "layers": 32, "hidden": 4096, "seq": 8192}
ONE_NODE = {"dp": 8, "tp": 1, "pp": 1, "chunks": 1, "micro_batch": 2, "micro_batches": 1, "recomputed": 0}
H100 = {"peak": 989e12, "utilization": 0.45, "nvlink": 370e9, "network": 50e9}


def make_step(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
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


def step_terms(
    *,
    per_token: Callable[[Numbers], float] = lambda m: 6 * m["parameters"] + 12 * m["layers"] * m["hidden"] * m["seq"],
    parts: Callable[[float], float] = lambda recomputed: (3 + recomputed) / 3,
    bubble: Callable[[Numbers], float] = lambda p: (p["pp"] - 1) / (p["micro_batches"] * p["chunks"]),
    messages: Callable[[float], float] = lambda recomputed: 8 + 4 * recomputed,
    others: Callable[[int], float] = lambda ranks: (ranks - 1) / ranks,
    layers: Callable[[Numbers, Numbers], float] = lambda m, p: m["layers"] / p["pp"],
    shards: Callable[[Numbers], int] = lambda p: p["tp"] * p["pp"],
    exposed: Callable[[float, float], float] = lambda data, compute: max(0.0, data - compute),
) -> Terms:
    """The right function, or with other arguments a wrong one.

    per_token: operations of a token, without recomputation. parts: by what recomputation multiplies them. bubble: the
    idle time over compute. messages: of a layer and micro-batch. others: the share of a tensor that a rank gets from
    others. layers: of a stage. shards: into how many the weights are split. exposed: what compute does not hide.
    """

    def terms(model: Numbers, plan: Numbers, hardware: Numbers) -> tuple[float, float, float, float]:
        sequences = plan["micro_batches"] * plan["micro_batch"]  # of a replica
        operations = sequences * model["seq"] * per_token(model) * parts(plan["recomputed"])  # of a replica
        compute = operations / (plan["tp"] * plan["pp"] * hardware["peak"] * hardware["utilization"])
        sent = messages(plan["recomputed"]) * 2 * sequences * model["seq"] * model["hidden"] * others(plan["tp"])
        tensor = layers(model, plan) * sent / hardware["nvlink"]
        data = 6 * model["parameters"] / shards(plan) * others(plan["dp"]) / hardware["network"]
        return compute, compute * bubble(plan), tensor, exposed(data, compute)

    return terms


WRONG_TERMS: dict[str, list[Terms]] = {
    "attention_left_out": [step_terms(per_token=lambda m: 6 * m["parameters"])],
    "recomputed_as_a_step": [step_terms(parts=lambda recomputed: 1 + recomputed)],
    "recomputation_left_out": [step_terms(parts=lambda recomputed: 1)],
    "bubble_of_the_step": [
        step_terms(bubble=lambda p: (p["pp"] - 1) / (p["micro_batches"] * p["chunks"] + p["pp"] - 1))
    ],
    "bubble_without_chunks": [step_terms(bubble=lambda p: (p["pp"] - 1) / p["micro_batches"])],
    "forward_messages_alone": [step_terms(messages=lambda recomputed: 4)],
    "second_forward_sends": [step_terms(messages=lambda recomputed: 8)],
    "own_shard_sent": [step_terms(others=lambda ranks: 1)],
    "layers_of_all_stages": [step_terms(layers=lambda m, p: m["layers"])],
    "weights_not_split": [step_terms(shards=lambda p: 1), step_terms(shards=lambda p: p["tp"])],
    "nothing_hidden": [step_terms(exposed=lambda data, compute: data)],
    "less_than_nothing": [step_terms(exposed=lambda data, compute: data - compute)],
}


def reason_of_term(index: int, got: Any, model: Numbers, plan: Numbers, hardware: Numbers) -> Words:
    """What a term is made of."""
    compute, bubble, _, _ = step_terms()(model, plan, hardware)
    data = step_terms(exposed=lambda data, compute: data)(model, plan, hardware)[3]
    per_token = 6 * model["parameters"] + 12 * model["layers"] * model["hidden"] * model["seq"]
    sent = (8 + 4 * plan["recomputed"]) * 2 * plan["micro_batch"] * model["seq"] * model["hidden"]
    values = [
        (plan["micro_batches"] * plan["micro_batch"], f"{per_token:.4g}", short((3 + plan["recomputed"]) / 3), plan),
        (short(bubble / compute), f"{compute:.4g}"),
        (short(model["layers"] / plan["pp"]), f"{sent * (plan['tp'] - 1) / plan['tp']:.4g}", plan["micro_batches"]),
        (f"{data:.4g}", f"{compute:.4g}"),
    ]
    return words[f"why_term.{index}"].format(*values[index])


STEP = task_with_reasons(
    reason_of_term,
    "11.step",
    "step_terms(model, plan, hardware)",
    [words["compute"], words["bubble_seconds"], words["tensor_seconds"], words["data_seconds"]],
    step_terms(),
    WRONG_TERMS,
    make_inputs=make_step,
)
