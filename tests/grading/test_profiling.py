"""Lab 10: every number draws six, each part of a diagnosis is judged by itself, and timelines leave no doubt."""

from __future__ import annotations

import pytest

from helpers.commands.broken_jobs import broken_jobs as zoo
from helpers.grading import grade
from helpers.grading.profiling import straggler, timelines
from helpers.grading.profiling.clinic import causes, clinic, jobs_of, judge_diagnosis, message_lines, mistakes_in
from helpers.records import Span, covered_seconds
from tests.grading.known_mistakes import repeated, world_of

NUMBERS = range(40)
SEEDS = range(20)


def cases_of(key: str, seed: int) -> list[list]:
    return world_of(key, 1, seed).inputs[0]["cases"]


# -- who is drawn, and what is seen of them --------------------------------------------------------------------------
def test_a_number_draws_six_of_twelve_always_the_same_and_some_of_each_kind():
    seen = set()
    for number in NUMBERS:
        six = jobs_of(number)
        seen |= {one.name for one in six}
        assert len({one.name for one in six}) == 6 and six == jobs_of(number)
        assert sum(one.rank is not None for one in six) == 2
    assert len(seen) == 12
    with pytest.raises(ValueError, match=r"clinic got '7': give a whole number of your own, such as clinic\(391\)"):
        jobs_of("7")


def test_each_patient_has_a_cause_of_its_own_and_some_causes_nobody_has():
    ill = [causes()[one.name] for one in zoo()]
    assert len(causes()) > len(ill) == 12
    texts = [text for cause in causes().values() for text in (cause.en, cause.zh)]
    assert len(set(texts)) == len(texts)


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_clinic_shows_symptom_log_script_and_command_and_not_the_cause(lang):
    page = clinic(391, lang=lang)
    for one in jobs_of(391):
        assert (
            one.symptom.in_(lang) in page
            and one.log.rstrip() in page
            and f"helpers.commands.broken_jobs.scripts.{one.name}\n" in page
        )
        wrong = one.script.splitlines()[one.line_number() - 1]
        assert f"\n{one.line_number():>2}  {wrong}\n" in page
        assert one.cause.in_(lang) not in page and one.hint.in_(lang) not in page and one.remedy.in_(lang) not in page
    assert all(cause.en in page for cause in causes().values()) and page.count("<details>") == page.count("</details>")
    listed = [line for line in page.splitlines() if line.startswith('- `"')]
    assert listed == sorted(listed) and len(listed) == len(causes())


# -- how a diagnosis is judged ---------------------------------------------------------------------------------------
def right_of(number: int) -> dict[str, list]:
    due = {one.name: "all" if one.rank is None else one.rank for one in jobs_of(number)}
    return {one.name: [due[one.name], one.line_number(), causes()[one.name].en] for one in jobs_of(number)}


@pytest.mark.parametrize("number", NUMBERS)
def test_the_right_six_pass_whoever_is_drawn_and_one_wrong_part_does_not(number):
    for one in jobs_of(number):
        rank, line, cause = right_of(number)[one.name]
        assert not judge_diagnosis(one, [rank, line, cause]).wrong
        for other in one.other_lines:
            assert not judge_diagnosis(one, [rank, one.line_number(other), causes()[one.name].zh]).wrong
        assert judge_diagnosis(one, [rank, True, cause]).wrong == ("line",)
        assert judge_diagnosis(one, [str(rank) + " ", line, cause]).wrong == ("rank",)
        assert judge_diagnosis(one, [1.0, 1, 1]).wrong == ("rank", "line", "cause")


def text_of(answer: dict[str, list], ranks) -> str:
    return grade("10.patients", lambda: (10, answer), ranks=ranks).text("en").rpartition("\n")[0]  # without the seed


def test_the_wrong_ones_of_six_are_named_and_of_the_first_its_only_wrong_part(ranks):
    answer = right_of(10)
    answer["patient_04"][1] += 20
    answer["patient_06"] = [2, 2, "gremlins"]
    text = text_of(answer, ranks)
    assert "4 of the 6 patients of number 10 are right\n" in text
    assert "patient_04: the line is not right yet. What does a loss hold" in text
    assert "patient_06 is not right yet either" in text
    assert not any(word in text for word in ("32", "21", "a graph that is kept", "a sum in place", "patient_03"))


@pytest.mark.parametrize("part", [0, 1, 2])
def test_a_guess_at_one_part_is_not_confirmed(part):
    """Otherwise as many checks as there are lines would find the lines of all patients, whatever the rest says."""

    def text(answer: dict[str, list]) -> list[str]:
        diagnoses = [judge_diagnosis(one, answer[one.name]) for one in jobs_of(10)]
        return [line.en for line in message_lines(diagnoses, 10, answer)] + [
            mistakes_in(one, False) for one in diagnoses
        ]

    right, nothing = right_of(10), {one.name: [-1, -1, causes()["other 1"].en] for one in jobs_of(10)}
    for name in right:
        guess = {other: list(parts) for other, parts in nothing.items()}
        guess[name][part] = right[name][part]
        assert text(guess) == text(nothing)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (None, "expected two values: your number, and a dict"),
        ((7.5, {}), "expected two values"),
        ((10, [1]), "expected two values"),
        ((10, {}), "0 of the 6 patients of number 10 are right\n"),
        ((10, {"patient_03": "1"}), "patient_10 and patient_12: nothing to read; write (rank or"),
        ((10, {"patient_03": (1, "14", "unequal numbers of steps")}), "patient_03, patient_04, patient_05"),
        ((10, {"patient_03": (object(), 1, {})}), "patient_03: the cause is none of the list"),
        ((10, {"patient_01": ("all", 29, "")}), "patient_01 is not of number 10: is 10 yours?"),
        ((10, {"patient_03": (1, 14, "unequal numbers of steps")}), "1 of the 6 patients of number 10 is right\n"),
    ],
)
def test_what_is_no_diagnosis_gets_a_sentence(answer, says, ranks):
    verdict = grade("10.patients", lambda: answer, ranks=ranks)
    assert not verdict.passed and says in verdict.text("en") and verdict.text("zh")


# -- timelines -------------------------------------------------------------------------------------------------------
@repeated("seed", SEEDS)
def test_ranks_are_missing_from_messages_and_a_root_is_gone_before_the_last_calls(seed):
    runs = [calls for (calls,) in cases_of("10.split", seed)]
    names = [[set(own) for own in calls] for calls in runs]
    assert any(len({*map(frozenset, own)}) > 1 for own in names) and any(set() in own for own in names)
    parts = [part for calls in runs for part in timelines.right_split(calls)]
    assert all(waiting >= 0 and moving >= 0 for *_, waiting, moving in parts)
    assert any(waiting > 0 and moving == 0 for *_, waiting, moving in parts)
    for calls in runs:
        whole = {(rank, name): back - called for rank, own in enumerate(calls) for name, (called, back) in own.items()}
        assert whole == {(rank, name): w + m for rank, name, w, m in timelines.right_split(calls)}


@repeated("seed", SEEDS)
def test_exposed_is_what_both_cover_without_what_compute_covers(seed):
    for communication, compute in cases_of("10.exposed", seed):
        both, own = (_covered([*first, *compute]) for first in (communication, []))
        assert timelines.exposed(communication, compute) == both - own


def _covered(several):
    made = [Span(rank=0, lane="compute", name="", kind="other", start=a, end=b) for a, b in several]
    return covered_seconds(made)


@repeated("seed", SEEDS)
def test_timelines_are_as_the_text_says_and_far_from_every_threshold(seed):
    found = []
    for (of_ranks,) in cases_of("10.straggler", seed):
        read = straggler.wait_statistics(of_ranks)
        found.append(straggler.straggler(of_ranks))
        # Two runs are made to be exactly at the limit and one grain above it; rounding takes none across.
        near = max(read.charged) - read.limit
        assert near in (0.0, 1 / 32) or not 0.5 * read.limit < max(read.charged) < 1.5 * read.limit
        for step in zip(*of_ranks, strict=True):
            calls = [start for own in step for lane, start, _ in own if lane == "communication"]
            ends = [end for own in step for lane, _, end in own if lane == "communication"]
            assert len(calls) == len(of_ranks) and calls.count(max(calls)) == 1 and min(ends) >= max(calls)
        for own in of_ranks:
            pieces = sorted((start, end) for step in own for _, start, end in step)
            assert all(a[1] <= b[0] for a, b in zip(pieces, pieces[1:], strict=False))
        if found[-1]:
            rest = sorted(straggler.excess(read.by_cause, found[-1][0]).values())
            assert rest[-1] - rest[-2] > 0.5
    assert {one and one[1] for one in found} == {None, "data", "compute", "link"}


@repeated("seed", SEEDS)
def test_runs_begin_late_on_the_clock_and_have_ranks_near_each_form_of_the_limit(seed):
    runs = [of_ranks for (of_ranks,) in cases_of("10.straggler", seed)]
    starts = [min(start for own in run for step in own for _, start, _ in step) for run in runs]
    assert starts[0] == 0 and min(starts[1:]) >= 200
    found = [straggler.wait_statistics(run) for run in runs]
    assert any(one.limit / (len(one.charged) - 1 or 1) < max(one.charged) < one.limit for one in found)
    assert any(longest_wait(run) < one.limit < max(one.charged) for run, one in zip(runs, found, strict=True))


def longest_wait(run):
    """The most seconds that any rank has if only the longest wait of each step is charged."""
    charged = [0.0] * len(run)
    for step in zip(*run, strict=True):
        calls = [start for own in step for lane, start, _ in own if lane == "communication"]
        charged[calls.index(max(calls))] += max(calls) - min(calls)
    return max(charged)


WRONG_ANSWERS = [
    ("10.split", lambda calls: None, "a list with a dict for each rank"),
    ("10.split", lambda calls: [{} for _ in calls], "but its dict in the answer lacks this message"),
    ("10.split", lambda calls: [{"x": (0, 0)} | dict.fromkeys(own, (0, 0)) for own in calls], "take part in x"),
    ("10.split", lambda calls: [dict.fromkeys(own, (9, 9)) for own in calls], "the last call of sum 0 on any rank"),
    ("10.straggler", lambda timelines: (0, "data"), "These seconds are charged to ranks 0, 1 and so on: 0 s and"),
    ("10.straggler", lambda timelines: (0, "data"), "Above the median of the other ranks, rank 1 has these seconds"),
    ("10.exposed", lambda communication, compute: -1.0, "Some communication runs and no compute only in these spans"),
]


@pytest.mark.parametrize(("key", "function", "says"), WRONG_ANSWERS)
def test_behind_a_wrong_answer_stands_how_the_right_one_follows(key, function, says, ranks):
    verdict = grade(key, function, ranks=ranks)
    assert not verdict.passed and says in verdict.text("en") and verdict.text("zh")
