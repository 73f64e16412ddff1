"""What chapters 01 and 03 run by NCCL's rules."""

from __future__ import annotations

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
