"""11.plans: the fastest of 200 plans that a cluster, a model and a batch allow. 11.days: how long the run takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from helpers.grading.cases import CaseGenerator
from helpers.grading.kit import answers
from helpers.grading.scaling import LAB
from helpers.learner.words import Words

# -- 11.plans --------------------------------------------------------------------------------------------------------
Plan, Job = dict[str, Any], Mapping[str, int]
Rule, Choice = Callable[[Plan, Job], bool], Callable[[Sequence[Plan], Job], str | None]
GIB = 2**30 / 1e9  # GB
NUM_PLANS, FASTEST = 200, 5.0  # seconds
FIELDS = ("name", "dp", "tp", "pp", "micro_batch", "gb", "seconds")
# What is special about the fastest plans: their times the GPUs there are, tp, pp, micro-batch, share of the memory.
KINDS: dict[str, list[tuple[float, ...]]] = {
    "plain": [],
    # No whole number of GB lies between the memory and the first two, of which one fits.
    "memory": [(1, 4, 1, 1, 1.0745), (1, 8, 1, 1, 1.0725), (1, 8, 2, 1, 1.02)],
    "nodes": [(1, 16, 1, 1, 0.5)],
    "batch": [(1, 1, 1, 4, 0.5)],
    "heads": [(1, 8, 1, 1, 0.5)],
    "layers": [(1, 1, 16, 1, 0.5)],
    "gpus": [(2, 8, 1, 1, 0.5)],
    # The simplest has neither the fewest stages nor the smallest tp.
    "ties": [(1, 4, 4, 1, 0.5), (1, 8, 1, 1, 0.5), (1, 2, 2, 1, 0.5)],
    "turned ties": [(1, 2, 2, 1, 0.5), (1, 1, 8, 1, 0.5), (1, 4, 4, 1, 0.5)],
    "nothing fits": [],
}


def make_plans(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """In each job the fastest plan has one thing about it; in the last one nothing fits."""
    return [{"cases": [candidates(rng, kind) for kind in KINDS]}]


def candidates(rng: CaseGenerator, kind: str) -> list[Any]:
    """200 plans and the job."""
    gpus, gib = rng.one_of(32, 64, 128), rng.one_of(24, 40, 80)
    job = {"gpus": gpus, "gpus_per_node": 8, "gib": gib, "heads": 12 if kind in ("plain", "heads") else 48}
    job |= {"layers": 8 * rng.one_of(3, 5, 7), "batch": 2 * gpus * rng.one_of(1, 3, 5)}
    odd = sorted({rng.integer(0, NUM_PLANS - 1) for _ in range(9)})
    placed = dict(zip(odd, KINDS[kind], strict=False))
    plans = []
    for number in range(NUM_PLANS):
        any_of = 1, *(2 ** rng.integer(0, most) for most in (4, 4, 2)), rng.integer(30, 140) / 100
        more, tp, pp, micro_batch, share = placed.get(number, any_of)
        seconds = FASTEST if number in placed else 10 + rng.integer(0, 8000) / 400
        gb = round((share + 3 * (kind == "nothing fits")) * gib, 2)
        dp = max(1, more * gpus // (tp * pp))
        name = f"plan {number}: dp {dp}, tp {tp}, pp {pp}, micro-batch {micro_batch}, {gb} GB"
        plans.append(dict(zip(FIELDS, (name, dp, tp, pp, micro_batch, gb, seconds), strict=True)))
    return [plans, job]


RULES: dict[str, Rule] = {
    "gpus": lambda p, job: p["dp"] * p["tp"] * p["pp"] == job["gpus"],
    "nodes": lambda p, job: job["gpus_per_node"] % p["tp"] == 0,
    "heads": lambda p, job: job["heads"] % p["tp"] == 0,
    "layers": lambda p, job: job["layers"] % p["pp"] == 0,
    "batch": lambda p, job: job["batch"] % (p["dp"] * p["micro_batch"]) == 0,
    "memory": lambda p, job: p["gb"] <= job["gib"] * GIB,
}


def best(*, tie: Callable[[Plan, int], float] = lambda p, place: p["tp"] * p["pp"], **instead: Rule) -> Choice:
    """tie: the least of it wins among equally fast ones. instead: rules that take the place of ours."""
    rules = RULES | instead

    def chosen(plans: Sequence[Plan], job: Job) -> str | None:
        allowed = [(p["seconds"], tie(p, i), p["name"]) for i, p in enumerate(plans)]
        fit = [one for one, p in zip(allowed, plans, strict=True) if all(rule(p, job) for rule in rules.values())]
        return min(fit)[2] if fit else None

    return chosen


WRONG_CHOICES: dict[str, list[Choice]] = {
    "gib_as_gb": [best(memory=lambda p, job: p["gb"] <= job["gib"])],
    "tp_across_nodes": [best(nodes=lambda p, job: True)],
    "batch_does_not_divide": [best(batch=lambda p, job: True), best(batch=lambda p, job: job["batch"] % p["dp"] == 0)],
    "first_of_equals": [best(tie=lambda p, place: place), best(tie=lambda p, place: -place)],
}
NAME = Words(en="the name of the plan", zh="方案的名字")
PLANS = answers.question_task(
    "11.plans",
    "best_plan(plans, job)",
    NAME,
    best(),
    WRONG_CHOICES,
    make_inputs=make_plans,
    hints=LAB.hints(*WRONG_CHOICES),
)

# -- 11.days ---------------------------------------------------------------------------------------------------------
Training = Callable[..., tuple[float, float]]


def make_days(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """The text's own; nothing computed again and nothing lost; a long sequence; then any."""
    small = {"parameters": 7 * 10**9, "layers": 32, "hidden": 4096, "seq": 4096}
    cases = [
        [small, 10**12, 64, 1e15, 0.5, 1, 0.1],
        [small, 10**11, 8, 312e12, 0.4, 0, 0.0],
        [small | {"seq": 131_072}, 10**11, 256, 989e12, 0.35, 0.5, 0.05],
    ]
    while len(cases) < 10:
        model = {"parameters": 10**9 * rng.integer(1, 400), "layers": 8 * rng.integer(2, 15)}
        model |= {"hidden": 1024 * rng.integer(2, 16), "seq": 2 ** rng.integer(11, 15)}
        shares = rng.integer(25, 60) / 100, rng.one_of(0, 0.25, 0.5, 1), rng.integer(0, 20) / 100
        cases.append([model, 10**10 * rng.integer(5, 1500), 2 ** rng.integer(3, 14), 312e12, *shares])
    return [{"cases": cases}]


def training(
    *,
    attention: int = 12,
    useful: Callable[[float, float], float] = lambda hfu, recomputed: hfu * 3 / (3 + recomputed),
    whole: Callable[[float, float], float] = lambda seconds, lost: seconds / (1 - lost),
    counted: Callable[[int], int] = lambda gpus: gpus,
) -> Training:
    """useful: the MFU. whole: the seconds with what is lost. counted: the GPUs of which hours are counted."""

    def days(
        model: Mapping[str, int], tokens: int, gpus: int, peak: float, hfu: float, recomputed: float, lost: float
    ) -> tuple[float, float]:
        needed = 6 * model["parameters"] + attention * model["layers"] * model["hidden"] * model["seq"]
        seconds = whole(tokens * needed / (gpus * peak * useful(hfu, recomputed)), lost)
        return seconds / 86_400, counted(gpus) * seconds / 3_600

    return days


WRONG_DAYS: dict[str, list[Training]] = {
    "hfu_for_mfu": [training(useful=lambda hfu, recomputed: hfu)],
    "attention_forgotten": [training(attention=0)],
    "lost_time_added": [training(whole=way) for way in (lambda t, lost: t * (1 + lost), lambda t, lost: t)],
    "hours_of_one_gpu": [training(counted=lambda gpus: 1)],
}
TIMES = [Words(en="the number of days", zh="天数"), Words(en="the number of GPU-hours", zh="GPU 小时数")]
CALL = "training_days(model, tokens, gpus, peak, hfu, recomputed, lost)"
DAYS = answers.question_task(
    "11.days", CALL, TIMES, training(), WRONG_DAYS, make_inputs=make_days, hints=LAB.hints(*WRONG_DAYS)
)
