"""Rehearses an unmodified script for CUDA and NCCL on practice cards, and reports what would fail on real GPUs.

A practice card is a simulated GPU in the process of a rank: it computes on the CPU and has a limited memory.

    python -m helpers rehearse train.py --nproc 4 --memory 80GB -- --epochs 1
    rehearse("train.py", nproc=4, memory="80 GB")        a RehearsalReport, in a notebook or a script

run         checks the options, starts the ranks, makes the report; also the command
processes   starts the ranks, watches them, and ends them
on_rank     runs the script on one rank as `__main__`; redirect/ gives it the card wherever it says "cuda"
rank_notes  what a rank writes down for the report
findings    makes findings of the ranks' exceptions, of what NCCL would have done, and of notes
report      Finding (a mistake or a warning) and RehearsalReport

It exists because most mistakes in a script for GPUs show before a GPU is needed. Begin with run.py.
"""

from __future__ import annotations

from helpers.commands.rehearse.report import Finding, RehearsalReport
from helpers.commands.rehearse.run import rehearse

__all__ = ["Finding", "RehearsalReport", "rehearse"]
