"""Lab 11: plans with every trap, formulas held against the course's own, and rules below what nobody foresaw."""

from __future__ import annotations

import inspect
import runpy

import pytest

from helpers import schedules
from helpers.grading import grade
from helpers.grading.pipeline.schedule import action_lists, simulated
from helpers.grading.scaling import measurements, planning
from helpers.grading.scaling import step_terms as step
from helpers.predict.by_hand import step_time
from tests.grading.known_mistakes import repeated, world_of
from tests.standalone import standalone

SEEDS = repeated("seed", range(8))
RIGHT = {
    "11.efficiency": measurements.strong_scaling,
    "11.exposed": planning.exposed_seconds,
    "11.bubble": planning.pipeline_step,
    "11.days": planning.training_days,
    "11.fit": measurements.fitted_law,
    "11.step": step.step_terms,
}


@SEEDS
def test_a_step_is_what_gpipe_takes_and_its_bubble_what_the_stages_idle(seed):
    for forward, micro_batches, chunks in world_of("11.bubble", 1, seed).inputs[0]["cases"]:
        lists = action_lists(schedules.gpipe(len(forward), micro_batches))
        timeline = simulated(lists, forward, [2 * one for one in forward])
        seconds, bubble = planning.pipeline_step(forward, micro_batches, 1)
        idle = sum(map(timeline.idle, timeline.ranks)) / len(forward) / timeline.duration
        assert (seconds, bubble) == pytest.approx((timeline.duration, idle))
        assert planning.pipeline_step(forward, micro_batches, chunks) <= (seconds, bubble)


@SEEDS
def test_in_every_job_each_rule_refuses_a_plan_and_the_fastest_is_refused_by_one_alone(seed):
    chosen, refused = [], set()
    for plans, job in world_of("11.plans", 1, seed).inputs[0]["cases"]:
        broken = [[name for name, rule in planning.RULES.items() if not rule(plan, job)] for plan in plans]
        refused |= {name for names in broken if len(names) == 1 for name in names}
        fastest = [names for plan, names in zip(plans, broken, strict=True) if plan["seconds"] == planning.FASTEST]
        assert len(plans) == 200 and all(len(names) < 2 for names in fastest)
        chosen.append(planning.best_plan(plans, job))
    assert refused == set(planning.RULES) and chosen[-1] is None and None not in chosen[:-1]


@SEEDS
def test_the_last_of_evenly_spaced_measurements_is_an_outlier_without_misleading_and_others_mislead(seed):
    found = set()
    for gpus, seconds in world_of("11.fit", 1, seed).inputs[0]["cases"]:
        odd = measurements.fitted_law(gpus, seconds)[-1]
        found.add((odd in (min(gpus), max(gpus)), measurements.furthest(gpus, seconds) != odd))
    assert {(True, True), (True, False)} <= found, "leaving out what is furthest is leaving out no end"


def value_spoilt(key: str, index: int | None):
    """The right function, but one of its values (index None: the only one) is wrong in a way that nobody foresaw."""
    right = RIGHT[key]

    def spoil(value):
        return [*map(spoil, value)] if isinstance(value, list) else value * 1.234 + 5

    def function(*case):
        values = right(*case)
        return spoil(values) if index is None else [*values[:index], spoil(values[index]), *values[index + 1 :]]

    return function


@pytest.mark.parametrize(
    ("key", "index", "says"),
    [
        ("11.efficiency", 0, "The fewest GPUs are n0 = 2, a step on them takes T(n0) = 12 s"),
        ("11.efficiency", 1, "The speed-ups are 2, 3 and 4"),
        ("11.efficiency", 2, "These times follow T(n) = 4 + 16 / n"),
        ("11.exposed", None, "they arrive at 0.13, 0.16 and 0.19 s. Backward ends at 0.14 s"),
        ("11.bubble", 0, "takes 3 s for each of the 8 micro-batches. It waits for the other stages once"),
        ("11.bubble", 1, "could work for 132 s. They work for 96 s of these"),
        ("11.days", 0, "needs 4.844e+10 operations, the MFU is 0.375, and a share of 0.9"),
        ("11.days", 1, "The whole time is 622.974 hours, and each of the 64 GPUs"),
        ("11.fit", 1, "So that one is the outlier, and the fit without it is T(n) = "),
        ("11.step", 0, "One replica computes 2 sequences. A token of them takes 6.088e+10 operations, times 1"),
        ("11.step", 1, "The bubble is 0 of the 2.241 s of compute"),
        ("11.step", 2, "A GPU has 32 layers"),
        ("11.step", 3, "The messages take 0.84 s in all, and the 2.241 s of compute hide"),
    ],
)
def test_a_wrong_value_that_nobody_foresaw_is_shown_with_what_the_right_one_is_made_of(ranks, key, index, says):
    verdict = grade(key, value_spoilt(key, index), seed=1, ranks=ranks)
    assert verdict.mistake is None and says in verdict.text("en"), verdict.text("en")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"gpus": lambda p, job: p["dp"] * p["tp"] * p["pp"] <= job["gpus"]}, "breaks rule 1: "),
        ({"nodes": lambda p, job: p["tp"] in (1, 2, 4)}, "It keeps all six rules: its GPUs are "),
        ({"nodes": lambda p, job: p["tp"] < job["gpus_per_node"]}, "breaks rule 2: "),
        ({"nodes": lambda p, job: job["gpus_per_node"] % (p["tp"] * p["pp"]) == 0}, "It keeps all six rules: its GPUs"),
        ({"heads": lambda p, job: True}, "breaks rule 3: its tp of 8 does not divide the 12 attention heads"),
        ({"layers": lambda p, job: True}, "breaks rule 4: its pp of 16 does not divide"),
        ({"memory": lambda p, job: True}, "breaks rule 6: it needs "),
        ({"tie": lambda p: p["tp"] + p["pp"]}, "Then the smallest tp · pp decides, which is 8 · 1"),
        ({"tie": lambda p: (p["tp"], p["pp"])}, "Then the smallest tp · pp decides, which is 2 · 2"),
    ],
)
def test_a_wrong_plan_is_shown_with_the_rule_that_decides(ranks, change, says):
    rules, tie = planning.RULES | change, change.get("tie", lambda p: p["tp"] * p["pp"])
    rules.pop("tie", None)

    def best_plan(plans, job):
        allowed = [p for p in plans if all(rule(p, job) for rule in rules.values())]
        return min(allowed, key=lambda p: (p["seconds"], tie(p)), default={"name": None})["name"]

    verdict = grade("11.plans", best_plan, seed=1, ranks=ranks)
    assert verdict.mistake is None and says in verdict.text("en"), verdict.text("en")


@pytest.mark.parametrize(
    ("answer", "says"),
    [(None, "The expected plan is allowed. It keeps"), ("plan", 'the text that a plan has under "name"')],
)
def test_what_is_no_plan_gets_a_sentence(ranks, answer, says):
    verdict = grade("11.plans", lambda plans, job: answer, ranks=ranks)
    assert says in verdict.text("en"), verdict.text("en")


def test_what_is_not_as_many_values_as_were_asked_gets_a_sentence(ranks):
    for answer in (None, 25.9, (1.0,)):
        verdict = grade("11.days", lambda *case, answer=answer: answer, ranks=ranks)
        assert "expected 2 values: the number of days, the number of GPU-hours" in verdict.text(
            "en"
        ) and "2 个值" in verdict.text("zh")


@pytest.mark.parametrize(("key", "name"), [("11.step", "step_terms"), ("11.days", "training_days")])
def test_a_copy_of_the_core_file_alone_passes_the_checks(ranks, tmp_path, key, name):
    assert "import" not in inspect.getsource(step_time).split('"""', 2)[2]
    submitted = runpy.run_path(standalone(step_time, tmp_path))[name]
    verdict = grade(key, lambda *case: submitted(*case), ranks=ranks)
    assert verdict.passed, verdict.text()
