"""Lists what a submission may use: modules of the course, Python modules, names; everything else is flagged or hidden.

Nothing here lists what cheats do. allowed.yaml lists what honest answers need (answers that solve a task without going
around the grader), and scan.py flags the rest for a teacher. Of the course's own modules, the lists below name those
that ranks in a sandbox need; strip_answers.py hides the rest. `words` holds the reasons for flags: words[key] is a
sentence in every language, as Words.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Container
from pathlib import Path

import yaml

from helpers.grading.registry import lab_of
from helpers.grading.task import Task
from helpers.learner.words import Words, book

words = book("flags")

# -- the course's own modules ------------------------------------------------------------------------------------------
# A module that none of these lists names is hidden from the sandbox, removed from its memory, and flagged where a
# submission names it. A package that is added to the course later is therefore closed until somebody lists it here.
COURSE = ("helpers", "solutions", "tests", "benchmarks")
# What notebooks import from the grader, `check` above all. In a sandbox functions that do nothing stand for it.
ALLOWED_IN_ANSWERS = (
    "helpers.grading",
    "helpers.grading.check",
    "helpers.grading.progress_view",
    "helpers.grading.rubric",
    "helpers.grading.start_ranks",
)
# If a cell of the lab itself imports one of these names, an answer may use it too, for example to draw a picture.
ALLOWED_WHERE_GIVEN = ("helpers.draw", "helpers.records", "helpers.grading.profiling.clinic.clinic")
# What runs a task on ranks in a sandbox: packages with everything that is below them, then single modules.
PACKAGES_IN_SANDBOX = (
    "helpers.classroom",
    "helpers.devices",
    "helpers.grading.safeguards",
    "helpers.learner.words",
    "helpers.ranks",
)
MODULES_IN_SANDBOX = (
    "helpers",
    "helpers.grading.failures",
    "helpers.grading.observed_function",
    "helpers.grading.plain_data",
    "helpers.grading.registry",
    "helpers.grading.run_on_ranks",
    "helpers.grading.running_case",
    "helpers.grading.task",
    "helpers.grading.tensor_cases",
    "helpers.learner",
    "helpers.learner.progress",
    "helpers.learner.yaml_file",
    "helpers.observe",
    "helpers.observe.comms",
    "helpers.quantities",
    "helpers.quantities.units",
    "helpers.records",
    "helpers.records.checks",
    "helpers.records.comms",
    "helpers.specs",
    "helpers.specs.checks",
    "helpers.specs.hardware",
)

# -- what honest answers use, and what they do not use -----------------------------------------------------------------
# allowed.yaml explains each of its lists. NAME_LISTS: name of a list in it -> the names in that list. Most lists hold
# names that honest answers use. "suspect_modules", "rare", "below_the_wire", "unmetered" and "runs_text" hold names
# that honest answers do not use, so that scan.py flags them.
_lists = yaml.safe_load(Path(__file__).with_name("allowed.yaml").read_text(encoding="utf-8"))
NAME_LISTS = {name: frozenset(texts.split()) for name, texts in _lists.items() if isinstance(texts, str)}
USUAL_NAMES_OF = {module: frozenset(texts.split()) for module, texts in _lists["names_of"].items()}
SUSPECT_MODULES, RARE_NAMES = NAME_LISTS["suspect_modules"], NAME_LISTS["rare"]
USUAL_DUNDERS = frozenset(f"__{name}__" for name in NAME_LISTS["dunders"])
DEFINABLE_DUNDERS = frozenset(f"__{name}__" for name in NAME_LISTS["definable_dunders"])
# Key of the sentence that says why no answer uses it -> dotted names; and attribute -> that key.
NEVER = {reason: tuple(names.split()) for reason, names in _lists["never"].items()}
NEVER_ATTRIBUTES = {name: reason for reason, names in _lists["never_attributes"].items() for name in names.split()}
NOTED_EVENTS = _lists["noted_events"]  # key of the sentence -> audit events that guard.py notes
THREAD_MODULES, USUAL_PACKAGES = tuple(NAME_LISTS["threads"]), tuple(NAME_LISTS["packages"])
SETTABLE_MODULES = ("torch.backends",)  # an answer may set their attributes


def why_forbidden(name: str, lab: str) -> Words | None:
    """A sentence that says why no answer to lab "03" may use the module or object `name`; None if it may."""
    if name in ALLOWED_IN_ANSWERS:
        return None
    # `forbids` are dotted names of what a lab asks the learner to write, such as torch's own DistributedDataParallel.
    forbidden = {"course": COURSE, "torchs_own": lab_of(lab).forbids} | NEVER
    short = name.removeprefix("builtins.")
    return next((words[key].format(short) for key, roots in forbidden.items() if is_within(name, roots)), None)


def why_object_forbidden(value: object, lab: str) -> Words | None:
    """A sentence that says why no answer to lab "03" may use this object of torch, whatever name the answer gives it.

    None if the lab does not forbid it, or if it is not defined in torch.
    """
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    if not isinstance(module, str) or not module.startswith("torch"):
        return None
    for forbidden in lab_of(lab).forbids:
        if value is imported_object(forbidden) or is_within(f"{module}.{name}", (forbidden,)):
            return words["torchs_own"].format(forbidden)
    return None


def is_in_sandbox(module: str) -> bool:
    """Whether ranks in a sandbox need this module of the course, so that it stays visible and in memory."""
    return module in MODULES_IN_SANDBOX or is_package_in_sandbox(module)


def is_package_in_sandbox(package: str) -> bool:
    """Whether ranks in a sandbox may use this package with everything that is below it."""
    return is_within(package, PACKAGES_IN_SANDBOX)


def has_modules_in_sandbox(package: str) -> bool:
    """Whether some module in this package, or the package itself, is allowed in a sandbox."""
    return any(is_within(module, (package,)) for module in (*MODULES_IN_SANDBOX, *PACKAGES_IN_SANDBOX))


def is_usual_module(module: str, given: Container[str]) -> bool:
    """Whether honest answers use this module. given: the names that the lab's own cells import."""
    if is_within(module, THREAD_MODULES):
        return "threading" in given  # a lab that works with threads imports this in its own cells
    is_listed = module in NAME_LISTS["modules"] or module in USUAL_NAMES_OF
    return is_listed or module in given or is_within(module, USUAL_PACKAGES)


def is_metered(task: Task) -> bool:
    """Whether the task counts the bytes that an answer holds, which it does if its module uses MemoryMeter."""
    return hasattr(sys.modules.get(task.run_submission.__module__), "MemoryMeter")


@functools.cache
def imported_object(name: str) -> object | None:
    """The object with this dotted name, if its module is imported already; nothing is imported for it."""
    parts = name.split(".")
    value = sys.modules.get(parts[0])
    for length, part in enumerate(parts[1:], 2):
        if value is None:
            return None
        value = sys.modules.get(".".join(parts[:length])) or namespace_of(value).get(part)
    return value


def namespace_of(value: object) -> dict:
    """The names in a module or class, read from its dictionary: getattr could import a module, or run code."""
    try:
        return vars(value)
    except TypeError:
        return {}


def is_within(name: str, roots: tuple[str, ...]) -> bool:
    """Whether a dotted name is one of `roots` or stands below one of them."""
    return any(name == root or name.startswith(root + ".") for root in roots)
