"""What chapters 01 and 03 run by NCCL's rules."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import torch
import torch.distributed as dist

from helpers.chapters import nccl_programs
from helpers.chapters.collectives import outcomes_of_programs
from helpers.chapters.nccl_programs import e
from helpers.commands.rehearse import rehearse
from helpers.observe.torchrun import script_of


def test_six_programs_do_on_gloo_and_on_nccl_what_chapter_01_says():
    waits, above = "stands still", "stands still with a large x"
    assert outcomes_of_programs() == {
        "a": (waits, above),
        "b": ("runs", above),
        "c": ("runs", "runs"),
        "d": ("runs", "runs"),
        "e": ("runs", "runs, x and y exchanged"),
        "f": (waits, waits),
    }


def test_gloo_brings_x_to_x_and_y_to_y_in_program_e(ranks):
    assert ranks[:2].run(e_of_twos_and_threes) == [[2, 3], [2, 3]]


def e_of_twos_and_threes():
    rank = dist.get_rank()
    x, y = (torch.tensor(number if rank == 0 else 0) for number in (2, 3))
    e(rank, x, y)
    return [x.item(), y.item()]


def doubled(device):
    x = torch.ones(2, device=device)
    dist.all_reduce(x)
    return x.numpy()


def test_a_function_becomes_a_script_whose_mistake_stands_at_its_own_line():
    script = script_of(doubled)
    report = rehearse(script, nproc=2)
    assert [one.sites[0][1] for one in report.findings] == [4] and "numpy" in str(report)
    assert rehearse(script.replace("x.numpy()", "x.cpu().numpy()"), nproc=2).ok


def test_chapter_03_shows_the_step_that_its_rehearsals_take_and_every_mend_finds_its_place():
    cells = json.loads((Path(__file__).parents[2] / "notebooks/03_ddp.ipynb").read_text(encoding="utf-8"))["cells"]
    (shown,) = ("".join(cell["source"]) for cell in cells if cell["id"] == "gpu-step")
    source = inspect.getsource(nccl_programs.step)
    assert shown.strip() == source.strip()
    assert [source.count(old) for old in nccl_programs.FIXES] == [1] * 5
