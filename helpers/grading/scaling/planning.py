"""Judges 11.exposed, 11.bubble, 11.plans and 11.days, the computations with which a training run is planned.

11.exposed: the communication that backward does not hide. 11.bubble: the time of a pipelined step, and the share of it
in which GPUs wait. 11.plans: the fastest of 200 plans that a cluster and a model allow. 11.days: how long a run takes.
The learner's function is called in one process with drawn cases. For each task there is a function that makes the right
solution, such as `exposed_seconds()`. With other arguments it makes a wrong one, which contains a known mistake.

How to read it. A case is the list of arguments of one call of the learner's function; `make_…` draws the cases of a
task with `rng`, of which `rng.integer(3, 5)` is 3, 4 or 5. `task_with_reasons` builds the Task, which calls the
learner's function with each case and compares the answers with those of the right function. Where one differs, a
`reason_of_…` says how the right one comes about. A mistake is a wrong solution that learners often write. Each table
`WRONG_…` maps the key of its hint in hints.yaml to functions that contain the mistake. `Words` is a text in English and
Chinese.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from helpers.grading.cases import CaseGenerator
from helpers.grading.scaling import LAB
from helpers.grading.scaling.reasons import listed, short, task_with_reasons
from helpers.learner.words import Words

words = LAB.messages  # the texts of messages.yaml
Seconds = Sequence[float]  # a list of times
# The arguments of each task_with_reasons below: the reason, the key, the signature, how a sentence names the answer,
# the right function, and the wrong functions by the key of the hint.

# -- 11.exposed ------------------------------------------------------------------------------------------------------
# From a case, as `make_exposed` lists its items, to the exposed seconds.
ExposedSeconds = Callable[[Seconds, Sequence[int], float, int, float], float]
GB = 10**9  # bytes


def make_exposed(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
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


def one_after_another(ready: Seconds, durations: Seconds) -> list[float]:
    """When each bucket has arrived over one link, which carries them in turn."""
    ends = [0.0]  # before the first bucket the link is free from 0 on; this extra arrival exposes nothing
    for at, seconds in zip(ready, durations, strict=True):
        ends.append(max(ends[-1], at) + seconds)
    return ends


def all_at_once(ready: Seconds, durations: Seconds) -> list[float]:
    """The mistake: each bucket is carried as soon as it is ready, as if it had a link of its own."""
    return [at + seconds for at, seconds in zip(ready, durations, strict=True)]


def exposed_seconds(
    arrivals: Callable[[Seconds, Seconds], list[float]] = one_after_another,
    combine: Callable[..., float] = max,
    *,
    bits: int = 8,
    ring_share: Callable[[int], float] = lambda ranks: 2 * (ranks - 1) / ranks,
    floor: float = 0.0,
) -> ExposedSeconds:
    """The right function, or with other arguments a wrong one.

    arrivals: from when each bucket is ready, and how long the link carries it, to when it has arrived. combine: makes
    one number of the seconds by which each arrives after backward has ended. bits: in a byte. ring_share: from the
    number of ranks to the multiple of a bucket's bytes that a link carries in a ring all-reduce. floor: the smallest
    answer that there is.
    """

    def seconds(ready: Seconds, sizes: Sequence[int], backward: float, ranks: int, gbit: float) -> float:
        """The exposed seconds of a case, whose items `make_exposed` names."""
        durations = [ring_share(ranks) * size * bits / (gbit * 1e9) for size in sizes]
        return combine(max(floor, end - backward) for end in arrivals(ready, durations))

    return seconds


# In "begins_at_once" the communication begins with backward, and in "last_bucket_hidden" the last bucket costs nothing.
# "counted_twice" adds up how late each bucket is, though a later bucket's lateness contains that of the ones before it.
WRONG_EXPOSED: dict[str, list[ExposedSeconds]] = {
    "bits_as_bytes": [exposed_seconds(bits=1)],
    "ring_forgotten": [exposed_seconds(ring_share=s) for s in (lambda n: 1, lambda n: 2, lambda n: (n - 1) / n)],
    "begins_at_once": [exposed_seconds(lambda ready, durations: [sum(durations)])],
    "queue_forgotten": [exposed_seconds(all_at_once), exposed_seconds(all_at_once, sum)],
    "counted_twice": [exposed_seconds(one_after_another, sum)],
    "idle_link_forgotten": [exposed_seconds(lambda ready, durations: [ready[0] + sum(durations)])],
    "less_than_zero": [exposed_seconds(floor=-math.inf)],
    "last_bucket_hidden": [exposed_seconds(lambda ready, durations: one_after_another(ready[:-1], durations[:-1]))],
}


def reason_of_exposed(
    index: int, got: Any, ready: Seconds, sizes: Sequence[int], backward: float, ranks: int, gbit: float
) -> Words:
    """How long the link carries each bucket, when each arrives, and when backward ends."""
    durations = [2 * (ranks - 1) / ranks * size * 8 / (gbit * 1e9) for size in sizes]
    arrivals = one_after_another(ready, durations)[1:]
    return words["why_exposed"].format(listed(durations), listed(arrivals), short(backward), num=len(sizes))


EXPOSED = task_with_reasons(
    reason_of_exposed,
    "11.exposed",
    "exposed_seconds(ready, sizes, backward, ranks, gbit)",
    words["exposed_time"],
    exposed_seconds(),
    WRONG_EXPOSED,
    make_inputs=make_exposed,
)

# -- 11.bubble -------------------------------------------------------------------------------------------------------
# forward: the seconds of each stage's forward pass. m: micro-batches. chunks: model chunks per stage.
PipelineStep = Callable[[Seconds, int, int], tuple[float, float]]  # forward, m, chunks: seconds of a step, bubble


def make_bubble(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """The lab text's two cases, with chunks, a slow last stage, one stage, one micro-batch; then random ones.

    A case is: the seconds of each stage's forward pass, the number of micro-batches, and of model chunks per stage.
    """
    even, slow_head = [1.0] * 4, [1.0, 1.0, 1.0, 2.0]  # the last stage also computes the model's head
    cases = [[even, 8, 1], [slow_head, 8, 1], [even, 8, 2], [slow_head, 16, 4], [[1.5], 4, 1], [[0.5, 1.0], 1, 1]]
    while len(cases) < 12:
        stages = [rng.integer(4, 12) / 4 for _ in range(rng.integer(2, 8))]
        cases.append([stages, len(stages) * rng.integer(1, 8), rng.integer(1, 4)])
    return [{"cases": cases}]


def mean(forward: Seconds) -> float:
    """The mean time of a stage."""
    return sum(forward) / len(forward)


def idle_share(forward: Seconds, m: int, chunks: int, duration: float) -> float:
    """The bubble: the share of the step in which a stage waits, in the mean over stages.

    duration: the seconds of the step, if it had forward passes alone. chunks does not matter here.
    """
    return 1 - m * mean(forward) / duration


def bubble_of_equal_stages(forward: Seconds, m: int, chunks: int, duration: float) -> float:
    """The mistake: (p - 1) / (m + p - 1), the formula for p stages that are equally fast.

    With several model chunks per stage, p - 1 is divided by their number.
    """
    waits = (len(forward) - 1) / chunks
    return waits / (m + waits)


def pipeline_step(
    *,
    passes: int = 3,
    pace: Callable[[Seconds], float] = max,
    ramp: Callable[[float, int], float] = lambda others, chunks: others / chunks,
    bubble: Callable[[Seconds, int, int, float], float] = idle_share,
) -> PipelineStep:
    """The right function, or with other arguments a wrong one.

    passes: what forward and backward of a micro-batch take, in forward passes; backward takes two. pace: from the
    stages' seconds to those in which the pipeline finishes one micro-batch after another; the slowest stage sets them.
    ramp: the seconds that filling and draining the pipeline adds, from those of all other stages together and the
    number of chunks. bubble: the share in which stages wait; see `idle_share` for its arguments.
    """

    def step(forward: Seconds, micro_batches: int, chunks: int) -> tuple[float, float]:
        """The seconds of a step, and the bubble. `duration` is the step's time if it had forward passes alone."""
        duration = micro_batches * pace(forward) + ramp(sum(forward) - pace(forward), chunks)
        return passes * duration, bubble(forward, micro_batches, chunks, duration)

    return step


WRONG_STEPS: dict[str, list[PipelineStep]] = {
    "backward_once": [pipeline_step(passes=2), pipeline_step(passes=1)],
    "equal_stages_assumed": [
        pipeline_step(pace=mean),
        pipeline_step(pace=lambda forward: forward[0]),
        pipeline_step(bubble=bubble_of_equal_stages),
    ],
    # With several chunks, filling and draining the pipeline takes longer, or as long as with one.
    "chunks_multiply": [
        pipeline_step(ramp=lambda others, chunks: others * chunks),
        pipeline_step(ramp=lambda others, chunks: others),
    ],
    # What is lost is divided by the useful work, and not by the whole step.
    "share_of_the_work": [
        pipeline_step(bubble=lambda forward, m, chunks, duration: duration / (m * mean(forward)) - 1),
        pipeline_step(bubble=lambda forward, m, chunks, duration: (len(forward) - 1) / (m * chunks)),
    ],
}


def reason_of_step(index: int, got: Any, forward: Seconds, micro_batches: int, chunks: int) -> Words:
    """The two parts of the step; or the work of all stages, and the time that they have for it."""
    slowest, total, stages = 3 * max(forward), 3 * sum(forward), len(forward)
    seconds = pipeline_step()(forward, micro_batches, chunks)[0]
    values = [
        (micro_batches, short(slowest), short(total - slowest), chunks),
        (stages, short(seconds), short(stages * seconds), short(micro_batches * total)),
    ]
    return words[f"why_step.{index}"].format(*values[index])


BUBBLE = task_with_reasons(
    reason_of_step,
    "11.bubble",
    "pipeline_step(forward, micro_batches, chunks)",
    [words["step_time"], words["bubble"]],
    pipeline_step(),
    WRONG_STEPS,
    make_inputs=make_bubble,
)

# -- 11.plans --------------------------------------------------------------------------------------------------------
CandidatePlan = dict[str, Any]  # a value for each of FIELDS
TrainingJob = Mapping[str, int]  # the cluster and the model, as `draw_job` makes them
Rule = Callable[[CandidatePlan, TrainingJob], bool]  # whether a plan fulfils what a job asks for
Choice = Callable[[Sequence[CandidatePlan], TrainingJob], str | None]  # the name of the chosen plan; None if none fits
GIB = 2**30 / 1e9  # in GB
NUM_PLANS = 200  # for each job
FASTEST = 5.0  # seconds of a step; all plans that are not placed on purpose take at least 10
FIELDS = ("name", "dp", "tp", "pp", "micro_batch", "gb", "seconds")  # gb: memory per GPU; seconds: of a step
# There are twelve kinds of jobs. In each, the plans listed here are placed among slower ones: they are the fastest, but
# most break one rule, after which the kind is named. A plan is: its GPUs as a multiple of the cluster's, tp,
# pp, micro-batch, and its memory. A GPU of the job has some GiB; the plan's GB are that number times the last value.
# 1 GiB is 1.0737 GB.
FASTEST_PLANS: dict[str, list[tuple[float, ...]]] = {
    "plain": [],
    # The first needs a little more than the memory and the second a little less, with no whole number of GB between.
    # So an answer that rounds the memory to whole GB chooses the first or the third.
    "memory": [(1, 2, 1, 1, 1.0745), (1, 4, 1, 1, 1.0725), (1, 4, 2, 1, 1.02)],
    "nodes": [(1, 16, 1, 1, 0.5)],
    # A tensor-parallel group may fill its node, and a pipeline may reach across nodes.
    "whole node": [(1, 8, 4, 1, 0.5)],
    "batch": [(1, 1, 1, 4, 0.5)],
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


def make_plans(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """One job of each kind; in the last one no plan fits."""
    return [{"cases": [draw_job(rng, kind) for kind in FASTEST_PLANS]}]


def draw_job(rng: CaseGenerator, kind: str) -> list[Any]:
    """200 plans, and the job for which one is to be chosen."""
    gpus, gib = rng.one_of(32, 64, 128), rng.one_of(24, 40, 80)
    job = {"gpus": gpus, "gpus_per_node": 8, "gib": gib, "heads": 12 if kind in ("plain", "heads") else 48}
    # 16 stages never divide the layers. tp = 8 divides 48 heads but not 12, so in "plain" drawn plans break that rule.
    # The batch is the GPUs times 2 times an odd number, so micro-batches of 4 on as many replicas as GPUs never fit.
    job |= {"layers": 8 * rng.one_of(3, 5, 7), "batch": 2 * gpus * rng.one_of(1, 3, 5)}
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


def best_plan(*, tie: Callable[[CandidatePlan, int], float] = lambda p, i: p["tp"] * p["pp"], **rules: Rule) -> Choice:
    """The right function, or with other arguments a wrong one.

    tie: from a plan and its position i; among equally fast plans the smallest value wins. rules: by name, in place of
    those of RULES. The function that is made returns the name of the plan, or None if no plan keeps all rules.
    """
    rules = RULES | rules

    def chosen(plans: Sequence[CandidatePlan], job: TrainingJob) -> str | None:
        """The name of the fastest plan that keeps all rules."""
        # Plans are compared by their seconds, then by the tie value. The name is what is returned.
        ranked = [(plan["seconds"], tie(plan, i), plan["name"]) for i, plan in enumerate(plans)]
        fit = [one for one, p in zip(ranked, plans, strict=True) if all(rule(p, job) for rule in rules.values())]
        return min(fit)[2] if fit else None

    return chosen


WRONG_CHOICES: dict[str, list[Choice]] = {
    "gib_as_gb": [best_plan(memory=lambda p, job: p["gb"] <= job["gib"])],
    "tp_across_nodes": [best_plan(nodes=lambda p, job: True)],
    "batch_does_not_divide": [
        best_plan(batch=lambda p, job: True),
        best_plan(batch=lambda p, job: job["batch"] % p["dp"] == 0),
    ],
    # Of equally fast plans the one that comes first in the list, or the one that comes last, is chosen.
    "first_of_equals": [best_plan(tie=lambda p, i: i), best_plan(tie=lambda p, i: -i)],
}


def reason_of_choice(index: int, got: Any, plans: Sequence[CandidatePlan], job: TrainingJob) -> Words:
    """The first rule that the chosen plan breaks; or why another plan is better."""
    by_name = {plan["name"]: plan for plan in plans}
    best, plan = by_name.get(best_plan()(plans, job)), by_name.get(got if isinstance(got, str) else "")
    values = {"memory": short(job["gib"] * GIB), "job": job, "plan": plan, "best": best}
    if plan is None and got is not None:
        return words["why_plan.no_name"]
    broken = [name for name, rule in RULES.items() if plan and not rule(plan, job)]
    if broken:
        return words[f"why_plan.{broken[0]}"].format(**values)
    if plan and plan["seconds"] == best["seconds"]:
        return words["why_plan.tie"].format(**values)
    why = words["why_plan.slower" if plan else "why_plan.none_chosen"].format(**values)
    return words["why_plan.keeps_all"].format(why=why, **values)


PLANS = task_with_reasons(
    reason_of_choice,
    "11.plans",
    "best_plan(plans, job)",
    words["plan_name"],
    best_plan(),
    WRONG_CHOICES,
    make_inputs=make_plans,
)

# -- 11.days ---------------------------------------------------------------------------------------------------------
RunTime = Callable[..., tuple[float, float]]  # days and GPU-hours


def make_days(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
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


def run_time(
    *,
    attention: int = 12,
    mfu: Callable[[float, float], float] = lambda hfu, recomputed: hfu * 3 / (3 + recomputed),
    with_losses: Callable[[float, float], float] = lambda seconds, lost: seconds / (1 - lost),
    counted_gpus: Callable[[int], int] = lambda gpus: gpus,
) -> RunTime:
    """The right function, or with other arguments a wrong one.

    A token takes 6 FLOPs per parameter, and `attention` * layers * hidden * sequence length for attention. mfu: the
    model FLOPs utilization, from the HFU and the share of forward that is recomputed, which the HFU counts but the MFU
    does not; forward counts 1 and backward 2. with_losses: from the seconds of training and the share of time that is
    lost to all seconds. counted_gpus: of how many GPUs the hours are counted, from the number there is.
    """

    def days(
        model: Mapping[str, int], tokens: int, gpus: int, peak: float, hfu: float, recomputed: float, lost: float
    ) -> tuple[float, float]:
        flops = 6 * model["parameters"] + attention * model["layers"] * model["hidden"] * model["seq"]
        seconds = with_losses(tokens * flops / (gpus * peak * mfu(hfu, recomputed)), lost)
        return seconds / 86_400, counted_gpus(gpus) * seconds / 3_600

    return days


WRONG_DAYS: dict[str, list[RunTime]] = {
    "hfu_for_mfu": [run_time(mfu=lambda hfu, recomputed: hfu)],
    "attention_forgotten": [run_time(attention=0)],
    "lost_time_added": [
        run_time(with_losses=lambda seconds, lost: seconds * (1 + lost)),
        run_time(with_losses=lambda seconds, lost: seconds),
    ],
    "hours_of_one_gpu": [run_time(counted_gpus=lambda gpus: 1)],
}


def reason_of_days(index: int, got: Any, model: Mapping[str, int], tokens: int, gpus: int, *rates: float) -> Words:
    """What the days are made of, or the GPU-hours."""
    days, _ = run_time()(model, tokens, gpus, *rates)
    per_token = 6 * model["parameters"] + 12 * model["layers"] * model["hidden"] * model["seq"]
    _, hfu, recomputed, lost = rates
    values = [
        (f"{per_token:.4g}", short(hfu * 3 / (3 + recomputed)), short(1 - lost), f"{86_400 * days:.4g}"),
        (short(24 * days), gpus),
    ]
    return words[f"why_days.{index}"].format(*values[index])


DAYS = task_with_reasons(
    reason_of_days,
    "11.days",
    "training_days(model, tokens, gpus, peak, hfu, recomputed, lost)",
    [words["days"], words["gpu_hours"]],
    run_time(),
    WRONG_DAYS,
    make_inputs=make_days,
)
