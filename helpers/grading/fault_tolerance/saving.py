"""Judges 12.save and 12.interval: how to write a checkpoint that survives any crash, and how often to write one.

12.save runs the learner's function on a simulated disk, which notes after every operation what a kill of the process
and what a power cut would leave of the checkpoint. 12.interval compares numbers of steps with Young's formula.

How to read it. `make_…` draws the cases of a task with `rng`, of which `rng.integer(3, 5)` is 3, 4 or 5. For 12.save,
`run_save` calls the learner's function, `submitted`, and `judge_save` yields one Judgement per comparison. For
12.interval a case is the list of arguments of one call; `question_task` builds the Task, which calls the learner's
function with each case and compares the answers with those of the right function. `Words` and `words[…]` are texts in
English and Chinese.

A mistake is a wrong solution that learners often write, and its name, such as "written_in_place", is the key of its
hint in hints.yaml. 12.save names them itself, because learners choose the names of files and the order of operations,
so no edit of the answer leaves on the disk what all who make the mistake leave there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import sqrt
from typing import Any

from helpers.grading.fault_tolerance import LAB
from helpers.grading.kit import answers
from helpers.grading.kit.comparisons import expect
from helpers.grading.task import JudgedWorld, Judgement, NumberGenerator, RankContext, Task
from helpers.learner.words import Words

words = LAB.messages

# -- 12.save: a simulated disk ---------------------------------------------------------------------------------------
MAX_OPERATIONS = 200  # an answer that needs more writes byte by byte, or in an endless loop


@dataclass
class FileContent:
    """The bytes of a file: in the buffer of the process, in the cache of the operating system, and on the disk.

    A killed process loses its buffer. A power cut loses the cache as well.
    """

    buffered: bytes = b""
    cached: bytes = b""
    on_disk: bytes = b""

    def is_safe(self) -> bool:
        """Whether a power cut would leave all that was written."""
        return not self.buffered and self.cached == self.on_disk


class DiskFile:
    """An open file of a Disk, as the learner's function gets it. It closes itself at the end of a `with`."""

    def __init__(self, disk: Disk, name: str, content: FileContent):
        self.disk, self.name, self.content, self.is_closed = disk, name, content, False

    def write(self, data: bytes) -> int:
        """Writes into the buffer of the process, and returns the number of bytes."""
        with self.disk.performing(f"write {len(data)} bytes to {self.name!r}"):  # the text is for a message
            self.content.buffered += bytes(data)
        return len(data)

    def flush(self, operation: str = "flush") -> None:
        """Moves the buffer of the process into the cache of the operating system. operation: its name in a message."""
        with self.disk.performing(f"{operation} {self.name!r}"):
            self.content.cached += self.content.buffered
            self.content.buffered = b""

    def close(self) -> None:
        """Flushes once; a second call does nothing."""
        if not self.is_closed:
            self.is_closed = True
            self.flush("close")

    def __enter__(self) -> DiskFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Disk:
    """A folder on a simulated disk, which notes after every operation what a crash would leave of one file.

    files: names and contents in the beginning. watched: the name of the checkpoint. fails_after: after so many
    operations every later one raises OSError, as on a full disk; None for never.

    A listing says which names there are in the folder and which file is behind each. It is written to the disk by
    fsync_folder. Until then a power cut may leave the listing on the disk or any later one.

    crashes: a dict for each operation. "operation" is its text and "told" whether tell() had been called. "after_kill"
    is what a killed process leaves under the watched name, None if there is no such file. "after_power_cut" is a list
    of all that a power cut may leave there.
    mistake: the hint for the first mistake that was seen, since later ones may only follow from it; "" for none.
    """

    def __init__(self, files: Mapping[str, str], watched: str, fails_after: int | None = None):
        self.files = {name: FileContent(b"", text.encode(), text.encode()) for name, text in files.items()}
        self.possible_listings = [dict(self.files)]  # those that a power cut may leave
        self.watched, self.fails_after = watched, fails_after
        self.num_told, self.mistake, self.num_operations, self.has_failed = 0, "", 0, False
        self.crashes: list[dict[str, Any]] = []

    def open(self, name: str) -> DiskFile:
        """Opens an empty file of this name. A file that had the name is emptied, on the disk as well."""
        with self.performing(f"open {name!r}"):
            self._note_mistake("written_in_place", name == self.watched)
            content = self.files.setdefault(name, FileContent())
            content.buffered = content.cached = content.on_disk = b""
        return DiskFile(self, name, content)

    def fsync(self, file: DiskFile) -> None:
        """Writes what the cache has of this file to the disk."""
        if file.is_closed:
            raise ValueError(f"fsync: the file {file.name!r} is closed; call fsync before that")
        with self.performing(f"fsync {file.name!r}"):
            file.content.on_disk = file.content.cached

    def replace(self, old: str, new: str) -> None:
        """Renames `old` to `new` in one step; a file that was called `new` is gone."""
        with self.performing(f"replace {new!r} by {old!r}", needs=old):
            self._note_mistake("old_removed_first", old == self.watched)
            self._note_mistake("renamed_too_early", new == self.watched and not self.files[old].is_safe())
            self.files[new] = self.files.pop(old)

    def remove(self, name: str) -> None:
        """Removes this file."""
        with self.performing(f"remove {name!r}", needs=name):
            self._note_mistake("old_removed_first", name == self.watched)
            del self.files[name]

    def fsync_folder(self) -> None:
        """Writes the names of the files to the disk."""
        with self.performing("fsync_folder"):
            self.possible_listings = []  # `performing` adds the present one

    def tell(self) -> None:
        """Tells the other ranks that the new checkpoint is there."""
        content = self.files.get(self.watched)
        is_listed = all(listing.get(self.watched) is content for listing in self.possible_listings)
        is_safe = content is not None and content.is_safe()
        self._note_mistake("told_after_error", self.has_failed)
        self._note_mistake("name_not_synced", is_safe and not is_listed)
        self._note_mistake("told_too_early", not is_safe)
        self.num_told += 1
        with self.performing("tell()", can_fail=False):
            pass

    @contextlib.contextmanager
    def performing(self, operation: str, *, can_fail: bool = True, needs: str = "") -> Iterator[None]:
        """Performs the operation in the `with` block, and notes what a crash after it would leave.

        needs: a file that must be there. Raises OSError without performing it if the disk is full or the file missing.
        """
        self.num_operations += 1
        if self.num_operations > MAX_OPERATIONS:
            raise RuntimeError(f"save needs more than {MAX_OPERATIONS} operations on the disk")
        if can_fail and self.fails_after is not None and self.num_operations > self.fails_after:
            self.has_failed = True
            raise OSError(28, "No space left on device")  # 28 is ENOSPC on Linux
        if needs and needs not in self.files:
            raise FileNotFoundError(f"{operation}: there is no file {needs!r}")
        yield
        self.possible_listings.append(dict(self.files))
        contents = [listing.get(self.watched) for listing in self.possible_listings]
        crash = {"operation": operation, "told": self.num_told > 0}
        # A content is None where the listing has no such file. dict.fromkeys leaves out outcomes that appear twice.
        crash["after_kill"] = contents[-1] and contents[-1].cached.decode()
        crash["after_power_cut"] = list(dict.fromkeys(one and one.on_disk.decode() for one in contents))
        self.crashes.append(crash)

    def _note_mistake(self, hint: str, is_made: bool) -> None:
        """Notes the key of a hint if this mistake is made and no other was made before."""
        if is_made and not self.mistake:
            self.mistake = hint


# -- 12.save: the task -----------------------------------------------------------------------------------------------
SaveCase = Mapping[str, Any]  # "files" in the beginning, "name" of the checkpoint, its new "data"
ON_GOOD_DISK = Words.of("")  # what a message says about a disk that is not full: nothing


def make_save(rng: NumberGenerator, world_size: int) -> list[dict[str, Any]]:
    """An old checkpoint that is as long as the new one, longer, shorter, missing, and much longer.

    In the third case there are also partial files of a writer that was killed before.
    """
    cases = []
    lengths = ((12, 12), (30, 12), (5, 20), (0, 12), (12, 1))  # bytes of the old checkpoint and of the new one
    for number, (old, new) in enumerate(lengths):
        name = rng.one_of("latest.pt", "model.ckpt", "step_40")
        files = {"other.pt": draw_letters(rng, 6)} | ({name: draw_letters(rng, old)} if old else {})
        if number == 2:
            files |= {f"{name}{end}": draw_letters(rng, 3) for end in (".tmp", ".part")}
        cases.append({"files": files, "name": name, "data": draw_letters(rng, new)})
    return [{"cases": cases}]


def draw_letters(rng: NumberGenerator, count: int) -> str:
    """The content of a file: so many random letters."""
    return "".join(chr(ord("a") + rng.integer(0, 25)) for _ in range(count))


def run_save(submitted: Callable, inputs: dict[str, Any], context: RankContext) -> list[list[dict[str, Any]]]:
    """For each case a save on a good disk, and then saves on disks that are full from one of its operations on.

    There are as many of the latter as the first save took operations: one disk fails at the first operation, one at the
    second, and so on.
    """
    outcomes = []
    for case in inputs["cases"]:
        good = save_once(submitted, case, None)  # None: the disk is never full
        outcomes.append([good, *(save_once(submitted, case, after) for after in range(len(good["crashes"])))])
    return outcomes


def save_once(submitted: Callable, case: SaveCase, fails_after: int | None) -> dict[str, Any]:
    """Calls the learner's function once, and returns what the disk has noted and whether a full disk raised.

    "files" has the contents at the end; see Disk for the other keys.
    """
    disk, raised = Disk(case["files"], case["name"], fails_after), False
    try:
        submitted(disk, case["name"], case["data"].encode(), disk.tell)
    except OSError:
        if fails_after is None:
            raise
        raised = True
    files = {name: content.cached.decode() for name, content in disk.files.items()}
    outcome = {"crashes": disk.crashes, "mistake": disk.mistake, "files": files}
    return outcome | {"num_told": disk.num_told, "raised": raised}


def judge_save(world: JudgedWorld) -> Iterator[Judgement]:
    """Judges every crash and the end of a save on a good disk, then every crash on disks that are full."""
    for case, (good, *on_full) in zip(world.inputs[0]["cases"], world.outputs[0], strict=True):
        yield from judge_crashes(case, good)
        yield from judge_end(case, good)
        for operation, outcome in enumerate(on_full, start=1):
            disk = words["on_full_disk"].format(operation)
            yield from judge_crashes(case, outcome, disk)
            message = words["told_and_raised"].format(disk)
            is_consistent = not (outcome["raised"] and outcome["num_told"])
            yield expect(is_consistent, message, mistakes=[outcome["mistake"] or "told_before_the_end"])
            # A full disk must show: by OSError, unless the checkpoint was complete before.
            is_shown = outcome["raised"] or outcome["num_told"] > 0
            yield expect(is_shown, words["no_error"].format(disk), mistakes=["error_swallowed"])


def judge_crashes(case: SaveCase, outcome: Mapping[str, Any], disk: Words = ON_GOOD_DISK) -> Iterator[Judgement]:
    """A crash after any operation leaves the old or the new checkpoint; after tell() it leaves the new one."""
    old, new = case["files"].get(case["name"]), case["data"]
    mistakes = [outcome["mistake"]] if outcome["mistake"] else []
    for number, crash in enumerate(outcome["crashes"], start=1):
        allowed = (new,) if crash["told"] else (new, old)
        expected = words["new_checkpoint" if crash["told"] else "old_or_new_checkpoint"]
        for kind in ("after_kill", "after_power_cut"):
            left = crash[kind] if kind == "after_power_cut" else [crash[kind]]  # what may be left of the checkpoint
            wrong = next((text for text in left if text not in allowed), new)  # `new`, which is right, if none is wrong
            where = {"disk": disk, "crash": words[kind], "number": number, "operation": crash["operation"]}
            what = {"name": case["name"], "content": content_text(wrong), "expected": expected}
            message = words["left_by_crash"].format(**where, **what, loss=words[f"lost_{kind}"])
            yield expect(wrong in allowed, message, mistakes=mistakes or ["told_too_early"] * (wrong == old))


def content_text(left: str | None) -> Words:
    """How a message describes what is left of the file. None: no file."""
    if left is None:
        return words["is_missing"]
    return words["has_bytes"].format(len(left), left) if left else words["is_empty"]


def judge_end(case: SaveCase, outcome: Mapping[str, Any]) -> Iterator[Judgement]:
    """At the end the new checkpoint is there, the others were told, and nothing else has changed."""
    got, old = (files.get(case["name"]) for files in (outcome["files"], case["files"]))
    mistakes = [outcome["mistake"]] if outcome["mistake"] else []
    message = words["bytes_left"].format(case["name"], content_text(got), case["data"])
    yield expect(got == case["data"], message, mistakes=mistakes or ["bytes_missing"] * (got not in (None, old)))
    message = words["num_told"].format(outcome["num_told"])
    yield expect(outcome["num_told"] == 1, message, mistakes=["told_twice" if outcome["num_told"] else "never_told"])
    new_files = sorted(set(outcome["files"]) - set(case["files"]) - {case["name"]})
    yield expect(not new_files, words["files_left"].format(new_files, case["name"]), mistakes=["file_left"])
    is_intact = outcome["files"].get("other.pt") == case["files"]["other.pt"]
    yield expect(is_intact, words["other_checkpoint_changed"], mistakes=["other_file_touched"])


SAVE = Task(
    key="12.save",
    signature="save(disk, name, data, tell)",
    make_inputs=make_save,
    run_submission=run_save,
    judge=judge_save,
    recognise_failure=lambda failure: ["no_such_file"] if "there is no file" in failure.text else [],
    runs_on="process",
    needs_torch=False,
)

# -- 12.interval -----------------------------------------------------------------------------------------------------
MARGIN = 0.1  # of a step, around .5: no case is so near to where rounding to whole steps would be in doubt


def make_interval(rng: NumberGenerator, world_size: int) -> list[dict[str, Any]]:
    """Young's own example, a large job, one that saves after each step, one that saves seldom, short steps; then more.

    A case is: nodes, and in seconds a node's mean time between failures, a save, a repair, and a step. The large job
    has 0.0065 failures per node and day. A drawn job is left out if its steps between saves are too near to .5.
    """
    jobs = [[1, 6000, 10, 600, 15], [2048, 13_292_308, 60, 300, 4], [4, 2000, 1, 100, 300], [100, 1e6, 20, 4000, 2]]
    jobs.append([4, 600, 1, 57, 0.5])  # 20.35 s, which are 41 steps, but 40 if the seconds are rounded first
    while len(jobs) < 10:
        nodes = rng.integer(2, 3000)
        seconds = nodes * 500 * rng.integer(4, 60), 5 * rng.integer(1, 30), 60 * rng.integer(10, 60)
        job = [nodes, *seconds, 0.5 * rng.integer(2, 60)]
        if abs(youngs_steps(*job) % 1 - 0.5) > MARGIN:
            jobs.append(job)
    return [{"cases": jobs}]


def youngs_steps(nodes: int, node_mtbf: float, save: float, repair: float, step: float) -> float:
    """Young 1974: save every sqrt(2 * save * time between failures) seconds, here in steps and not rounded.

    The time from one failure of the job to the next includes the repair.
    """
    return sqrt(2 * save * (node_mtbf / nodes + repair)) / step


def best_interval(*job: float) -> int:
    """The right number of steps between saves: the nearest whole one, at least 1. job: as in `youngs_steps`."""
    return max(1, round(youngs_steps(*job)))


def interval_rule(job: list[float], _: Any) -> Words:
    """The seconds from failure to failure, and the best interval before it is rounded."""
    nodes, node_mtbf, save, repair, step = job
    steps, running = youngs_steps(*job), node_mtbf / nodes
    values = {"running": running, "repair": repair, "both": running + repair, "save": save, "step": step}
    shown = {name: f"{value:.6g}" for name, value in (values | {"seconds": steps * step, "steps": steps}).items()}
    return words["interval_rule"].format(**shown)


INTERVAL = answers.question_task(
    "12.interval",
    "best_interval(nodes, node_mtbf, save, repair, step)",
    words["num_steps"],
    best_interval,
    make_inputs=make_interval,
    rules=[interval_rule],
    needs_torch=False,
)
