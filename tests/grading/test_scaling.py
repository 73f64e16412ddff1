"""Lab 11: cases in which each mistake shows, plans with every trap, and formulas held against the course's own."""

from __future__ import annotations

import inspect
import operator
import runpy

import pytest

from helpers import schedules
from helpers.grading import grade
from helpers.grading.pipeline.schedule import action_lists, simulate
from helpers.grading.scaling import measurements, planning
from helpers.grading.scaling import step_terms as step
from helpers.predict.by_hand import step_time
from tests.grading.known_mistakes import assert_told_apart, each, repeated, world_of
from tests.standalone import standalone

SEEDS = repeated("seed", range(8))
RIGHT_AND_WRONG = {
    "11.efficiency": (measurements.scaling_study(), measurements.WRONG_STUDIES),
    "11.exposed": (planning.exposed_seconds(), planning.WRONG_EXPOSED),
    "11.bubble": (planning.pipeline_step(), planning.WRONG_STEPS),
    "11.plans": (planning.best_plan(), planning.WRONG_CHOICES),
    "11.days": (planning.run_time(), planning.WRONG_DAYS),
    "11.fit": (measurements.fitted_law, measurements.WRONG_LAWS),
    "11.step": (step.step_terms(), step.WRONG_TERMS),
}


@pytest.mark.parametrize("key", RIGHT_AND_WRONG)
@SEEDS
def test_each_mistake_gives_what_neither_the_right_way_nor_another_does(key, seed):
    right, wrong = RIGHT_AND_WRONG[key]
    cases = world_of(key, 1, seed).inputs[0]["cases"]
    answers = {name: [[one(*case) for case in cases] for one in several] for name, several in wrong.items()}
    assert_told_apart(each([right(*case) for case in cases], answers), operator.eq)


@SEEDS
def test_a_step_is_what_gpipe_takes_and_its_bubble_what_the_stages_idle(seed):
    for forward, micro_batches, chunks in world_of("11.bubble", 1, seed).inputs[0]["cases"]:
        played = simulate(
            action_lists(schedules.gpipe(len(forward), micro_batches)), forward, [2 * one for one in forward]
        )
        seconds, bubble = planning.pipeline_step()(forward, micro_batches, 1)
        idle = 1 - sum(played.busy) / len(forward) / played.seconds
        assert (seconds, bubble) == pytest.approx((played.seconds, idle))
        assert planning.pipeline_step()(forward, micro_batches, chunks) <= (seconds, bubble)


@SEEDS
def test_in_every_job_each_rule_refuses_a_plan_and_the_fastest_is_refused_by_one_alone(seed):
    chosen, refused = [], set()
    for plans, job in world_of("11.plans", 1, seed).inputs[0]["cases"]:
        broken = [[name for name, rule in planning.RULES.items() if not rule(plan, job)] for plan in plans]
        refused |= {name for names in broken if len(names) == 1 for name in names}
        fastest = [names for plan, names in zip(plans, broken, strict=True) if plan["seconds"] == planning.FASTEST]
        assert len(plans) == 200 and all(len(names) < 2 for names in fastest)
        chosen.append(planning.best_plan()(plans, job))
    assert refused == set(planning.RULES) and chosen[-1] is None and None not in chosen[:-1]


@SEEDS
def test_the_last_of_evenly_spaced_measurements_is_an_outlier_without_misleading_and_others_mislead(seed):
    found = set()
    for gpus, seconds in world_of("11.fit", 1, seed).inputs[0]["cases"]:
        odd = measurements.fitted_law(gpus, seconds)[-1]
        found.add((odd in (gpus[0], gpus[-1]), measurements.law_without_furthest(gpus, seconds)[-1] != odd))
    assert {(True, True), (True, False)} <= found, "leaving out what is furthest is leaving out no end"


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
