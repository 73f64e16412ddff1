"""What chapters 01 and 03 run by NCCL's rules."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

from helpers.measure import gpu_step
from helpers.measure.rules_runs import outcomes, script_of
from helpers.rehearse import rehearse


def test_six_programs_do_on_gloo_and_on_nccl_what_chapter_01_says():
    waits, above = "stands still", "stands still above the buffer"
    assert outcomes() == {
        "a": (waits, above),
        "b": ("runs", above),
        "c": ("runs", "runs"),
        "d": ("runs", "runs"),
        "e": ("runs", "runs, and mixes up x and y"),
        "f": (waits, waits),
    }


def doubled(device):
    x = torch.ones(2, device=device)  # noqa: F821 - the script imports it
    dist.all_reduce(x)  # noqa: F821
    return x.numpy()


def test_a_function_becomes_a_script_whose_mistake_stands_at_its_own_line():
    script = script_of(doubled)
    report = rehearse(script, nproc=2)
    assert [one.sites[0][1] for one in report.findings] == [4] and "numpy" in str(report)
    assert rehearse(script.replace("x.numpy()", "x.cpu().numpy()"), nproc=2).ok


def test_chapter_03_shows_the_step_that_its_rehearsals_take_and_every_mend_finds_its_place():
    cells = json.loads((Path(__file__).parents[2] / "notebooks/03_ddp.ipynb").read_text(encoding="utf-8"))["cells"]
    (shown,) = ("".join(cell["source"]) for cell in cells if cell["id"] == "gpu-step")
    source = inspect.getsource(gpu_step.step)
    assert shown.strip() == source.strip()
    assert [source.count(old) for old in gpu_step.MENDS] == [1] * 5
