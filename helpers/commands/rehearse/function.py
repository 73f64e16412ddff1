"""A function of a notebook, rehearsed: the report speaks of its lines, and not of the script that calls it."""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from helpers.commands.rehearse.report import Report
from helpers.commands.rehearse.run import rehearse
from helpers.observe.torchrun import script_of
from helpers.ranks.limits import folder_prefix


def rehearse_function(function: Callable[[torch.device], object], nproc: int = 2) -> Report:
    """Each rank calls the function with its GPU. Its places read "step line 4", after the function's name."""
    num_lines = len(inspect.getsource(function).rstrip().splitlines())
    with tempfile.TemporaryDirectory(prefix=folder_prefix()) as folder:
        path = Path(folder) / function.__name__
        path.write_text(script_of(function), encoding="utf-8")
        report = rehearse(path, nproc)
    findings = []
    for one in report.findings:
        chain = tuple(frame for frame in one.chain if Path(frame[0]).name != path.name or frame[1] <= num_lines)
        findings.append(replace(one, chain=chain))
    return replace(report, findings=tuple(findings))
