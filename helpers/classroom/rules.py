"""What honest answers use, and what no submission may take from elsewhere. The second a LAB adds to (`forbids`).

The first (needed.yaml) lists what is needed, not what cheats use: what is not on it is flagged, and a teacher reads it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Container
from pathlib import Path

import yaml

from helpers.grading.registry import lab_of
from helpers.learner.words import Words, book

SAYS = book("flags")

# -- what of the course there is for a submission ----------------------------------------------------------------------
# These are lists of what is allowed. A module that is on none of them is hidden from the sandbox, taken out of its
# memory, and flagged where a submission names it, so a package that is added to the course later starts out closed.
COURSE = ("helpers", "solutions", "tests", "benchmarks")
ALLOWED_IN_ANSWERS = (
    "helpers.grading",
    "helpers.grading.check",
    "helpers.grading.progress_view",
    "helpers.grading.rubric",
)
# Where the lab's own cell imports one of these names, an answer may draw a picture with it.
ALLOWED_WHERE_GIVEN = ("helpers.draw", "helpers.records", "helpers.grading.profiling.clinic.clinic")
# What runs a task on ranks in the sandbox: packages with all that is below them, and single modules.
PACKAGES_IN_SANDBOX = (
    "helpers.classroom",
    "helpers.devices",
    "helpers.grading.walls",
    "helpers.learner.words",
    "helpers.ranks",
)
MODULES_IN_SANDBOX = (
    "helpers",
    "helpers.grading.acting",
    "helpers.grading.drawing",
    "helpers.grading.hidden",
    "helpers.grading.observing",
    "helpers.grading.registry",
    "helpers.grading.task",
    "helpers.learner",
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
NETWORK = ("socket", "_socket", "urllib", "http", "requests", "httpx", "ftplib", "smtplib", "aiohttp", "ssl")
PROCESSES = ("subprocess", "multiprocessing", "pty", "torch.multiprocessing", "_posixsubprocess")
PROCESSES += ("concurrent.futures.ProcessPoolExecutor", "concurrent.futures.process")  # its threads are right in lab 02
MEMORY = ("ctypes", "_ctypes", "mmap")

# -- what answers need -----------------------------------------------------------------------------------------------
_needed = yaml.safe_load(Path(__file__).with_name("needed.yaml").read_text(encoding="utf-8"))
NEEDED = {name: frozenset(texts.split()) for name, texts in _needed.items() if isinstance(texts, str)}
ONLY = {module: frozenset(texts.split()) for module, texts in _needed["only"].items()}
HOT, FRAMES, RARE = NEEDED["hot"], NEEDED["frames"], NEEDED["rare"]
DUNDERS, DEFINED = (frozenset(f"__{name}__" for name in NEEDED[kind]) for kind in ("dunder", "defined"))
CALLS = {words: frozenset(names.split()) for words, names in _needed["calls"].items()}
THREADS, PACKAGES = tuple(NEEDED["threads"]), tuple(NEEDED["packages"])
SETTINGS = ("torch.backends",)  # whose attributes anybody may set


def forbidden(name: str, lab: str) -> Words | None:
    """Why lab "03" does not want the module or object `name`, as a sentence; None where it does not mind."""
    if name in ALLOWED_IN_ANSWERS:
        return None
    for roots, words in (
        (COURSE, "course"),
        (lab_of(lab).forbids, "torchs_own"),
        (NETWORK, "network"),
        (PROCESSES, "starts"),
        (MEMORY, "memory"),
    ):
        if within(name, roots):
            return SAYS[words].format(name)
    return None


def forbidden_object(value: object, lab: str) -> Words | None:
    """The same for an object of torch's, by whatever name somebody has it."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    if not isinstance(module, str) or not module.startswith("torch"):
        return None
    for one in lab_of(lab).forbids:
        if value is named(one) or within(f"{module}.{name}", (one,)):
            return SAYS["torchs_own"].format(one)
    return None


def is_in_sandbox(module: str) -> bool:
    """Whether ranks in a sandbox need this module of the course: its file stays visible and its memory untouched."""
    return module in MODULES_IN_SANDBOX or within(module, PACKAGES_IN_SANDBOX)


def is_needed(module: str, given: Container[str]) -> bool:
    """Whether answers have a use for the module. given: what the lab's own first cell imports."""
    if within(module, THREADS):
        return "threading" in given
    root = module.partition(".")[0]
    is_of_python = root in ONLY or (root != "torch" and root in NEEDED["modules"])
    return is_of_python or module in NEEDED["modules"] or module in given or within(module, PACKAGES)


@functools.cache
def named(name: str) -> object | None:
    """The object of this name, among modules that are imported already."""
    parts = name.split(".")
    value = sys.modules.get(parts[0])
    for number, part in enumerate(parts[1:], 2):
        if value is None:
            return None
        value = sys.modules.get(".".join(parts[:number])) or vars_of(value).get(part)
    return value


def vars_of(value: object) -> dict:
    """Names of a module or class, as they are: asking for one could import a module, or run something."""
    try:
        return vars(value)
    except TypeError:
        return {}


def within(name: str, roots: tuple[str, ...]) -> bool:
    return any(name == root or name.startswith(root + ".") for root in roots)
