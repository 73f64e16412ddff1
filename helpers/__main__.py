"""Runs the commands `python -m helpers doctor | train | hang | quiz …`.

Each command is imported only when it is called, so that none waits for the imports of another.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from importlib import import_module
from typing import Any

# Command -> the module whose `main` parses the command's own options and returns the exit code.
COMMANDS = {
    "grade": "helpers.classroom.cli",
    "train": "helpers.commands.train.cli",
    "hang": "helpers.commands.jobs.hang",
    "profile": "helpers.commands.jobs.profile",
    "rehearse": "helpers.commands.rehearse.run",
    "explain": "helpers.commands.traces.cli",
    "plan": "helpers.predict.advice.cli",
    "napkin": "helpers.interview.napkin",
}


def main(arguments: list[str] | None = None) -> int:
    """Runs one command and returns its exit code. arguments: those of the command line by default."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["quiz"]:  # it is given the grader, because it grades answers in code as a lab does
        from helpers.interview import quiz_command

        return quiz_command.main(arguments[1:], check=_grade)
    if arguments and arguments[0] in COMMANDS:
        return import_module(COMMANDS[arguments[0]]).main(arguments[1:])
    # Only `doctor`, which has no options, comes this far; the other names are for `--help` and for error messages.
    parser = argparse.ArgumentParser(prog="python -m helpers", description="Rank by Rank on the command line.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("doctor", help="check what this machine offers the course, with advice for each problem")
    commands.add_parser("train", help="train a small GPT by any plan, on live ranks: --plan dp=2,tp=2,pp=2 --steps 50")
    commands.add_parser("hang", help="any training job: where it hangs, and which rank is the cause: -- train.py")
    commands.add_parser("profile", help="start any training job and record a window of its steps: -- train.py")
    commands.add_parser("rehearse", help="check what a CUDA and NCCL script would do wrong on GPUs: train.py --nproc 4")
    commands.add_parser("explain", help="where a step's time went, and which rank is to blame: trace.json [other.json]")
    commands.add_parser("plan", help="which plan trains a model on a cluster, and why: --model llama3-70b --gpus 32")
    commands.add_parser(
        "quiz", help="interview questions that come back in time; --mock, --drill, --dialogue; --lang zh"
    )
    commands.add_parser("napkin", help="20 formulas and 20 numbers on one page to print; --lang zh -o napkin.html")
    commands.add_parser("grade", help="grade notebooks of a lab, one or a class; --mine shows what you have done")
    parser.parse_args(arguments)

    from helpers.commands import doctor

    return doctor.main()


def _grade(key: str, answer: Any) -> Any:
    """The verdict on an answer to a drill of the quiz, a task with this key that the learner solves in code.

    The grader needs torch, so it is imported only when an answer is handed in.
    """
    from helpers.grading import grade

    return grade(key, answer)


if __name__ == "__main__":
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:  # `| head` has read enough, and Python would complain as it flushes stdout
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 128 + signal.SIGPIPE
    except KeyboardInterrupt:  # a second Ctrl-C while a command still ends after the first
        code = 128 + signal.SIGINT
    if code == 128 + signal.SIGINT and "torch" in sys.modules:
        from helpers.ranks.inplace import leave

        leave(code)  # because the interpreter takes seconds to take torch apart, and the prompt is wanted now
    sys.exit(code)
