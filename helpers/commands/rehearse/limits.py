"""Decides whether a rank's failure is the script's mistake, or a limit of the rehearsal that no GPU would have.

It goes by the place at which the error was raised. What C++ has not implemented for a device made in Python, what torch
asserts about itself, and what ends a process below torch are limits. An error that this course's own code raises by
accident is its own fault. Everything else is the script's.
"""

from __future__ import annotations

import linecache
import re
import signal

from helpers.ranks.board.errors import Failure
from helpers.ranks.board.sites import is_engine, is_package

# Parts of messages with which torch refuses a device made in Python before any of the device's own code runs.
_REFUSED = (
    "incompatible tensor type", "PrivateUse1", "not linked with support for cuda", "NestedTensorImpl",
    "data is not allocated yet", "Torch not compiled with CUDA", "without ATen_cuda", "_C' has no attribute '_cuda",
    "'card'", "INTERNAL ASSERT", "does not have a sharding strategy",
    "no rule registered for HOP",
)  # fmt: skip
_NO_CPU_KERNEL = re.compile(r"not implemented for '(Half|BFloat16|Float8\w*)'")  # CUDA has these, the CPU has not
# A practice card raises none of these on purpose, and a TypeError about an argument only by a wrong call.
_ACCIDENTS = ("AttributeError", "NameError", "KeyError", "ImportError", "UnboundLocalError", "JSONDecodeError")
_CRASHES = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)


def is_no_mistake(failure: Failure) -> bool:
    """Whether a failure comes from the rehearsal or this machine, so that it would not occur on GPUs."""
    known = failure.type_name in ("KeyboardInterrupt", "ModuleNotFoundError", "NotRehearsed")
    return known or is_sparse(failure) or is_own_fault(failure) or is_limit(failure)


def is_sparse(failure: Failure) -> bool:
    """Whether the script made a sparse tensor, which a practice card does not hold."""
    return failure.type_name == "NotImplementedError" and "practice card holds dense" in failure.message


def is_limit(failure: Failure) -> bool:
    """Whether torch wants something of the card that no device made in Python has."""
    if any(sign in failure.message for sign in _REFUSED) or _NO_CPU_KERNEL.search(failure.message):
        return True
    return failure.type_name == "NotImplementedError" and not _is_raised_in_python(failure)


def _is_raised_in_python(failure: Failure) -> bool:
    """Whether the innermost line of a failure is a `raise`. Otherwise that line called C++, which raised."""
    path, line, _ = failure.frames[-1] if failure.frames else ("", 0, "")
    return linecache.getline(path, line).strip().startswith("raise")


def is_own_fault(failure: Failure) -> bool:
    """Whether the rehearsal's own code has failed, and not the script."""
    if not failure.frames or not is_course_code(failure.frames[-1][0]):
        return False
    return failure.type_name in _ACCIDENTS or failure.type_name == "TypeError" and " argument" in failure.message


def is_course_code(path: str) -> bool:
    """Whether a file is this course's code, which runs below the script, or no file at all, such as "<string>".

    The engine is the part of this course's code that runs ranks; the package is the rest of it.
    """
    return is_engine(path) or is_package(path) or path.startswith("<")


def killed_below(exit_codes: dict[int, int | None]) -> list[int]:
    """The ranks whose processes C++ code ended. exit_codes: rank -> its exit code, minus the number of a signal."""
    return [rank for rank, code in exit_codes.items() if code is not None and -code in _CRASHES]
