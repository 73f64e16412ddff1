"""`python -m helpers doctor`. Each command is imported only when it is asked for."""

from __future__ import annotations

import argparse
import sys


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m helpers", description="Rank by Rank on the command line.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("doctor", help="what this machine gives the course, and advice for each thing that is wrong")
    parser.parse_args(arguments)

    from helpers import doctor

    return doctor.main()


if __name__ == "__main__":
    sys.exit(main())
