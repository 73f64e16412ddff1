"""Rehearse for the GPUs: an unmodified script for CUDA and NCCL, on practice cards on this machine.

python -m helpers rehearse train.py --nproc 4 --memory 80GB -- --epochs 1
rehearse("train.py", nproc=4, memory="80 GB")        a Report, in a notebook or a script

run         the rehearsal: what is asked, the ranks, the report      crew      the ranks: started, watched, ended
inside      on a rank: the script as `__main__`                      notes     what a rank notes for the report
redirect    what says "cuda" gets the card                           findings  failures, verdicts and notes in words
report      Finding and Report                                       cli       the command
function    a function of a notebook, called with its GPU
"""

from __future__ import annotations

from helpers.commands.rehearse.report import Finding, RehearsalReport
from helpers.commands.rehearse.run import rehearse, rehearse_function

__all__ = ["Finding", "RehearsalReport", "rehearse", "rehearse_function"]
