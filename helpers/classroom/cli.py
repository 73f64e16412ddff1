"""Runs `python -m helpers grade`: grades a folder of submissions, or with `--mine` shows the learner's own progress.

Grading writes report.html, the CSV files for gradebooks and the state file that lets an interrupted run resume. With
`--viva` it then writes questions for an oral exam about each learner's own code.

The seed draws the inputs of the tasks. It is kept from learners' code, so that no answer can know its inputs.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from pathlib import Path

from helpers.classroom import isolation, labs, reports, similarity, viva
from helpers.classroom.grade import ClassState, grade_all, open_state, ungraded_tasks
from helpers.classroom.isolation import ROOT
from helpers.classroom.labs import LabNotebook
from helpers.classroom.plain_text import one_line, plain_lines
from helpers.classroom.reading import GradingSettings, attempts_by_learner
from helpers.classroom.reports import report_html, write_tables
from helpers.classroom.results import GradedSubmission, flags_of
from helpers.classroom.strip_answers import hidden_paths
from helpers.classroom.submissions import Submission, find_submissions
from helpers.commands.doctor import usable_cores
from helpers.learner import progress
from helpers.learner.course import chapters
from helpers.learner.words import LANGUAGES, language
from helpers.quantities.units import format_seconds

REPORT = "report.html"
RISK = "--submissions-may-read-my-files"  # the option without which the level "plain" is refused
FOLDERS_WITH_ANSWERS = ("solutions", "tests", "work", "notebooks", "benchmarks", ".git")  # folders of this repository


def parser() -> argparse.ArgumentParser:
    """The parser of the command's options."""
    made = argparse.ArgumentParser(
        prog="python -m helpers grade", description="Grade notebooks of a lab: one, or a class in a folder."
    )
    add, levels = made.add_argument, isolation.ISOLATION_LEVELS
    add("paths", nargs="*", type=Path, metavar="PATH", help="a notebook, or a folder of submissions")
    add("--mine", action="store_true", help="grade nothing, show what you have done so far")
    add("--viva", action="store_true", help="then three questions to each about their own code, in OUT/viva")
    add("--out", type=Path, help="folder for reports and state (default: graded); the same one resumes")
    add("--lab", help="the lab, such as 03_ddp, if the notebooks do not say")
    add("--seed", type=int, help="of the inputs, kept for the whole class (default: drawn)")
    add("--seed-file", type=Path, help="a file with that number in it, not to be seen on the command line")
    add("--jobs", type=int, help="submissions at a time (default: one a core)")
    add("--checks", type=Path, help="folder of private checks, with files such as 03_ddp.py")
    add("--rung", choices=levels, help="how strictly to isolate code (default: as strictly as possible)")
    add(RISK, action="store_true", help="grade also where nothing but Python keeps learners' code from your files")
    add("--lang", choices=LANGUAGES, help="of the verdicts; the one chosen, if not given")
    return made


def main(arguments: list[str] | None = None) -> int:
    """The exit code: 0 when all was graded, 1 where a printed sentence says what is wrong, 130 after Ctrl-C."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["viva"]:  # `grade viva PATH` means `grade --viva PATH`
        arguments = ["--viva", *arguments[1:]]
    options = parser().parse_args(arguments)
    if options.mine:
        print(own_progress_table())
        return 0
    if not options.paths:
        print("Give a notebook or a folder: python -m helpers grade submissions/. Your own progress: --mine.")
        return 1
    try:
        return _grade(options)
    except KeyboardInterrupt:
        print("Interrupted; the same command goes on from there.", file=sys.stderr)
        return 130
    except (ValueError, OSError) as error:
        print(f"Nothing was graded: {plain_lines(str(error))}", file=sys.stderr)
        return 1


def _grade(options: argparse.Namespace) -> int:
    """Grade the submissions, then ask the questions if wanted. Raises ValueError or OSError before it has begun.

    candidates: the labs to which a submission may belong.
    """
    out = options.out or Path("graded")
    extra_points = labs.use_private_checks(str(options.checks.resolve())) if options.checks else {}
    lab_names = [options.lab] if options.lab else labs.lab_names()
    candidates = tuple(labs.load_lab(name, extra_points=extra_points) for name in lab_names)
    submissions = find_submissions(options.paths, options.lab)
    if not submissions:
        raise ValueError(f"there is no notebook in {', '.join(map(str, options.paths))}.")
    isolation_level = _isolation_level(options)
    state = open_state(out, _seed(options))
    settings = GradingSettings(
        labs=candidates,
        seed=state.seed,
        isolation_level=isolation_level,
        private=_private(options, out),
        checks=str(options.checks.resolve()) if options.checks else "",
        lang=language(options.lang),
    )
    jobs = max(1, options.jobs or int(usable_cores()))
    code = _run(submissions, settings, state, jobs)
    if options.viva and code == 0:
        pairs = [(one, state.done[one.learner]) for one in submissions]
        return viva.write_all(pairs, settings, out / "viva", jobs=jobs)
    return code


def _isolation_level(options: argparse.Namespace) -> str:
    """The level of isolation that was asked for, or the strictest one of this machine.

    Raises ValueError for the weakest level, unless the option that names its risk is given.
    """
    level = options.rung or isolation.strictest_available()
    if level != isolation.ISOLATION_LEVELS[-1] or options.submissions_may_read_my_files:
        return level
    is_only_one = isolation.strictest_available() == level
    why = "this system isolates processes in no other way" if is_only_one else f"you asked for --rung {level}"
    raise ValueError(
        f"{why}, so learners' code would run as you, with your files and your network within its reach. Grade in a "
        f"container or a virtual machine with nothing in it that you would miss, and then add {RISK}."
    )


def _run(submissions: list[Submission], settings: GradingSettings, state: ClassState, jobs: int) -> int:
    """Grade, write the report also of an interrupted run, print a table. Returns the exit code."""
    out = state.path.parent
    try:
        print(f"{len(submissions)} submissions. {isolation.ISOLATION_TEXTS[settings.isolation_level]}", flush=True)
        results = grade_all(submissions, settings, state, jobs=jobs, on_graded=_print_progress)
        is_complete = True
    except KeyboardInterrupt:
        results = [state.done[one.learner] for one in submissions if one.learner in state.done]
        is_complete = False
    print(f"\n{write_report(submissions, results, settings, out, is_complete)}\n")
    if not is_complete:
        print(f"Interrupted: {len(results)} of {len(submissions)} are graded; the same command goes on from there.")
        return 130
    print(f"{out / REPORT}, and for gradebooks grades.csv, moodle.csv and canvas.csv beside it.")
    return 0


def write_report(
    submissions: list[Submission],
    results: list[GradedSubmission],
    settings: GradingSettings,
    out: Path,
    is_complete: bool,
) -> str:
    """Write the report and the CSV files into `out`; return the table that the terminal shows."""
    results = with_tasks(results, settings.labs)
    attempts = attempts_by_learner(submissions, results, settings)
    write_tables(results, out, attempts)
    lab_list = ", ".join(sorted({one.lab for one in results if one.lab})) or "submissions"
    text = report_html(
        results,
        title=f"Graded: {lab_list}",
        isolation_text=isolation.ISOLATION_TEXTS[settings.isolation_level],
        is_complete=is_complete,
        attempts=attempts,
        pairs=similarity.similar_pairs(results, settings.labs),
        rubrics={f"{lab.name}.{one.grade_id}": one.rubric for lab in settings.labs for one in lab.questions},
    )
    (out / REPORT).write_text(text, encoding="utf-8", errors="backslashreplace")
    return reports.terminal_table(results, attempts)


def with_tasks(results: list[GradedSubmission], candidates: tuple[LabNotebook, ...]) -> list[GradedSubmission]:
    """Give submissions that could not be read the tasks of the lab that all others are of, as not graded.

    Where the others are of several labs, nothing is known about an unreadable file, so the results stay as they are.
    """
    found = {one.lab for one in results if one.lab}
    lab = next((lab for lab in candidates if found == {lab.name}), None)
    if lab is None:
        return results
    return [one if one.tasks else replace(one, lab=lab.name, tasks=ungraded_tasks(lab)) for one in results]


def _print_progress(result: GradedSubmission, number: int, total: int) -> None:
    marks = "  ".join(f"{task.key} {task.state}" for task in result.tasks if task.state != "passed")
    num_flags = len(flags_of(result)) + sum(result.more_flags.values())
    flag_count = f"  {num_flags:,} flag{'' if num_flags == 1 else 's'}" if num_flags else ""
    problem = f"  {one_line(result.problems[0])}" if result.problems else ""
    points = f"{result.points:g}/{result.max_points:g}" if result.tasks else "?"
    line = f"[{number}/{total}] {one_line(result.learner)}: {points} in {format_seconds(result.seconds)}  {marks}"
    print(f"{line}{flag_count}{problem}".rstrip(), flush=True)


def _seed(options: argparse.Namespace) -> int | None:
    """The seed from the options or the seed file; None if neither gives one. Raises ValueError for a bad file."""
    if options.seed_file is None:
        return options.seed
    try:
        return int(options.seed_file.read_text(encoding="utf-8").strip())
    except ValueError:
        raise ValueError(f"{options.seed_file} contains no whole number: write one, such as 4711.") from None


def _private(options: argparse.Namespace, out: Path) -> tuple[str, ...]:
    """What learners' code must not see: the work of others, results, the seed, private checks, and every answer."""
    with_answers = [ROOT / name for name in folders_with_answers()]
    handed_in = [path if path.is_dir() else path.parent for path in options.paths]
    more = [path for path in (options.seed_file, options.checks) if path]
    return tuple(sorted({str(path.resolve()) for path in [*with_answers, *handed_in, out, *more] if path.exists()}))


def folders_with_answers() -> list[str]:
    """Paths below the repository's root that no sandbox may see."""
    return [*FOLDERS_WITH_ANSWERS, *hidden_paths()]


def own_progress_table(path: str | os.PathLike | None = None) -> str:
    """The text of `--mine`: each lab with its passed tasks and attempts, and the next open task.

    path: the progress file, if it is not the one in the home folder.
    """
    # Number of a lab ("03") -> key of a task -> its Standing: whether it is passed, the attempts, and the seconds.
    standings_by_lab = progress.read_standings(path)
    lines = [f"{'lab':<18} {'done':<8} {'attempts':>8}   tasks"]
    next_task = None
    for chapter in (one for one in chapters() if one.tasks):
        lab, keys, standings = chapter.name, chapter.tasks, standings_by_lab.get(chapter.number, {})
        passed = [key for key in keys if key in standings and standings[key].passed]
        attempts = sum(standings[key].attempts for key in keys if key in standings)
        marks = "  ".join(_own_mark(key, standings.get(key)) for key in keys)
        lines.append(f"{lab:<18} {f'{len(passed)} of {len(keys)}':<8} {attempts:>8}   {marks}")
        open_tasks = [key for key in keys if key not in passed]
        if next_task is None and open_tasks:
            next_task = f"Next: {open_tasks[0]}, in labs/{lab}.ipynb."
    lines += ["", next_task or "Every task of every lab is done."]
    skipped = progress.read(path).num_skipped
    lines += [f"({skipped} lines of the progress file could not be read.)"] if skipped else []
    return "\n".join(lines)


def _own_mark(key: str, standing: progress.Standing | None) -> str:
    """A task as "average ✓ (12 s)". standing: what the progress file says about it, None if it was never tried."""
    name = key.partition(".")[2]
    if standing is None:
        return f"{name} –"
    if not standing.passed:
        return f"{name} ✗"
    return f"{name} ✓" + (f" ({format_seconds(standing.seconds)})" if standing.seconds else "")
