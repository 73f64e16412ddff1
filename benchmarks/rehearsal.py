"""What a rehearsal finds in scripts that somebody wrote who had not seen it: `python -m benchmarks.rehearsal`.

benchmarks/rehearsal/SET/answers.yaml says of each script what is wrong, at which line. Goals: 85 % of the mistakes
found, 90 % of these with the right line, no false alarm. `--only first/m16,first/c` runs a part and writes nothing.

found  a finding that is a mistake points first at the answer's line or at one that the
       answer accepts; or its kind is the verdict (hangs, race …; "error" alone is not enough).
line   the line of such a finding is one of the answer's.   kind   its kind is the answer's verdict.
other  findings beside it.                                  alarm  on a clean script, any mistake or warning.
Where the answer's verdict is "warning", which is a wrong value without an error, warnings count as mistakes do.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import yaml

from benchmarks.paired import write_table
from helpers.commands.rehearse import Finding, RehearsalReport, rehearse

FOLDER = Path(__file__).with_suffix("")


def answers(only: list[str]) -> list[tuple[str, dict[str, Any]]]:
    """("first/m01", its answer) of every set."""
    found = []
    for path in sorted(FOLDER.glob("*/answers.yaml")):
        for answer in yaml.safe_load(path.read_text(encoding="utf-8")):
            name = f"{path.parent.name}/{answer['file']}"
            if not only or any(name.startswith(one) for one in only):
                found.append((name, answer))
    return found


def judged(answer: dict[str, Any], report: RehearsalReport) -> dict[str, bool]:
    """Of one script, by the rule above."""
    silent = answer["verdict"] == "warning"  # what raises no error is told as a warning
    mistakes = [one for one in report.findings if one.is_mistake or silent]
    if answer["verdict"] == "clean":
        clean = report.ok and report.ended == "ended" and not any(one.kind == "warning" for one in report.findings)
        return {"found": clean, "line": clean, "kind": clean, "other": not clean}
    lines = {answer["line"], *answer.get("also_accept", ())}
    kinds = {answer["verdict"], *answer.get("verdict_also", ())}
    at_line = [one for one in mistakes if _line(one, answer) in lines]
    by_kind = [one for one in mistakes if one.kind in kinds - {"error"}]
    counts = at_line or by_kind
    return {
        "found": bool(counts),
        "line": bool(at_line),
        "kind": any(one.kind.replace("unnoticed", "error") in kinds for one in counts),
        "other": len(mistakes) > len(counts),
    }


def _line(finding: Finding, answer: dict[str, Any]) -> int | None:
    return next((line for path, line, _ in finding.sites[:1] if Path(path).name == answer["file"]), None)


def told(report: RehearsalReport) -> str:
    """What it said, shortly."""
    lines = [f"{one.kind} at {one.sites[0][1] if one.sites else '?'}" for one in report.findings]
    return "; ".join(lines) or ("clean" if report.ok else str(report.problem).splitlines()[0][:60])


def main() -> None:
    made = argparse.ArgumentParser()
    made.add_argument("--only", default="", help="such as first/m16,first/c")
    only = [one for one in made.parse_args().only.split(",") if one]
    rows, sums = [], {}
    for name, answer in answers(only):
        given = {"nproc": answer["nproc"], "nnodes": answer.get("nnodes", 1), "memory": answer.get("memory", "80 GB")}
        report = rehearse(FOLDER / name, limit=60, **given)
        judgement = judged(answer, report)
        shown = {key: "yes" if value else "no" for key, value in judgement.items()}
        rows.append({"script": name, "answer": f"{answer['verdict']} {answer.get('line', '')}".strip(), **shown,
                     "told": told(report), "seconds": f"{report.seconds:.1f}"})  # fmt: skip
        print(*rows[-1].values(), sep=" | ", flush=True)
        kind = sums.setdefault(f"{name.partition('/')[0]}: {answer['kind']}", [])
        kind.append(judgement)
    print(*summary(sums), sep="\n")
    if not only:
        write_table("rehearsal", rows, "python -m benchmarks.rehearsal")


def summary(sums: dict[str, list[dict[str, bool]]]) -> list[str]:
    lines = []
    for name, ones in sums.items():
        counted = ", ".join(f"{key} {sum(one[key] for one in ones)}" for key in ("found", "line", "kind", "other"))
        lines.append(f"{name}: {len(ones)} scripts, {counted}")
    mistakes = [one for name, ones in sums.items() if not name.endswith("clean") for one in ones]
    if mistakes:
        found = [one for one in mistakes if one["found"]]
        right = sum(one["line"] for one in found)
        lines.append(f"mistakes found: {len(found)} of {len(mistakes)}; with the right line: {right} of {len(found)}")
    return lines


if __name__ == "__main__":
    main()
