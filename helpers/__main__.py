"""`python -m helpers doctor | grade`. Each command is imported only when it is asked for."""

from __future__ import annotations

import argparse
import sys


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["grade"]:  # it has options of its own
        from helpers.grading.classroom import cli

        return cli.main(arguments[1:])
    parser = argparse.ArgumentParser(prog="python -m helpers", description="Rank by Rank on the command line.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("doctor", help="what this machine gives the course, and advice for each thing that is wrong")
    commands.add_parser("grade", help="grade notebooks of a lab, one or a class; --mine shows what you have done")
    parser.parse_args(arguments)

    from helpers import doctor

    return doctor.main()


if __name__ == "__main__":
    sys.exit(main())
