"""The command line of `python -m helpers grade`."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from helpers.classroom import alike, labs, private, rungs, stripped, terminal, viva_page
from helpers.classroom.attempts import attempts_of
from helpers.classroom.flagged import flags_of
from helpers.classroom.folder import grade_all
from helpers.classroom.labs import Lab
from helpers.classroom.mine import table
from helpers.classroom.one import Settings
from helpers.classroom.page import page
from helpers.classroom.results import Graded, Result
from helpers.classroom.state import State, open_state
from helpers.classroom.submissions import Submission, find
from helpers.classroom.tables import write_tables
from helpers.commands.doctor import usable_cores
from helpers.learner.words import LANGUAGES, language
from helpers.quantities.units import format_seconds

REPORT = "report.html"
GIVES_ANSWERS_AWAY = ("solutions", "tests", "work", "notebooks", "benchmarks", ".git", *stripped.hidden_paths())


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m helpers grade", description="Grade notebooks of a lab: one, or a class in a folder."
    )
    made.add_argument("paths", nargs="*", type=Path, metavar="PATH", help="a notebook, or a folder of submissions")
    made.add_argument("--mine", action="store_true", help="grade nothing, show what you have done so far")
    made.add_argument(
        "--viva", action="store_true", help="then three questions to each about their own code, in OUT/viva"
    )
    made.add_argument("--out", type=Path, help="folder for reports and state (default: graded); the same one resumes")
    made.add_argument("--lab", help="such as 03_ddp, if the notebooks do not tell")
    made.add_argument("--seed", type=int, help="of the inputs, kept for the whole class (default: drawn)")
    made.add_argument(
        "--seed-file", type=Path, help="a file with that number in it, not to be seen on the command line"
    )
    made.add_argument("--jobs", type=int, help="submissions at a time (default: one a core)")
    made.add_argument("--checks", type=Path, help="folder of private checks, with files such as 03_ddp.py")
    made.add_argument("--rung", choices=rungs.RUNGS, help="how strictly to shut in (default: as strictly as possible)")
    made.add_argument("--lang", choices=LANGUAGES, help="of the verdicts; the one chosen, if not given")
    return made


def main(arguments: list[str] | None = None) -> int:
    """0 when all was graded, 1 for a sentence about what is wrong, 130 after Ctrl-C."""
    arguments = sys.argv[1:] if arguments is None else arguments
    is_viva = arguments[:1] == ["viva"]  # a word is easier to say than --viva
    options = parser().parse_args(["--viva", *arguments[1:]] if is_viva else arguments)
    if options.mine:
        print(table())
        return 0
    if not options.paths:
        print("Give a notebook or a folder: python -m helpers grade submissions/. Your own progress: --mine.")
        return 1
    try:
        return _grade(options)
    except (ValueError, OSError) as error:
        print(f"Nothing was graded: {error}", file=sys.stderr)
        return 1


def _grade(options: argparse.Namespace) -> int:
    out = options.out or Path("graded")
    extra = private.use(str(options.checks.resolve())) if options.checks else {}
    names = [options.lab] if options.lab else labs.names()
    candidates = tuple(labs.load(name, extra_points=extra) for name in names)
    submissions = find(options.paths, options.lab)
    if not submissions:
        raise ValueError(f"there is no notebook in {', '.join(map(str, options.paths))}.")
    state = open_state(out, _seed(options))
    rung = options.rung or rungs.highest()
    settings = Settings(
        labs=candidates,
        seed=state.seed,
        rung=rung,
        private=_private(options, out),
        checks=str(options.checks.resolve()) if options.checks else "",
        lang=language(options.lang),
    )
    print(f"{len(submissions)} submissions. {rungs.WORDS[rung]}", flush=True)
    jobs = max(1, options.jobs or int(usable_cores()))
    code = _run(submissions, settings, state, candidates, jobs)
    if options.viva and code == 0:
        pairs = [(one, state.done[one.learner]) for one in submissions]
        return viva_page.write_all(pairs, settings, out / "viva", jobs=jobs)
    return code


def _run(
    submissions: list[Submission], settings: Settings, state: State, candidates: tuple[Lab, ...], jobs: int
) -> int:
    out = state.path.parent
    try:
        results = grade_all(submissions, settings, state, jobs=jobs, tell=_tell)
        is_complete = True
    except KeyboardInterrupt:
        results = [state.done[one.learner] for one in submissions if one.learner in state.done]
        is_complete = False
    print(f"\n{write_report(submissions, results, out, candidates, rungs.WORDS[settings.rung], is_complete)}\n")
    if not is_complete:
        print(f"Interrupted: {len(results)} of {len(submissions)} are graded; the same command goes on from there.")
        return 130
    print(f"{out / REPORT}, and for gradebooks grades.csv, moodle.csv and canvas.csv beside it.")
    return 0


def write_report(
    submissions: list[Submission],
    results: list[Result],
    out: Path,
    candidates: tuple[Lab, ...],
    isolation: str,
    is_complete: bool,
) -> str:
    """Write all files but the state. The table for the terminal."""
    results = with_tasks(results, candidates)
    rubrics = {f"{lab.name}.{question.grade_id}": question.rubric for lab in candidates for question in lab.questions}
    tried = attempts_of(submissions, results)
    write_tables(results, out, tried)
    graded = ", ".join(sorted({one.lab for one in results if one.lab})) or "submissions"
    found = {"tried": tried, "pairs": alike.pairs(submissions, results, candidates), "rubrics": rubrics}
    text = page(results, title=f"Graded: {graded}", isolation=isolation, is_complete=is_complete, **found)
    (out / REPORT).write_text(text, encoding="utf-8")
    return terminal.table(results, tried)


def with_tasks(results: list[Result], candidates: tuple[Lab, ...]) -> list[Result]:
    """Files that could not be read tell no lab; where all others are of one, they have missed that one."""
    found = {one.lab for one in results if one.lab}
    lab = next((lab for lab in candidates if found == {lab.name}), None)
    if lab is None:
        return results
    nothing = tuple(Graded(key=a.key, state="not graded", points=0.0, most=a.points) for a in lab.tasks)
    return [one if one.tasks else replace(one, lab=lab.name, tasks=nothing) for one in results]


def _tell(result: Result, number: int, total: int) -> None:
    marks = "  ".join(f"{task.key} {task.state}" for task in result.tasks if task.state != "passed")
    flags = flags_of(result)
    more = f"  {len(flags)} flag{'s' * (len(flags) != 1)}" if flags else ""
    problem = f"  {result.problems[0]}" if result.problems else ""
    points = f"{result.points:g}/{result.most:g}" if result.tasks else "?"
    line = f"[{number}/{total}] {result.learner}: {points} in {format_seconds(result.seconds)}  {marks}{more}{problem}"
    print(line.rstrip(), flush=True)


def _seed(options: argparse.Namespace) -> int | None:
    if options.seed_file is None:
        return options.seed
    try:
        return int(options.seed_file.read_text(encoding="utf-8").strip())
    except ValueError:
        raise ValueError(f"{options.seed_file} holds no whole number: write one, such as 4711.") from None


def _private(options: argparse.Namespace, out: Path) -> tuple[str, ...]:
    """What learners' code must not see: the others' work, results, seed, checks, and what gives answers away."""
    own = [rungs.ROOT / name for name in GIVES_ANSWERS_AWAY]
    handed_in = [path if path.is_dir() else path.parent for path in options.paths]
    more = [path for path in (options.seed_file, options.checks) if path]
    return tuple(sorted({str(path.resolve()) for path in [*own, *handed_in, out, *more] if path.exists()}))
