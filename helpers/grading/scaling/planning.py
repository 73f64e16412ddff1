"""Judges 11.exposed, 11.bubble, 11.plans and 11.days, the computations with which a training run is planned.

11.exposed: the communication that backward does not hide. 11.bubble: the time of a pipelined step, and the share of it
in which GPUs wait. 11.plans: the fastest of 200 plans that a cluster and a model allow. 11.days: how long a run takes.
The learner's function is called in one process with drawn cases.

How to read it. A case is the list of arguments of one call of the learner's function; `make_…` draws the cases of a
task with `rng`, of which `rng.integer(3, 5)` is 3, 4 or 5. `question_task` builds the Task, which calls the learner's
function with each case and compares the answers with the answers of the right function. Below the sentence about a
wrong value, `rule_of_…` says how the right one comes about, with the numbers of the case. `Words` is a text in English
and Chinese.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from helpers.grading.kit.answers import question_task
from helpers.grading.scaling import LAB
from helpers.grading.task import NumberGenerator
from helpers.learner.words import Words

words = LAB.messages  # the texts of messages.yaml
Seconds = Sequence[float]  # a list of times

# -- 11.exposed ------------------------------------------------------------------------------------------------------
GB = 10**9  # bytes


def make_exposed(rng: NumberGenerator, world_size: int) -> list[dict[str, Any]]:
    """Six cases with one special thing each, then random ones.

    A case is: when each bucket of gradients is ready (seconds), their bytes, when backward ends (seconds), the number
    of ranks, and the bandwidth of a link (Gbit/s).
    """
    cases = [
        [[0.10, 0.12, 0.14], [GB, GB, GB], 0.14, 4, 400],  # the lab text's own
        [[0.10, 0.15], [GB, GB // 2], 0.5, 8, 400],  # all is hidden
        [[0.10, 0.40], [GB, GB], 0.42, 2, 200],  # the link is free between the two
        [[0.02, 0.04, 0.06], [GB, GB, GB], 0.06, 16, 100],  # the link is never free
        [[0.25], [2 * GB], 0.25, 3, 200],  # one bucket
        [[0.10, 0.20], [GB, GB], 0.20, 1, 100],  # one rank
    ]
    while len(cases) < 14:
        ready = sorted({rng.integer(1, 40) / 100 for _ in range(rng.integer(2, 6))})
        late = rng.one_of(0.0, 0.0, 0.01, 0.02)  # backward may go on after the last bucket, in layers without weights
        sizes = [GB // 10 * rng.integer(1, 12) for _ in ready]
        cases.append([ready, sizes, ready[-1] + late, 2 ** rng.integer(1, 6), rng.one_of(100, 200, 400, 800)])
    return [{"cases": cases}]


def arrivals(ready: Seconds, durations: Seconds) -> list[float]:
    """When each bucket has arrived over one link, which carries them in turn."""
    ends = [0.0]  # before the first bucket the link is free from 0 on
    for at, seconds in zip(ready, durations, strict=True):
        ends.append(max(ends[-1], at) + seconds)
    return ends[1:]


def carried(sizes: Sequence[int], ranks: int, gbit: float) -> list[float]:
    """The seconds for which a link carries each bucket in a ring all-reduce."""
    return [2 * (ranks - 1) / ranks * size * 8 / (gbit * 1e9) for size in sizes]


def exposed_seconds(ready: Seconds, sizes: Sequence[int], backward: float, ranks: int, gbit: float) -> float:
    """The seconds by which the last bucket arrives after backward has ended."""
    return max(0.0, arrivals(ready, carried(sizes, ranks, gbit))[-1] - backward)


def rule_of_exposed(case: Sequence[Any], answer: Any) -> Words:
    """How long the link carries each bucket, when each arrives, and when backward ends."""
    ready, sizes, backward, ranks, gbit = case
    durations = carried(sizes, ranks, gbit)
    lists = [[f"{seconds:.6g}" for seconds in several] for several in (durations, arrivals(ready, durations))]
    return words["exposed_rule"].format(*lists, backward, num=len(sizes))


EXPOSED = question_task(
    "11.exposed",
    "exposed_seconds(ready, sizes, backward, ranks, gbit)",
    words["exposed_time"],
    exposed_seconds,
    rules=[rule_of_exposed],
    make_inputs=make_exposed,
    needs_torch=False,
)


# -- 11.bubble -------------------------------------------------------------------------------------------------------
def make_bubble(rng: NumberGenerator, world_size: int) -> list[dict[str, Any]]:
    """The lab text's two cases, with chunks, a slow last stage, one stage, one micro-batch; then random ones.

    A case is: the seconds of each stage's forward pass, the number of micro-batches, and of model chunks per stage.
    """
    even, slow_head = [1.0] * 4, [1.0, 1.0, 1.0, 2.0]  # the last stage also computes the model's head
    cases = [[even, 8, 1], [slow_head, 8, 1], [even, 8, 2], [slow_head, 16, 4], [[1.5], 4, 1], [[0.5, 1.0], 1, 1]]
    while len(cases) < 12:
        stages = [rng.integer(4, 12) / 4 for _ in range(rng.integer(2, 8))]
        cases.append([stages, len(stages) * rng.integer(1, 8), rng.integer(1, 4)])
    return [{"cases": cases}]


def pipeline_step(forward: Seconds, micro_batches: int, chunks: int) -> tuple[float, float]:
    """The seconds of a step, and the bubble, which is the share of them in which a stage waits, in the mean.

    The slowest stage sets the pace. Filling and draining the pipeline adds what the others take, divided by the chunks.
    A backward takes as long as two forwards.
    """
    seconds = 3 * (micro_batches * max(forward) + (sum(forward) - max(forward)) / chunks)
    return seconds, 1 - 3 * micro_batches * sum(forward) / (len(forward) * seconds)


def rule_of_step_time(case: Sequence[Any], answer: Any) -> Words:
    """The two parts of the step."""
    forward, micro_batches, chunks = case
    slowest = 3 * max(forward)
    return words["step_rule"].format(micro_batches, slowest, 3 * sum(forward) - slowest, chunks)


def rule_of_bubble(case: Sequence[Any], answer: Any) -> Words:
    """The work of all stages, and the time that they have for it."""
    forward, micro_batches, _ = case
    seconds, stages = pipeline_step(*case)[0], len(forward)
    return words["bubble_rule"].format(stages, seconds, stages * seconds, 3 * micro_batches * sum(forward))


BUBBLE = question_task(
    "11.bubble",
    "pipeline_step(forward, micro_batches, chunks)",
    [words["step_time"], words["bubble"]],
    pipeline_step,
    rules=[rule_of_step_time, rule_of_bubble],
    make_inputs=make_bubble,
    needs_torch=False,
)

# -- 11.plans --------------------------------------------------------------------------------------------------------
CandidatePlan = dict[str, Any]  # a value for each of FIELDS
TrainingJob = Mapping[str, int]  # the cluster and the model, as `draw_job` makes them
Rule = Callable[[CandidatePlan, TrainingJob], bool]  # whether a plan fulfils what a job asks for
GIB = 2**30 / 1e9  # in GB
NUM_PLANS = 200  # plans among which the learner chooses for each job
FASTEST = 5.0  # seconds of a step; all plans that are not placed on purpose take at least 10
FIELDS = ("name", "dp", "tp", "pp", "micro_batch", "gb", "seconds")  # gb: memory per GPU; seconds: of a step
# There are fourteen kinds of jobs. In each, the plans listed here are placed among slower ones: they are fastest, but
# most break one rule, after which the kind is named. A plan is: its GPUs as a multiple of the cluster's, tp,
# pp, micro-batch, and its memory. A GPU of the job has some GiB; the plan's GB are that number times the last value.
# 1 GiB is 1.0737 GB.
FASTEST_PLANS: dict[str, list[tuple[float, ...]]] = {
    "plain": [],
    # The first needs a little more than the memory and the second a little less, with no whole number of GB between.
    # So an answer that rounds the memory to whole GB chooses the first or the third.
    "memory": [(1, 2, 1, 1, 1.0745), (1, 4, 1, 1, 1.0725), (1, 4, 2, 1, 1.02)],
    # In this job a node has 4 GPUs, in all others 8.
    "nodes": [(1, 8, 1, 1, 0.5), (1, 16, 1, 1, 0.5)],
    # Three GPUs are fewer than a node has, but of the groups in a row some lie across two nodes.
    "threes": [(1, 3, 1, 1, 0.5)],
    # A tensor-parallel group may fill its node, and a pipeline may reach across nodes.
    "whole node": [(1, 8, 4, 1, 0.5)],
    "batch": [(1, 1, 1, 4, 0.5)],
    # The replicas do not divide the batch, although a micro-batch of 1 divides what each would get, without the rest.
    "odd batch": [(1, 1, 1, 1, 0.5)],
    "heads": [(1, 8, 1, 1, 0.5)],
    "layers": [(1, 1, 16, 1, 0.5)],
    "gpus": [(2, 8, 1, 1, 0.5), (0.5, 4, 1, 1, 0.5)],
    # Of equally fast plans the smallest tp * pp wins. Here that is the last one, and another has fewer stages.
    "ties": [(1, 4, 4, 1, 0.5), (1, 8, 1, 1, 0.5), (1, 2, 2, 1, 0.5)],
    # Here it is the first one, and another has a smaller tp.
    "turned ties": [(1, 2, 2, 1, 0.5), (1, 1, 8, 1, 0.5), (1, 4, 4, 1, 0.5)],
    # Here it is the first one, and another has a smaller sum tp + pp.
    "sums": [(1, 8, 1, 1, 0.5), (1, 4, 4, 1, 0.5)],
    "nothing fits": [],
}


def make_plans(rng: NumberGenerator, world_size: int) -> list[dict[str, Any]]:
    """One job of each kind; in the last one no plan fits."""
    return [{"cases": [draw_job(rng, kind) for kind in FASTEST_PLANS]}]


def draw_job(rng: NumberGenerator, kind: str) -> list[Any]:
    """200 plans, and the job for which one is to be chosen."""
    gpus, gib = 96 if kind == "threes" else rng.one_of(32, 64, 128), rng.one_of(24, 40, 80)
    job = {
        "gpus": gpus,
        "gpus_per_node": 4 if kind == "nodes" else 8,
        "gib": gib,
        "heads": 12 if kind in ("plain", "heads") else 48,
    }
    # 16 stages never divide the layers. tp = 8 divides 48 heads but not 12, so in "plain" drawn plans break that rule.
    # The batch is the GPUs times 2 times an odd number, so micro-batches of 4 on as many replicas as GPUs never fit.
    job |= {"layers": 8 * rng.one_of(3, 5, 7), "batch": 2 * gpus * rng.one_of(1, 3, 5)}
    if kind == "odd batch":
        job["batch"] += gpus // 2
    # Where the fastest plans stand in the list. Nine numbers are drawn, since some may be equal and three are needed.
    positions = sorted({rng.integer(0, NUM_PLANS - 1) for _ in range(9)})
    placed = dict(zip(positions, FASTEST_PLANS[kind], strict=False))
    plans = []
    for number in range(NUM_PLANS):
        # tp and pp up to 16, a micro-batch up to 4, and 30 to 140 % of the memory
        ordinary = 1, *(2 ** rng.integer(0, most) for most in (4, 4, 2)), rng.integer(30, 140) / 100
        factor, tp, pp, micro_batch, share = placed.get(number, ordinary)
        seconds = FASTEST if number in placed else 10 + rng.integer(0, 8000) / 400  # 10 to 30 s
        if kind == "nothing fits":
            share += 3  # more than three times the memory that there is
        gb = round(share * gib, 2)
        dp = max(1, int(factor * gpus) // (tp * pp))
        name = f"plan {number}: dp {dp}, tp {tp}, pp {pp}, micro-batch {micro_batch}, {gb} GB"
        plans.append(dict(zip(FIELDS, (name, dp, tp, pp, micro_batch, gb, seconds), strict=True)))
    return [plans, job]


# What a plan p has to fulfil, by the name of the rule.
RULES: dict[str, Rule] = {
    "gpus": lambda p, job: p["dp"] * p["tp"] * p["pp"] == job["gpus"],
    "nodes": lambda p, job: job["gpus_per_node"] % p["tp"] == 0,
    "heads": lambda p, job: job["heads"] % p["tp"] == 0,
    "layers": lambda p, job: job["layers"] % p["pp"] == 0,
    "batch": lambda p, job: job["batch"] % (p["dp"] * p["micro_batch"]) == 0,
    "memory": lambda p, job: p["gb"] <= job["gib"] * GIB,
}


def best_plan(plans: Sequence[CandidatePlan], job: TrainingJob) -> str | None:
    """The name of the fastest plan that keeps all rules, and of equally fast ones of that with the smallest tp * pp."""
    allowed = [plan for plan in plans if all(rule(plan, job) for rule in RULES.values())]
    best = min(allowed, key=lambda plan: (plan["seconds"], plan["tp"] * plan["pp"]), default=None)
    return best["name"] if best else None


def rule_of_choice(case: Sequence[Any], answer: Any) -> Words:
    """The first rule that the chosen plan breaks; or why another plan is better."""
    plans, job = case
    by_name = {plan["name"]: plan for plan in plans}
    best, plan = by_name.get(best_plan(plans, job)), by_name.get(answer if isinstance(answer, str) else "")
    values = {"memory": job["gib"] * GIB, "job": job, "plan": plan, "best": best}
    if plan is None and answer is not None:
        return words["plan_rule.no_name"]
    broken = [name for name, rule in RULES.items() if plan and not rule(plan, job)]
    if broken:
        return words[f"plan_rule.{broken[0]}"].format(**values)
    if plan and plan["seconds"] == best["seconds"]:
        return words["plan_rule.tie"].format(**values)
    why = words["plan_rule.slower" if plan else "plan_rule.none_chosen"].format(**values)
    return words["plan_rule.keeps_all"].format(why=why, **values)


PLANS = question_task(
    "11.plans",
    "best_plan(plans, job)",
    words["plan_name"],
    best_plan,
    rules=[rule_of_choice],
    make_inputs=make_plans,
    needs_torch=False,
)

# -- 11.days ---------------------------------------------------------------------------------------------------------


def make_days(rng: NumberGenerator, world_size: int) -> list[dict[str, Any]]:
    """The lab text's own case, one without recomputation and lost time, one with a long sequence; then random ones.

    A case is: the model, the tokens, the number of GPUs, their peak (FLOP/s), the hardware FLOPs utilization (HFU: the
    share of the peak that runs), the share of forward that is recomputed, and the share of the time that is lost.
    """
    small = {"parameters": 7 * 10**9, "layers": 32, "hidden": 4096, "seq": 4096}
    cases = [
        [small, 10**12, 64, 1e15, 0.5, 1, 0.1],
        [small, 10**11, 8, 312e12, 0.4, 0, 0.0],
        [small | {"seq": 131_072}, 10**11, 256, 989e12, 0.35, 0.5, 0.05],
    ]
    while len(cases) < 10:  # 312e12 FLOP/s is the peak of an A100, 989e12 that of an H100
        model = {"parameters": 10**9 * rng.integer(1, 400), "layers": 8 * rng.integer(2, 15)}
        model |= {"hidden": 1024 * rng.integer(2, 16), "seq": 2 ** rng.integer(11, 15)}
        shares = rng.integer(25, 60) / 100, rng.one_of(0, 0.25, 0.5, 1), rng.integer(0, 20) / 100
        cases.append([model, 10**10 * rng.integer(5, 1500), 2 ** rng.integer(3, 14), 312e12, *shares])
    return [{"cases": cases}]


def operations_per_token(model: Mapping[str, int]) -> int:
    """6 FLOPs per parameter, and the FLOPs of attention."""
    return 6 * model["parameters"] + 12 * model["layers"] * model["hidden"] * model["seq"]


def training_days(
    model: Mapping[str, int], tokens: int, gpus: int, peak: float, hfu: float, recomputed: float, lost: float
) -> tuple[float, float]:
    """The days, and the GPU-hours. The HFU counts what is recomputed; forward counts 1 and backward 2."""
    mfu = hfu * 3 / (3 + recomputed)
    seconds = tokens * operations_per_token(model) / (gpus * peak * mfu) / (1 - lost)
    return seconds / 86_400, gpus * seconds / 3_600


def rule_of_days(index: int, case: Sequence[Any], answer: Any) -> Words:
    """What the days are made of, or the GPU-hours."""
    days, _ = training_days(*case)
    model, _, gpus, _, hfu, recomputed, lost = case
    values = [(operations_per_token(model), hfu * 3 / (3 + recomputed), 1 - lost, 86_400 * days), (24 * days, gpus)]
    return words[f"days_rule.{index}"].format(*values[index])


DAYS = question_task(
    "11.days",
    "training_days(model, tokens, gpus, peak, hfu, recomputed, lost)",
    [words["days"], words["gpu_hours"]],
    training_days,
    rules=[functools.partial(rule_of_days, index) for index in range(2)],
    make_inputs=make_days,
    needs_torch=False,
)
