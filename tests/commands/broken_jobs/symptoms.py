"""A patient's script on ranks that are there already, with or without a watchdog in it; and whether it is ill.

On live ranks a job costs milliseconds. That it is ill under plain torchrun too, the slow tests show.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable

from helpers.commands.broken_jobs import BrokenJob, edited
from helpers.ranks import RankError, Ranks


class Clock:
    """In place of the module time, where a script sleeps: nothing else takes any, however busy the machine is."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


clock = Clock()


def timeless(script: str) -> str:
    return script.replace("import time\n", "from tests.commands.broken_jobs.symptoms import clock as time\n")


def on_a_rank(script: str, device: str) -> list[str]:
    """What it prints, where the process group stands and shall stay."""
    import faulthandler

    import torch
    import torch.distributed as dist

    kept, out = (dist.init_process_group, dist.destroy_process_group), io.StringIO()
    dist.init_process_group = dist.destroy_process_group = lambda *backend: None
    try:
        with contextlib.redirect_stdout(out), torch.device(device):
            exec(compile(script, "patient.py", "exec"), {"__name__": "__main__"})
    finally:
        faulthandler.cancel_dump_traceback_later()
        dist.init_process_group, dist.destroy_process_group = kept
    return out.getvalue().splitlines()


def run_script(ranks: Ranks, script: str, device: str = "cpu") -> list[str]:
    """The lines of all ranks, one after the other; of one that hangs the error's. What a job makes is on `device`."""
    try:
        return [line for lines in ranks.run(on_a_rank, script, device) for line in lines]
    except RankError as error:
        if error.kind not in ("hang", "mismatch"):
            raise
        return str(error).splitlines()


def watched(one: BrokenJob, script: str, settings: str = "every=5") -> str:
    """The script with a watchdog in its loop, put in as one would in any job: three lines."""
    settings += ', equal=lambda name: name.startswith("norm")' * (one.name == "patient_05")
    first = re.search(r"^    for (step|epoch)\b.*", script, re.MULTILINE)[0]
    indent, *_ = re.findall(r"^( +)optimizer\.step\(\)$", script, re.MULTILINE)
    asked = 'print(f"rank {rank}: finds", *watchdog.findings, flush=True)'
    step = f"{indent}optimizer.step()"
    return edited(
        script,
        [
            ("import torch\n", "import torch\n\nfrom helpers.observe.watchdog import Watchdog\n"),
            (first, f"    watchdog = Watchdog(model, optimizer, {settings})\n{first}"),
            (step, f"{indent}if watchdog.step(loss):\n{indent}    {asked}\n{step}"),
        ],
    )


def found(said: list[str]) -> set[str]:
    """The kinds that the watchdogs of all ranks name."""
    return {kind for line in said if ": finds" in line for kind in line.partition(": finds")[2].split()}


def numbers(said: list[str], pattern: str, rank: int = 0) -> list[str]:
    """What stands behind a word in the lines of a rank."""
    return [one[1] for line in said if (one := re.search(rf"rank {rank}: .*{pattern} (\[.*\]|[\d.]+)", line))]


# Of each patient: is this what an ill one says? alone: what the cured script says on one rank.
HAS_SYMPTOM: dict[str, Callable[[list[str], list[str]], bool]] = {
    "patient_01": lambda said, alone: numbers(said, "loss") != numbers(alone, "loss"),
    "patient_02": lambda said, alone: {"9", "19", "29"} <= set(re.findall(r"\d+", numbers(said, "s:", 2)[0])),
    "patient_03": lambda said, alone: not numbers(said, "epoch 1 step"),
    "patient_04": lambda said, alone: all(int(one) > 60 for line in said for one in re.findall(r"(\d+) MB", line)),
    "patient_05": lambda said, alone: numbers(said, "norm") != numbers(said, "norm", 1),
    "patient_06": lambda said, alone: float(numbers(said, "loss")[-1]) > float(numbers(said, "loss")[0]),
    "patient_07": lambda said, alone: len(set(numbers(said, "step"))) == 1,
    "patient_08": lambda said, alone: len(set(numbers(said, "loss"))) == 1,
    "patient_09": lambda said, alone: numbers(said, "off") == numbers(said, "off", 1) == numbers(said, "off", 2),
    "patient_10": lambda said, alone: not numbers(said, "step 7 loss", 1),
    "patient_11": lambda said, alone: not numbers(said, "step 3 loss", 2),
    "patient_12": lambda said, alone: set(numbers(said, "messages")) == {"4"},
}
