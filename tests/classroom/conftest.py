"""A class that is graded once, two at a time: cheats, bad input and right answers, each in its own sandbox."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from helpers.classroom import isolation, labs
from helpers.classroom.cli import folders_with_answers
from helpers.classroom.grade import GradingSettings, grade_all, open_state
from helpers.classroom.isolation import Limits
from helpers.classroom.submissions import find_submissions
from tests.classroom import notebooks

LIMITS = Limits(
    cell_seconds=1, world_seconds=15, grace_seconds=8, total_seconds=120, memory_bytes=1_500_000_000, processes=48
)
ENDLESS = ("bad-silent", "bad-endless_function", "cheat-prints_passed")  # only a limit ends these, so theirs are low
LOW = replace(LIMITS, world_seconds=3, grace_seconds=2)


@pytest.fixture(scope="session")
def lab_03():
    return labs.load_lab("03_ddp")


@pytest.fixture(scope="session")
def settings(lab_03):
    """settings(folder): of a class whose submissions lie there."""

    def made(folder, **more) -> GradingSettings:
        private = tuple(str(path) for path in (*(isolation.ROOT / name for name in folders_with_answers()), folder))
        own = {"labs": (lab_03,), "seed": 11, "limits": LIMITS, "private": private}
        return GradingSettings(**own | {"isolation_level": isolation.strictest_available()} | more)

    return made


# What the normal run grades, about a quarter: of each kind of row and flag one or two, and the cheats that only their
# ranks betray. The slow tests grade the others as well.
SAMPLE = {"right", "untouched", "bad-syntax_error", "bad-endless_cell", "bad-prints_100_mb", "bad-exits_in_a_cell"}
SAMPLE |= {"bad-forks_in_a_cell", "bad-deletes_files", "bad-silent"}
SAMPLE |= {"cheat-clears_the_listeners", "cheat-forges_the_answer", "cheat-courses_own_mesh", "cheat-opens_the_zoo"}


def sampled(names, prefix: str) -> list:
    """Parameters for a test of these submissions: those that the normal run does not grade are slow."""
    marks = [() if f"{prefix}-{name}" in SAMPLE else (pytest.mark.slow,) for name in names]
    return [pytest.param(name, marks=mark, id=name) for name, mark in zip(names, marks, strict=True)]


@pytest.fixture(scope="session")
def graded(request):
    """graded("right"): the GradedSubmission of a learner of the class."""

    def result(name: str):
        return request.getfixturevalue("graded_sample" if name in SAMPLE else "graded_rest")[name]

    return result


@pytest.fixture(scope="session")
def graded_sample(tmp_path_factory, settings):
    return grade_class(tmp_path_factory, settings, lambda name: name in SAMPLE)


@pytest.fixture(scope="session")
def graded_rest(tmp_path_factory, settings):
    return grade_class(tmp_path_factory, settings, lambda name: name not in SAMPLE)


def grade_class(tmp_path_factory, settings, is_chosen) -> dict:
    """The learner to the GradedSubmission, for those of the class whose name is chosen."""
    folder, others, endless = (tmp_path_factory.mktemp(name) for name in ("class", "others", "endless"))
    victim = folder / "victim" / "work"
    victim.parent.mkdir()
    victim.write_text("of years")
    for path in notebooks.CHEATS:
        cheat = notebooks.handed_in({key_of(path): path.read_text()})
        home = folder if key_of(path).startswith("03.") else others
        notebooks.write(home / f"cheat-{path.stem}.ipynb", cheat)
    for name, answers in notebooks.BAD.items():
        answers = {key: source.replace("VICTIM", str(victim.parent)) for key, source in answers.items()}
        notebooks.write(folder / f"bad-{name}.ipynb", notebooks.handed_in(answers))
    notebooks.write(folder / "right.ipynb", notebooks.lab(folder="solutions"))
    notebooks.write(folder / "untouched.ipynb", notebooks.lab())
    for path in [*folder.iterdir(), *others.iterdir()]:
        if path.is_file() and not is_chosen(path.name.removesuffix(".ipynb")):
            path.unlink()
        elif path.stem in ENDLESS:
            path.rename(endless / path.name)
    results, start = [], time.monotonic()
    groups = ((folder, {}, 2), (endless, {"limits": LOW}, 3), (others, {"labs": labs_of_cheats()}, 2))
    for where, more, jobs in groups:
        state = open_state(where.parent / f"out-{where.name}", seed=11)
        submissions = find_submissions([where])
        results += grade_all(submissions, settings(where, **more), state, jobs=jobs, on_graded=print_result)
    print(f"{time.monotonic() - start:.0f} s for {len(results)}")
    assert victim.read_text() == "of years", "a learner's code deleted files"
    return {one.learner: one for one in results}


def print_result(result, number, total) -> None:
    print(f"[{number}/{total}] {result.learner} {result.seconds:.1f} s", flush=True)


def key_of(path) -> str:
    """The task of a cheat."""
    return next(line for line in path.read_text().splitlines() if line.startswith("TASK")).split('"')[1]


def labs_of_cheats() -> tuple[labs.LabNotebook, ...]:
    """Those besides lab 03."""
    keys = {key_of(path).partition(".")[0]: key_of(path) for path in notebooks.CHEATS}
    return tuple(notebooks.lab_of(key) for number, key in sorted(keys.items()) if number != "03")
