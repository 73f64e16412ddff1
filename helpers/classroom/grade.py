"""Grades submissions: each one in a sandbox of its own, a whole class several at a time, resumable after an interrupt.

A submission is the notebook of one learner. It is graded in these steps:

1. `read_submission` has the notebook parsed, in a sandbox of its own, into the statements that each task needs, with a
   flag for each unusual line that a teacher should read. Nothing runs yet.
2. The sandbox, a separate process with as few rights as this system can enforce, runs the notebook's cells.
3. For each task, the sandbox runs the learner's function on the inputs of the task and sends back plain data.
4. The judge of the task, which runs in this process and knows the right outputs, gives the verdict.

A TaskRun is what came back from the ranks of a task: outputs, events (the messages that were sent) and so on, or a
failure. `grade_one` returns a GradedSubmission whatever the file holds. `grade_all` writes each result to the state
file as soon as it is there: one line of JSON for the settings, then one line per graded submission.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from helpers.classroom import messages
from helpers.classroom.allowed import words as words_of_flags
from helpers.classroom.labs import LabNotebook, LabTask
from helpers.classroom.plain_text import MAX_TEXT
from helpers.classroom.program import Cell
from helpers.classroom.reading import GradingSettings, Reading, read_submission
from helpers.classroom.results import (
    CERTAIN,
    Flag,
    GradedSubmission,
    GradedTask,
    WrittenAnswer,
    cleaned,
    kept_flags,
    submission_from_json,
    submission_to_json,
)
from helpers.classroom.sandbox import Sandbox, SandboxEnded, end_all_sandboxes
from helpers.classroom.submissions import Submission, UnreadableNotebook, read_bytes
from helpers.grading import common_checks
from helpers.grading.judging import grade, inputs_by_rank
from helpers.grading.profiling.clinic import PATIENTS
from helpers.grading.registry import similar_name, task_of
from helpers.grading.task import TaskRun
from helpers.grading.verdict import words
from helpers.learner.words import LANGUAGES
from helpers.ranks.processes.zygote import FORKS

MAX_FLAGS = 100  # flags of a submission that are kept; of the others only the number is
MAX_NOTED = 2_000  # with this many flags no more of the guard's are added; it notes at most 20 per cell and task


def grade_one(submission: Submission, settings: GradingSettings) -> GradedSubmission:
    """Grade one submission. Never raises for what is in the file: problems are sentences in the result."""
    return cleaned(_grade_one(submission, settings))


def _grade_one(submission: Submission, settings: GradingSettings) -> GradedSubmission:
    start = time.perf_counter()
    ungraded = GradedSubmission(
        learner=submission.learner,
        file=submission.path.name,
        name=submission.name,
        source=submission.source,
        notes=submission.notes,
    )
    try:
        reading = read_submission(submission, settings)
        ungraded = replace(ungraded, digest=reading.digest)
        return replace(_SubmissionGrader(reading, settings).result(ungraded), seconds=time.perf_counter() - start)
    except UnreadableNotebook as error:
        digest = digest_of(submission) if error.is_notebook else ""  # a file without a digest is looked at again
        return _not_graded(replace(ungraded, digest=digest), settings, str(error), start)
    except Exception as error:  # a fault of the grader, most likely: the rest of the class is graded all the same
        return _not_graded(ungraded, settings, f"The grader itself failed ({type(error).__name__}: {error}).", start)


def _not_graded(ungraded: GradedSubmission, settings: GradingSettings, problem: str, start: float) -> GradedSubmission:
    """The result for a file that cannot be graded. Its tasks are known only if all submissions are to one lab."""
    lab = settings.labs[0] if len(settings.labs) == 1 and settings.labs[0].tasks else None
    return replace(
        ungraded,
        lab=lab.name if lab else "",
        tasks=ungraded_tasks(lab) if lab else (),
        problems=(*ungraded.problems, problem),
        seconds=time.perf_counter() - start,
    )


def ungraded_tasks(lab: LabNotebook) -> tuple[GradedTask, ...]:
    """The tasks of a lab as results of a notebook that could not be run."""
    return tuple(GradedTask(key=task.key, state="not graded", max_points=task.points) for task in lab.tasks)


class _SubmissionGrader:
    """Grades one submission. A cell that ends the sandbox is left out when the sandbox is started again.

    reading: what stands in the notebook.
    flags: for the teacher, from the scan before and from what the guard in the sandbox saw.
    problems: sentences about cells that failed. skipped_cells: names of the cells that ended the sandbox.
    have_cells_run: whether the present sandbox has run all other cells.
    """

    def __init__(self, reading: Reading, settings: GradingSettings):
        lab = next(lab for lab in settings.labs if lab.name == reading.lab)
        self.lab, self.settings, self.reading = lab, settings, reading
        self.flags: list[Flag] = list(reading.flags)
        self.problems = list(reading.problems)
        self.skipped_cells: set[str] = set()
        self.have_cells_run = False
        setup = {"lab": lab.number, "checks": settings.checks}
        # Where processes are not forked (macOS), each new process must read the private checks from their folder.
        hide = [path for path in settings.private if FORKS or path != settings.checks]
        self.sandbox = Sandbox(setup, isolation_level=settings.isolation_level, limits=settings.limits, hide=hide)

    def result(self, ungraded: GradedSubmission) -> GradedSubmission:
        """`ungraded` with its tasks, flags and written answers."""
        try:
            tasks = tuple(self._grade_task(lab_task) for lab_task in self.lab.tasks)
        finally:
            self.sandbox.end()
        flags, more_noted = kept_flags(self.flags, MAX_FLAGS)
        more_flags = Counter(self.reading.more_flags) + Counter(more_noted)
        tasks = tuple(replace(one, flags=tuple(flag for flag in flags if flag.key == one.key)) for one in tasks)
        written = tuple(
            WrittenAnswer(
                grade_id=question.grade_id,
                max_points=question.points,
                text=self.reading.answers.get(question.grade_id, ""),
            )
            for question in self.lab.questions
        )
        return replace(
            ungraded,
            lab=self.lab.name,
            tasks=tasks,
            written=written,
            problems=(*ungraded.problems, *dict.fromkeys(self.problems)),
            more_flags=dict(more_flags),
            pieces=self.reading.pieces,
            peak_bytes=self.sandbox.peak_bytes,
        )

    # -- cells -----------------------------------------------------------------------------------------------------
    def run_cells(self) -> None:
        """Start the sandbox if need be, and run every cell that does not end it.

        When a cell ends the sandbox, all cells before it run once more in a new sandbox, without that cell.
        Raises SandboxEnded if the sandbox does not start.
        """
        while not self.have_cells_run:
            cells = [cell for cell in self.reading.cells if cell.name not in self.skipped_cells]
            self.have_cells_run = all(map(self._run_cell, cells))  # stops at the first cell that ends the sandbox

    def _run_cell(self, cell: Cell) -> bool:
        """Run one cell, and note what was wrong with it. Returns False if the cell ended the sandbox."""
        seconds = self.settings.limits.cell_seconds
        question = {"do": "cell", "name": cell.name, "source": cell.source, "lines": list(cell.lines)}
        try:
            answer = self.sandbox.ask(question | {"seconds": seconds}, seconds)
        except SandboxEnded as error:
            if self.sandbox.is_out_of_time or "did not start" in str(error):
                raise  # that is not the cell's fault, so it would not help to leave the cell out
            self.skipped_cells.add(cell.name)
            self.problems.append(f"{cell.name}: {error}, so the cell was left out.")
            return False
        if isinstance(answer.get("error"), str) and not cell.is_from_lab:  # the lab's own cells are not the learner's
            self.problems.append(str(answer["error"])[:MAX_TEXT])
        self._add_noted_flags(answer, self.reading.keys_of_cell[cell.name])
        return True

    def _add_noted_flags(self, answer: dict, keys: Sequence[str]) -> None:
        """Add what the guard in the sandbox noted, once for each of these tasks."""
        noted = answer.get("noted")
        for note in noted if isinstance(noted, list) else []:
            with suppress(KeyError, TypeError):  # the learner's code could have written a note of any form
                location, reason = str(note["location"])[:100], str(note["reason"][self.settings.lang])[:300]
                flags = [Flag(key=key, location=location, reason=reason, certainty=CERTAIN) for key in keys]
                self.flags += flags if len(self.flags) < MAX_NOTED else []

    # -- tasks -----------------------------------------------------------------------------------------------------
    def _grade_task(self, lab_task: LabTask) -> GradedTask:
        graded = GradedTask(key=lab_task.key, state="failed", max_points=lab_task.points)
        if lab_task.key in self.reading.missing_tasks:
            near = similar_name(lab_task.task, self.reading.defined_names)  # a misspelled name of the task, or ""
            text = f"{lab_task.task.name} is not defined in this notebook{f', but {near} is' if near else ''}."
            return replace(graded, state="missing", text=text)
        runner = _SandboxRunner(self, lab_task.key)
        try:
            verdict = grade(
                lab_task.key,
                runner=runner,
                seed=self.settings.seed,
                names=self.reading.defined_names,  # the verdict may say which of these is a misspelled task
            )
        except Exception as error:  # outputs that a learner made up may break a judge
            text = f"The answer could not be judged ({type(error).__name__}: {str(error)[:200]})."
            return replace(graded, text=text)
        if verdict.passed:
            number = runner.outputs[0][0][0] if lab_task.key == PATIENTS.key else None  # of rank 0, in the first case
            graded = replace(graded, state="passed", points=lab_task.points, number=number)
        return replace(
            graded,
            text=verdict.text(self.settings.lang)[:MAX_TEXT],
            mistake=verdict.mistake,
            hint=verdict.hint.in_(self.settings.lang) if verdict.hint else "",
        )


class _SandboxRunner:
    """Runs a task in the sandbox: `grade` calls it once for each number of ranks.

    Nothing of what comes back is trusted except the output values, which are judged.
    """

    def __init__(self, grader: _SubmissionGrader, key: str):
        self.grader, self.key, self.outputs = grader, key, []

    def __call__(self, inputs: Sequence[dict], seed: int) -> TaskRun:
        """What the ranks returned, or a TaskRun with a failure. inputs: [rank][case]. seed: the seed of the inputs."""
        grader = self.grader
        limits = grader.settings.limits
        question = {"do": "run", "key": self.key, "inputs": list(inputs), "seed": rank_seed(seed, self.key)}
        question["seconds"] = limits.scaled_for_load(limits.world_seconds)  # for the worker; `ask` scales its own limit
        try:
            grader.run_cells()
            answer = grader.sandbox.ask(question, limits.world_seconds)
        except SandboxEnded as error:
            grader.have_cells_run = False  # the next task starts a new sandbox, which has to run the cells
            # The message is the sandbox's reason, for a timeout "it gave no answer in 60 s".
            is_timeout = "no answer" in str(error) or grader.sandbox.is_out_of_time
            return TaskRun(failure={"kind": "too_long" if is_timeout else "died", "text": f"{error}"})
        grader._add_noted_flags(answer, [self.key])
        run = parse_task_run(answer.get("run"))
        with suppress(ValueError, KeyError, TypeError, AttributeError):  # a made-up run, which the judge will refuse
            # `issued` counts every operation. A sentence comes back if it counts more than the events in the run.
            if hidden := common_checks.hidden_messages(run):
                flag = Flag(key=self.key, location="", reason=hidden.in_(grader.settings.lang), certainty=CERTAIN)
                grader.flags.append(flag)
        self.outputs = run.outputs
        return run


def rank_seed(seed: int, key: str) -> int:
    """The seed of what the ranks draw: a hash, from which learners' code cannot compute the seed of the inputs.

    It has up to six digits, like a seed that `open_state` draws.
    """
    return int.from_bytes(hashlib.sha256(f"{seed} {key}".encode()).digest()[:4], "big") % 1_000_000


def parse_task_run(fields: Any) -> TaskRun:
    """The TaskRun whose fields came out of a sandbox, or a failed TaskRun if no TaskRun has such fields."""
    try:
        failure = fields["failure"]
        if failure is not None:
            message = {lang: failure["message"][lang][:MAX_TEXT] for lang in LANGUAGES}
            failure = {name: failure[name] for name in ("kind", "type_name")} | {"text": message["en"]}
            failure["message"] = message
            # `words` has a sentence "trouble.KIND" for every kind of failure that there is.
            if f"trouble.{failure['kind']}" not in words or not isinstance(failure["type_name"], str):
                raise messages.InvalidMessage("a failure of an unknown kind")
        lists = {name: fields[name] for name in ("outputs", "events", "marks", "calls", "issued")}
        if not all(isinstance(value, list) for value in lists.values()):
            raise messages.InvalidMessage("fields that are no lists")
        return TaskRun(**lists, failure=failure, printed=str(fields["printed"])[:MAX_TEXT])
    except (messages.InvalidMessage, KeyError, TypeError, AttributeError):
        return TaskRun(failure={"kind": "no_answer", "text": "what came back is no answer of the ranks"})


def run_plain_case(submission: Submission, settings: GradingSettings, key: str, size: int) -> TaskRun:
    """Run the first case of a task on `size` ranks without judging it. Raises UnreadableNotebook."""
    task, grader = task_of(key), _SubmissionGrader(read_submission(submission, settings, key=key), settings)
    inputs = inputs_by_rank(task, task.variations.cases(settings.seed)[:1], size, settings.seed)
    try:
        return _SandboxRunner(grader, key)(inputs, settings.seed)
    finally:
        grader.sandbox.end()


# -- state file --------------------------------------------------------------------------------------------------------
STATE_FILE = "state.jsonl"
STATE_VERSION = 4  # the version of the fields in the file; another one is refused


@dataclass(kw_only=True)
class ClassState:
    """The results so far, in memory and in the state file; `open_state` makes one.

    path: of the state file. seed: of the inputs of this class. done: learner to result.
    """

    path: Path
    seed: int
    done: dict[str, GradedSubmission] = field(default_factory=dict)

    def has_graded(self, learner: str, digest: str) -> bool:
        """Whether this file of this learner was graded already; digest is its hash."""
        return learner in self.done and bool(digest) and self.done[learner].digest == digest

    def add(self, result: GradedSubmission) -> None:
        """Add a result, and write it to disk before returning."""
        self.done[result.learner] = result
        _append(self.path, submission_to_json(result))


def open_state(out: Path, seed: int | None) -> ClassState:
    """The state in the folder `out`, or a new one. Raises ValueError if `out` was graded with another seed."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / STATE_FILE
    lines = _read_lines(path)
    if not lines:
        state = ClassState(path=path, seed=secrets.randbelow(1_000_000) if seed is None else seed)
        path.unlink(missing_ok=True)
        _append(path, {"version": STATE_VERSION, "seed": state.seed})
        os.chmod(path, 0o600)  # for the teacher alone, because it holds the seed
        return state
    header = lines[0]
    if header.get("version") != STATE_VERSION or not isinstance(header.get("seed"), int):
        raise ValueError(f"{path} was not written by this grader: choose another --out folder.")
    if seed is not None and seed != header["seed"]:
        raise ValueError(f"{out} was graded with another seed: leave --seed out to go on, or choose another --out.")
    state = ClassState(path=path, seed=header["seed"])
    for line in lines[1:]:
        try:
            result = submission_from_json(line)
        except ValueError:
            continue  # an incomplete line: that submission is graded again
        state.done[result.learner] = result
    return state


def _read_lines(path: Path) -> list[dict]:
    """The objects in the lines of the file, {} for a damaged line; no line if there is no file."""
    texts = path.read_text(encoding="utf-8", errors="replace").split("\n") if path.exists() else []
    found = []
    for text in filter(str.strip, texts):
        line = None
        with suppress(ValueError):
            line = json.loads(text)
        found.append(line if isinstance(line, dict) else {})
    return found


def _append(path: Path, fields: dict) -> None:
    """Append one line, behind a line break if the last line was cut off because the grader was killed."""
    with open(path, "a+b") as file:  # all writes go to the end, wherever it has read
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        is_cut_off = file.read(1) not in (b"", b"\n")
        line = json.dumps(fields, ensure_ascii=False).encode("utf-8", "backslashreplace")
        file.write((b"\n" if is_cut_off else b"") + line + b"\n")
        file.flush()
        os.fsync(file.fileno())


# -- a class -----------------------------------------------------------------------------------------------------------
OnGraded = Callable[[GradedSubmission, int, int], None]  # called with a result, how many are graded, how many there are


def grade_all(
    submissions: Sequence[Submission], settings: GradingSettings, state: ClassState, *, jobs: int, on_graded: OnGraded
) -> list[GradedSubmission]:
    """Grade the submissions that `state` does not have yet, `jobs` at a time.

    Calls on_graded(result, how many are graded, how many there are) after each. KeyboardInterrupt passes through after
    every sandbox has ended; `state` then has what was graded.
    """
    waiting = [one for one in submissions if not state.has_graded(one.learner, digest_of(one))]
    num_graded = len(submissions) - len(waiting)
    with ThreadPoolExecutor(max_workers=jobs, thread_name_prefix="grade") as pool:
        running: set[Future[GradedSubmission]] = set()
        try:
            while waiting or running:
                while waiting and len(running) < jobs:
                    running.add(pool.submit(grade_one, waiting.pop(0), settings))
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    num_graded += 1
                    state.add(future.result())
                    on_graded(future.result(), num_graded, len(submissions))
        except BaseException:
            end_all_sandboxes()  # so that the threads that wait for one come back at once
            raise
    return with_shared_numbers([state.done[one.learner] for one in submissions], settings.lang)


def with_shared_numbers(results: Sequence[GradedSubmission], lang: str) -> list[GradedSubmission]:
    """The results with a flag for each passed answer whose number another learner has as well, with the same jobs."""
    learners = Counter(task.number for one in results for task in one.tasks if task.number is not None)

    def flagged(task: GradedTask) -> GradedTask:
        if learners[task.number] < 2:
            return task
        reason = words_of_flags["shared_number"].format(task.number).in_(lang)
        return replace(task, flags=(*task.flags, Flag(key=task.key, location="", reason=reason, certainty=CERTAIN)))

    return [replace(one, tasks=tuple(map(flagged, one.tasks))) for one in results]


def digest_of(submission: Submission) -> str:
    """The hash of the file; "" for one that cannot be read, which is therefore never taken as graded already."""
    try:
        return hashlib.sha256(read_bytes(submission.path)).hexdigest()
    except UnreadableNotebook:
        return ""
