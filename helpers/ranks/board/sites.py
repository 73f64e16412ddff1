"""Finds the learner's own line in a stack of frames, and names lines and ranks in sentences. No torch in this file.

Code is divided into four kinds. The "engine" runs ranks and simulates devices. The "package" is the rest of this course
(`helpers/`). A "library" is Python or an installed package. Everything else is the learner's. `words["site.line"]` and
the like are texts in every language of the course, from helpers/learner/words/ranks.yaml.
"""

from __future__ import annotations

import linecache
import os
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from types import FrameType

from helpers.learner.words import Words, book

words = book("ranks")
Frame = tuple[str, int, str]  # file name, line number, function name

ENGINE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # helpers/ranks
PACKAGE = os.path.dirname(ENGINE)
# Simulated GPUs, and the code that lets a script for CUDA run on them. A learner's line calls both as it calls torch.
DEVICES = os.path.join(PACKAGE, "devices")
REDIRECT = os.path.join(PACKAGE, "commands", "rehearse", "redirect")
BROKEN_JOBS = os.path.join(PACKAGE, "commands", "broken_jobs", "scripts")  # scripts that learners run as their own
CELL_PREFIX = "<ranks cell"  # how the file name of a %%ranks cell begins
# The folders of Python's standard library and of installed packages. In a browser the library is an archive.
_LIBRARIES = {sysconfig.get_paths()[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")}
_LIBRARIES = (*_LIBRARIES, os.path.dirname(os.path.abspath(os.__file__)))


def frames_of(frame: FrameType | None) -> list[Frame]:
    """The stack that ends in `frame`, outermost call first."""
    found: list[Frame] = []
    while frame is not None:
        found.append((frame.f_code.co_filename, frame.f_lineno or frame.f_code.co_firstlineno, frame.f_code.co_name))
        frame = frame.f_back
    return found[::-1]


def is_engine(path: str) -> bool:
    """Whether a file belongs to the engine."""
    return path.startswith((ENGINE + os.sep, DEVICES + os.sep, REDIRECT + os.sep))


def is_package(path: str) -> bool:
    """Whether a file belongs to the course package but not to the engine."""
    return path.startswith(PACKAGE + os.sep) and not (is_engine(path) or path.startswith(BROKEN_JOBS + os.sep))


def is_library(path: str) -> bool:
    """Whether a file belongs to Python or to an installed library. A notebook cell's file is named ipykernel_….

    This package may itself be installed among the libraries.
    """
    if path.startswith(PACKAGE + os.sep) or "ipykernel_" in path:
        return False
    return path.startswith((*_LIBRARIES, "<frozen", "<string>")) or "site-packages" in path


def learner_frame(frames: Sequence[Frame]) -> Frame | None:
    """The innermost frame of the learner's own code: neither a library's, nor the course package's."""
    return next((f for f in reversed(frames) if not (is_library(f[0]) or is_engine(f[0]) or is_package(f[0]))), None)


def package_frame(frames: Sequence[Frame]) -> Frame | None:
    """The innermost frame of the course's package that the learner's own line called, such as parallel/zero/stage3.py.

    Without a line of the learner's, the innermost one of all frames.
    """
    learners = learner_frame(frames)
    start = frames.index(learners) + 1 if learners in frames else 0
    return next((f for f in reversed(frames[start:]) if is_package(f[0])), None)


def describe(frame: Frame, current_cell: str | None = None) -> Words:
    """'cell line 3: `dist.all_reduce(x)`', or 'ddp.py line 71' where its code cannot be read.

    current_cell: the file name of the cell that runs; a line of another cell is said to be from an earlier one.
    """
    text = linecache.getline(*frame[:2]).strip()
    place = describe_line(frame, current_cell)
    return words["site.code"].format(place=place, text=text) if text else place


def describe_line(frame: Frame, current_cell: str | None = None) -> Words:
    """'cell line 3', without the code."""
    return words["site.line"].format(name=_name(frame[0], current_cell), line=frame[1])


def _name(path: str, current_cell: str | None) -> Words | str:
    """How a sentence calls a file: "cell", "cell 4" (of the notebook itself), or its name without folders."""
    if path.startswith(CELL_PREFIX):
        return words["site.cell" if current_cell in (None, path) else "site.earlier"]
    if "ipykernel_" in path:
        number = _cell_number(path)
        return words["site.cell"] if number is None else words["site.numbered"].format(number)
    return os.path.basename(path)


def _cell_number(path: str) -> int | None:
    """IPython's execution count of the cell that was compiled under this temporary file name."""
    shell = sys.modules.get("IPython") and sys.modules["IPython"].get_ipython()
    names = getattr(getattr(shell, "compile", None), "_filename_map", {})
    return names.get(path)


def describe_stack(frames: Sequence[Frame], current_cell: str | None = None) -> Words:
    """The learner's line, and before it the package's line when the stack goes through the course's own code."""
    learners, inside = learner_frame(frames), package_frame(frames)
    if learners is None and inside is None:
        return describe(frames[-1]) if frames else words["site.unknown"]
    if inside is None:
        return describe(learners, current_cell)
    if learners is None:
        return describe(inside)
    return words["site.under"].format(inside=describe(inside), own=describe(learners, current_cell))


def rank_names(ranks: Iterable[int]) -> Words:
    """'rank 1', 'ranks 0-3', 'ranks 0, 2'."""
    numbers = sorted(ranks)
    if len(numbers) == 1:
        return words["site.rank"].format(numbers[0])
    if len(numbers) > 2 and numbers == list(range(numbers[0], numbers[-1] + 1)):
        return words["site.range"].format(numbers[0], numbers[-1])
    return words["site.list"].format(numbers)
