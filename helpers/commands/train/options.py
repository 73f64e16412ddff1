"""The command line of `python -m helpers train`. What is not given is that of the resumed run, or the default."""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from helpers.specs import Plan

AXES = ("dp", "pp", "tp", "cp")
SIZES = {"tiny": "28,672 parameters", "small": "0.8 million", "10m": "10.7 million"}
DTYPES = ("fp32", "bf16", "fp16")
OF_THE_PLAN = ("plan", "zero", "schedule", "chunks", "microbatches", "sequence_parallel", "recompute")
DEFAULTS = {
    "plan": None, "zero": 0, "schedule": "one_f_one_b", "chunks": None, "microbatches": None,
    "sequence_parallel": False, "recompute": "none", "size": "small", "dtype": "fp32", "batch": 16, "seed": 0,
    "dropout": 0.0,
    "lr": 5e-4,  # at 1e-3 the loss jumps up in step 5, since there is no warm-up
    "steps": 50, "save_every": 100,
}  # fmt: skip
# Of one attempt alone, never a resumed run's. grace: torchrun kills its ranks 30 s after it was told to end.
OF_THE_ATTEMPT = {"save": None, "resume": None, "go_on": False, "chaos": 0.0, "grace": 25.0}
RUNS = "runs"
A_RUN = "a run, such as runs/1123-0512, or one of its steps"
SAID = "train.json"  # beside the checkpoints of a run: what it was told


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a run is told. said: all of it, for SAID. folder: where it saves; under torchrun rank 0's counts.

    resume: the checkpoint to go on from. new_lr: a learning rate that replaces the checkpoint's. go_on: a run that is
    done already is no mistake. chaos: the probability with which a step or its save kills a rank. grace: see Stop.
    """

    plan: Plan
    size: str
    dtype: str
    batch: int
    seed: int
    dropout: float
    lr: float
    steps: int
    save_every: int
    said: dict[str, Any]
    folder: Path
    resume: Path | None
    new_lr: float | None
    go_on: bool
    chaos: float
    grace: float


class Parser(argparse.ArgumentParser):
    """One sentence for a wrong option, as for everything else that is wrong, and not the usage of all of them."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message.removeprefix('argument ')}; --help shows all options")


def parser() -> argparse.ArgumentParser:
    made = Parser(
        prog="python -m helpers train",
        description="Train a small GPT by any plan, on processes of this machine or on torchrun's ranks. Ctrl-C saves.",
        argument_default=argparse.SUPPRESS,
    )
    known, add = Plan.KNOWN, made.add_argument
    add("--plan", metavar="dp=2,tp=2,pp=2", help="ranks on each axis; their product is the number of ranks")
    add("--zero", type=int, choices=known["zero"], help="ZeRO stage over dp (default: 0)")
    add("--schedule", choices=known["schedule"], help="of a pipeline (default: one_f_one_b)")
    add("--chunks", type=int, help="stages on each rank, for the schedule interleaved (default then: 2)")
    add("--microbatches", type=int, help="per step and copy (default: pp)")
    add("--sequence-parallel", action=argparse.BooleanOptionalAction, help="cut tokens between the matrices over tp")
    add("--recompute", choices=known["recompute"], help="activations again in backward (default: none)")
    add("--size", choices=SIZES, help="of the GPT: " + ", ".join(f"{k} {v}" for k, v in SIZES.items()))
    add("--dtype", choices=DTYPES, help="of autocast (default: fp32, which is none)")
    add("--batch", type=int, help="sequences in a step, over all ranks (default: 16)")
    add("--seed", type=int, help="of weights and data (default: 0)")
    add("--dropout", type=float, help="share of activations that is dropped; a resumed run drops others (default: 0)")
    add("--lr", type=float, help="learning rate of AdamW (default: 0.0005)")
    add("--steps", type=int, help="the step at which to end, counted from the first run (default: 50)")
    add("--save", type=Path, metavar="FOLDER", help="for checkpoints and pictures (default: a new one in runs/)")
    add("--save-every", type=int, metavar="STEPS", help="besides the end and Ctrl-C (default: 100)")
    add("--resume", type=Path, metavar="FOLDER", help="a run, or one of its checkpoints; another --plan is welcome")
    add(
        "--go-on",
        action="store_true",
        help="from the newest checkpoint in --save, if there is one: for a line that is started again",
    )
    add(
        "--chaos",
        type=float,
        metavar="0.02",
        help="kill a rank in a step with this probability, by --seed, and account for it",
    )
    add("--grace", type=float, metavar="SECONDS", help="from SIGTERM to the end, for a step and a save (default: 25)")
    return made


def settings(arguments: Sequence[str]) -> Settings:
    """Raises ValueError, as a sentence, for what cannot be read or does not go together; SystemExit(0) for --help."""
    given = vars(parser().parse_args(arguments))
    here = {name: given.pop(name, usual) for name, usual in OF_THE_ATTEMPT.items()}
    _check_attempt(here)
    folder, resume = here["save"], here["resume"] and checkpoint_in(here["resume"])
    if here["go_on"]:
        resume = newest_in(folder)
    before = told(resume.parent) if resume else {}
    if "plan" in given or here["go_on"]:  # another plan has options of its own; a line that goes on says all of its own
        before = {name: value for name, value in before.items() if name not in OF_THE_PLAN}
    said = DEFAULTS | before | given
    if here["chaos"] and "save_every" not in given:
        said["save_every"] = best_interval(here["chaos"])
    _check_numbers(said)
    said["plan"] = said["plan"] or f"dp={os.environ.get('WORLD_SIZE', 2)}"
    folder = folder or (resume.parent if resume else Path(RUNS) / time.strftime("%m%d-%H%M%S"))
    of_the_run = {name: value for name, value in said.items() if name not in OF_THE_PLAN}
    where = {"folder": folder, "resume": resume, "new_lr": given.get("lr")}
    of_the_attempt = {name: here[name] for name in ("go_on", "chaos", "grace")}
    return Settings(plan=plan_of(said), said=said, **of_the_run, **where, **of_the_attempt)


def _check_numbers(said: dict[str, Any]) -> None:
    for name in ("steps", "batch", "save_every"):
        if said[name] < 1:
            raise ValueError(f"--{name.replace('_', '-')} {said[name]}: expected 1 or more")
    if not 0 <= said["dropout"] < 1:
        raise ValueError(f"--dropout {said['dropout']}: expected 0 or more and below 1, such as 0.1")
    if not 0 < said["lr"] < math.inf:
        raise ValueError(f"--lr {said['lr']}: expected a finite number above 0, such as 0.0005")


def _check_attempt(here: dict[str, Any]) -> None:
    if not 0 <= here["chaos"] <= 1:
        raise ValueError(f"--chaos {here['chaos']}: expected a probability per step from 0 to 1, such as 0.02")
    if here["chaos"] and "RANK" in os.environ:
        raise ValueError(
            "--chaos kills ranks that this command has started itself, and keeps the account; torchrun starts all of "
            "them again as new processes, so nobody would be left who could. Leave it out, and kill a rank by hand"
        )
    if not here["grace"] > 0:
        raise ValueError(f"--grace {here['grace']:g}: expected the seconds that are left after SIGTERM, such as 25")
    if here["go_on"] and (here["resume"] or not here["save"]):
        raise ValueError(
            "--go-on looks for the newest checkpoint in the folder of --save: give --save, and no --resume"
        )


def best_interval(rate: float) -> int:
    """Steps between two saves by which least is lost, if a save takes as long as a step: Young's sqrt(2 / rate)."""
    return max(1, round(math.sqrt(2 / rate)))


def plan_of(said: dict[str, Any]) -> Plan:
    """Raises ValueError where the plan does not parse, does not exist, or is not for torchrun's ranks."""
    sizes = axes_of(said["plan"])
    if sizes.get("pp", 1) == 1 and (said["schedule"] == "interleaved" or (said["chunks"] or 1) > 1):
        option = f"--chunks {said['chunks']}" if said["chunks"] else "--schedule interleaved"
        raise ValueError(f"{option} needs pp above 1, as in --plan pp=2")
    chunks = said["chunks"] or (2 if said["schedule"] == "interleaved" else 1)
    plan = Plan(
        **sizes,
        zero=said["zero"],
        schedule=said["schedule"],
        num_chunks=chunks,
        num_microbatches=sizes.get("pp", 1) if said["microbatches"] is None else said["microbatches"],
        sequence_parallel=said["sequence_parallel"],
        recompute=said["recompute"],
    )
    world = int(os.environ.get("WORLD_SIZE", plan.world_size))
    if world != plan.world_size:
        raise ValueError(
            f"--plan {said['plan']} is for {plan.world_size} ranks, but torchrun started {world}: start as many, or "
            "change an axis"
        )
    return plan


def axes_of(text: str) -> dict[str, int]:
    """dp=2,tp=2 as {"dp": 2, "tp": 2}."""
    sizes: dict[str, int] = {}
    for part in text.split(","):
        axis, _, size = (word.strip() for word in part.partition("="))
        if axis not in AXES:
            option = axis.replace("_", "-")
            own = f" --{option} is an option of its own." if axis in DEFAULTS else ""
            raise ValueError(f"--plan {text}: {axis!r} is no axis; there are dp, pp and tp, as in dp=2,tp=2,pp=2.{own}")
        if axis in sizes or not size.isdecimal():
            raise ValueError(f"--plan {text}: give each axis once, with its number of ranks, as in dp=2,tp=2,pp=2")
        sizes[axis] = int(size)
    return sizes


def checkpoint_in(folder: Path) -> Path:
    """The checkpoint that `folder` is, or the newest one of the run that it is."""
    if not folder.is_dir():
        raise ValueError(f"--resume {folder}: there is no such folder; give {A_RUN}")
    if (folder / "manifest.json").is_file():
        return folder
    if there := newest_in(folder):
        return there
    raise ValueError(f"--resume {folder}: it holds no whole checkpoint; give {A_RUN}")


def newest_in(folder: Path) -> Path | None:
    whole = checkpoints_of(folder)
    return whole[max(whole)] if whole else None


def checkpoints_of(folder: Path) -> dict[int, Path]:
    """Step -> whole checkpoint: those with a manifest, which is written last."""
    there = {path.parent.name.removeprefix("step_"): path.parent for path in folder.glob("step_*/manifest.json")}
    return {int(step): path for step, path in there.items() if step.isdecimal()}


def told(folder: Path) -> dict[str, Any]:
    """What the run of this folder was told; nothing where it is not known."""
    try:
        said = json.loads((folder / SAID).read_text(encoding="utf-8"))
        return {name: value for name, value in said.items() if name in DEFAULTS}
    except FileNotFoundError:
        return {}
    except (ValueError, AttributeError) as problem:
        raise ValueError(f"{folder / SAID} cannot be read ({problem}): remove it, and give its options again") from None
