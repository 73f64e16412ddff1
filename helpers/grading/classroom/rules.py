"""What no submission may take from elsewhere. What it must not take from torch, the LAB of its lab says."""

from __future__ import annotations

from helpers.grading.registry import lab_of

COURSE = ("helpers.parallel", "helpers.collectives", "helpers.grading", "solutions", "tests")
COURSE += ("helpers.schedules", "helpers.predict.time.pipeline", "helpers.measure.emulate_pipeline")
ALLOWED = ("helpers.grading.check",)
NETWORK = ("socket", "urllib", "http", "requests", "httpx", "ftplib", "smtplib", "aiohttp")
PROCESSES = ("subprocess", "multiprocessing", "pty", "torch.multiprocessing")
PROCESSES += ("concurrent.futures.ProcessPoolExecutor", "concurrent.futures.process")  # its threads are right in lab 02
INNARDS = ("ctypes", "gc", "_ctypes")


def forbidden(name: str, lab: str) -> str | None:
    """Why lab "03" does not want the module or object `name`, as the end of a sentence; None where it does not mind."""
    if name in ALLOWED or name == "helpers.grading":
        return None
    if within(name, COURSE):
        return f"uses {name}, which holds what the lab leaves to the learner"
    if within(name, lab_of(lab).forbids):
        return f"uses torch's own {name}, which the lab leaves to the learner"
    if within(name, NETWORK):
        return f"uses the network ({name})"
    if within(name, PROCESSES):
        return f"starts processes of its own ({name})"
    if within(name, INNARDS):
        return f"looks into Python's memory ({name})"
    return None


def within(name: str, roots: tuple[str, ...]) -> bool:
    return any(name == root or name.startswith(root + ".") for root in roots)
