"""Reads the command line of `python -m helpers train` into TrainOptions.

An option that is not on the command line keeps the value of the run that is resumed, or else its default. A run is a
folder with checkpoints, one folder per saved step, and a file with the options. A run may have several attempts: it can
be interrupted and resumed, or started again by a cluster. A plan says how the ranks share the work: `Plan(dp=2, tp=2)`
is two replicas of a model that is split over two ranks. This module imports no torch.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from helpers.ranks.processes.spec import launched
from helpers.specs import Plan

AXES = ("dp", "pp", "cp", "ep", "tp")  # names of axes in --plan; ep divides dp * cp and adds no rank
SIZES = {"tiny": "28,672 parameters", "small": "0.8 million", "10m": "10.7 million"}
DTYPES = ("fp32", "bf16", "fp16")
PLAN_OPTIONS = ("plan", "zero", "schedule", "chunks", "microbatches", "sequence_parallel", "recompute", "cp_method")
DEFAULTS = {
    "plan": None, "zero": 0, "schedule": "one_f_one_b", "chunks": None, "microbatches": None,
    "sequence_parallel": False, "recompute": "none", "cp_method": "ring", "size": "small", "dtype": "fp32", "batch": 16,
    "seed": 0, "dropout": 0.0, "experts": 0, "top_k": 2,
    "lr": 5e-4,  # at 1e-3 the loss jumps up in step 5, since there is no warm-up
    "steps": 50, "save_every": 100,
}  # fmt: skip
# Options of one attempt, which are never taken over from the run that is resumed. The default of grace is below the
# 30 s after which torchrun kills its ranks once it has received a signal.
ATTEMPT_DEFAULTS = {"save": None, "resume": None, "go_on": False, "chaos": 0.0, "grace": 25.0}
RUNS = "runs"  # the folder in which a run gets a folder of its own if --save names none
RUN_EXAMPLES = "a run, such as runs/1123-0512, or one of its steps"
OPTIONS_FILE = "train.json"  # lies beside the checkpoints of a run and holds its options


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """The options of one run.

    plan: how the ranks share the work. size: one of SIZES, the model. dtype: one of DTYPES, for autocast.
    experts: of each layer, 0 for plain feed-forwards; top_k: how many of them a token chooses.
    batch: sequences in a step, over all ranks. steps: the step at which the run ends. save_every: steps between saves.
    by_name: the values of all options by their names on the command line, as they are written to OPTIONS_FILE.
    folder: where checkpoints are saved; under torchrun the folder of rank 0 is used.
    resume: the checkpoint to start from, None for a new run.
    new_lr: a learning rate that replaces the one in the checkpoint, None to keep that.
    go_on: with True, a run whose steps are all done is no error.
    chaos: the probability with which a step, or the save after it, kills a rank.
    grace: seconds after SIGTERM in which the present step and a save must be done (StopRequest in signals.py).
    """

    plan: Plan
    size: str
    dtype: str
    batch: int
    seed: int
    dropout: float
    experts: int
    top_k: int
    lr: float
    steps: int
    save_every: int
    by_name: dict[str, Any]
    folder: Path
    resume: Path | None
    new_lr: float | None
    go_on: bool
    chaos: float
    grace: float


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises ValueError with one sentence for a wrong option, and does not print the usage."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message.removeprefix('argument ')}; --help shows all options")


def parser() -> argparse.ArgumentParser:
    """The parser of the command's options. An option that is not given is missing from what it returns."""
    arguments = Parser(
        prog="python -m helpers train",
        description="Train a small GPT by any plan, on processes of this machine or on torchrun's ranks. Ctrl-C saves.",
        argument_default=argparse.SUPPRESS,
    )
    # KNOWN: option of a plan -> its possible values. A "copy" in the help is a replica of the model; there are dp of
    # them. Sequence parallelism splits the tokens over the tp ranks between the matrix products.
    known, add = Plan.KNOWN, arguments.add_argument
    add("--plan", metavar="dp=2,tp=2,pp=2", help="ranks on each axis (dp, pp, cp, tp); their product is all ranks")
    add("--zero", type=int, choices=known["zero"], help="ZeRO stage over dp and cp (default: 0)")
    add("--schedule", choices=known["schedule"], help="pipeline schedule (default: one_f_one_b)")
    add("--chunks", type=int, help="stages on each rank, for the schedule interleaved (default then: 2)")
    add("--microbatches", type=int, help="micro-batches per step and replica (default: pp)")
    add("--sequence-parallel", action=argparse.BooleanOptionalAction, help="shard tokens over tp between the matrices")
    add("--cp-method", choices=known["cp_method"], help="how cp ranks exchange keys and values (default: ring)")
    add("--recompute", choices=known["recompute"], help="recompute activations in backward (default: none)")
    add("--size", choices=SIZES, help="size of the GPT: " + ", ".join(f"{k} {v}" for k, v in SIZES.items()))
    add("--experts", type=int, help="experts in each layer, which ep ranks of dp and cp share (default: 0, none)")
    add("--top-k", type=int, help="how many experts a token is sent to (default: 2)")
    add("--dtype", choices=DTYPES, help="dtype of autocast (default: fp32, no autocast)")
    add("--batch", type=int, help="sequences in a step, over all ranks (default: 16)")
    add("--seed", type=int, help="seed of weights and data (default: 0)")
    add("--dropout", type=float, help="share of activations that is dropped; a resumed run drops others (default: 0)")
    add("--lr", type=float, help="learning rate of AdamW (default: 0.0005)")
    add("--steps", type=int, help="the step at which to end, counted from the first run (default: 50)")
    add("--save", type=Path, metavar="FOLDER", help="folder for checkpoints and pictures (default: a new one in runs/)")
    add("--save-every", type=int, metavar="STEPS", help="save this often, and at the end and on Ctrl-C (default: 100)")
    add("--resume", type=Path, metavar="FOLDER", help="go on from a run or one of its checkpoints; --plan may differ")
    again = "resume from the newest checkpoint in --save, if there is one: for jobs that restart"
    add("--go-on", action="store_true", help=again)
    chaos = "kill a rank in each step with this probability, drawn by --seed"
    add("--chaos", type=float, metavar="0.02", help=chaos)
    add("--grace", type=float, metavar="SECONDS", help="from SIGTERM to the end, for a step and a save (default: 25)")
    return arguments


def parse_options(arguments: Sequence[str]) -> TrainOptions:
    """The options that these arguments, the resumed run and the defaults give together.

    Raises ValueError with a sentence for arguments that cannot be read or exclude each other; SystemExit(0) for --help.
    """
    typed = vars(parser().parse_args(arguments))  # only the options that are on the command line
    attempt = {name: typed.pop(name, default) for name, default in ATTEMPT_DEFAULTS.items()}
    _check_attempt(attempt)
    if attempt["go_on"]:
        resume = newest_in(attempt["save"])
    else:
        resume = checkpoint_in(attempt["resume"]) if attempt["resume"] else None
    resumed = saved_options(resume.parent) if resume else {}
    if "plan" in typed or attempt["go_on"]:
        # A new plan does not take over options that belonged to the old one, and a command with --go-on, which is
        # started again unchanged, names all options of its plan itself.
        resumed = {name: value for name, value in resumed.items() if name not in PLAN_OPTIONS}
    values = DEFAULTS | resumed | typed
    if attempt["chaos"] and "save_every" not in typed:
        values["save_every"] = best_interval(attempt["chaos"])
    _check_numbers(values)
    place = launched()
    values["plan"] = values["plan"] or f"dp={place.world_size if place else 2}"
    folder = attempt["save"] or (resume.parent if resume else Path(RUNS) / time.strftime("%m%d-%H%M%S"))
    run_values = {name: value for name, value in values.items() if name not in PLAN_OPTIONS}
    attempt_values = {name: attempt[name] for name in ("go_on", "chaos", "grace")}
    checkpoint = {"folder": folder, "resume": resume, "new_lr": typed.get("lr")}
    return TrainOptions(plan=plan_of(values), by_name=values, **run_values, **checkpoint, **attempt_values)


def _check_numbers(values: dict[str, Any]) -> None:
    """Raises ValueError for a number that no run can have."""
    for name in ("steps", "batch", "save_every"):
        if values[name] < 1:
            raise ValueError(f"--{name.replace('_', '-')} {values[name]}: expected 1 or more")
    if values["experts"] < 0:
        raise ValueError(f"--experts {values['experts']}: expected 0, or a number of experts such as 8")
    if not 0 <= values["dropout"] < 1:
        raise ValueError(f"--dropout {values['dropout']}: expected 0 or more and below 1, such as 0.1")
    if not 0 < values["lr"] < math.inf:
        raise ValueError(f"--lr {values['lr']}: expected a finite number above 0, such as 0.0005")


def _check_attempt(attempt: dict[str, Any]) -> None:
    """Raises ValueError for options of an attempt that are out of range or exclude each other."""
    if not 0 <= attempt["chaos"] <= 1:
        raise ValueError(f"--chaos {attempt['chaos']}: expected a probability per step from 0 to 1, such as 0.02")
    if attempt["chaos"] and launched():
        raise ValueError(
            "--chaos kills ranks that this command has started itself, and keeps the account; torchrun starts all of "
            "them again as new processes, so no process would be left to do this. Leave it out, and kill a rank by hand"
        )
    if not attempt["grace"] > 0:
        raise ValueError(f"--grace {attempt['grace']:g}: expected the seconds that are left after SIGTERM, such as 25")
    if attempt["go_on"] and (attempt["resume"] or not attempt["save"]):
        raise ValueError(
            "--go-on looks for the newest checkpoint in the folder of --save: give --save, and no --resume"
        )


def best_interval(rate: float) -> int:
    """The number of steps between two saves that loses least time: sqrt(2 / rate), after J. W. Young (1974).

    rate: the probability of a failure per step. The formula assumes that a save takes as long as a step.
    """
    return max(1, round(math.sqrt(2 / rate)))


def plan_of(values: dict[str, Any]) -> Plan:
    """The Plan of these option values. Raises ValueError where it cannot be read, or is for another world size."""
    sizes = axes_of(values["plan"])
    pp, is_interleaved = sizes.get("pp", 1), values["schedule"] == "interleaved"
    chunks = values["chunks"] or (2 if is_interleaved else 1)
    if pp == 1 and (is_interleaved or chunks > 1):
        option = f"--chunks {values['chunks']}" if values["chunks"] else "--schedule interleaved"
        raise ValueError(f"{option} needs pp above 1, as in --plan pp=2")
    num_microbatches = pp if values["microbatches"] is None else values["microbatches"]
    same = {name: values[name] for name in ("zero", "schedule", "sequence_parallel", "recompute", "cp_method")}
    plan = Plan(**sizes, **same, num_chunks=chunks, num_microbatches=num_microbatches)
    place = launched()
    if place and place.world_size != plan.world_size:
        raise ValueError(
            f"--plan {values['plan']} is for {plan.world_size} ranks, but torchrun started {place.world_size}: start "
            "as many, or change an axis"
        )
    return plan


def axes_of(text: str) -> dict[str, int]:
    """Reads "dp=2,tp=2" as {"dp": 2, "tp": 2}. Raises ValueError for anything else."""
    sizes: dict[str, int] = {}
    for part in text.split(","):
        axis, _, size = (word.strip() for word in part.partition("="))
        if axis not in AXES:
            option = axis.replace("_", "-")
            own = f" --{option} is an option of its own." if axis in DEFAULTS else ""
            raise ValueError(
                f"--plan {text}: {axis!r} is not an axis; give dp, pp, cp, ep and tp, as in dp=2,tp=2.{own}"
            )
        if axis in sizes or not size.isdecimal():
            raise ValueError(f"--plan {text}: give each axis once, with its number of ranks, as in dp=2,tp=2,pp=2")
        sizes[axis] = int(size)
    return sizes


def checkpoint_in(folder: Path) -> Path:
    """`folder` itself if it is a checkpoint, or the newest checkpoint of the run in it. Raises ValueError otherwise."""
    if not folder.is_dir():
        raise ValueError(f"--resume {folder}: there is no such folder; give {RUN_EXAMPLES}")
    if (folder / "manifest.json").is_file():
        return folder
    if newest := newest_in(folder):
        return newest
    raise ValueError(f"--resume {folder}: it holds no complete checkpoint; give {RUN_EXAMPLES}")


def newest_in(folder: Path) -> Path | None:
    """The complete checkpoint of the latest step in this folder; None if there is none."""
    complete = checkpoints_of(folder)
    return complete[max(complete)] if complete else None


def checkpoints_of(folder: Path) -> dict[int, Path]:
    """Step -> folder of each complete checkpoint: those with a manifest, which is written last."""
    folders = {path.parent.name.removeprefix("step_"): path.parent for path in folder.glob("step_*/manifest.json")}
    return {int(step): path for step, path in folders.items() if step.isdecimal()}


def saved_options(folder: Path) -> dict[str, Any]:
    """The options with which the run in this folder was started; {} if they were not saved."""
    try:
        values = json.loads((folder / OPTIONS_FILE).read_text(encoding="utf-8"))
        return {name: value for name, value in values.items() if name in DEFAULTS}
    except FileNotFoundError:
        return {}
    except (ValueError, AttributeError) as problem:
        raise ValueError(
            f"{folder / OPTIONS_FILE} cannot be read ({problem}): remove it, and give its options again"
        ) from None
