"""The complete script of chapter 03 resumes exactly under torchrun on gloo, and a rehearsal for GPUs finds nothing."""

import torch

from helpers.commands.rehearse import rehearse
from helpers.observe.torchrun import run_agents
from helpers.workloads import train_ddp

SCRIPT = "helpers.observe.run_and_leave helpers.workloads.train_ddp"
TWO = ["--nproc-per-node=2"]


def test_a_run_that_resumes_ends_with_the_weights_of_one_that_never_stopped(tmp_path):
    printed = run_agents(f"{SCRIPT} {tmp_path}/whole.pt 2", TWO)
    assert [line.split(":")[0] for line in printed] == ["epoch 0", "epoch 1"]
    assert run_agents(f"{SCRIPT} {tmp_path}/parts.pt 1", TWO) == printed[:1]
    assert run_agents(f"{SCRIPT} {tmp_path}/parts.pt 2", TWO) == printed[1:]
    whole, parts = (torch.load(tmp_path / name) for name in ("whole.pt", "parts.pt"))
    assert whole["next_epoch"] == parts["next_epoch"] == 2
    for name, weight in whole["model"].items():
        torch.testing.assert_close(parts["model"][name], weight, rtol=1e-5, atol=1e-6)


def test_a_rehearsal_finds_nothing_until_it_takes_the_rank_for_the_device(tmp_path):
    report = rehearse(train_ddp.__file__, nproc=2, args=[tmp_path / "checkpoint.pt", 1])
    assert report.ok and not report.findings and report.ended == "ended"
    with open(train_ddp.__file__, encoding="utf-8") as file:
        script = file.read().replace('"LOCAL_RANK"', '"RANK"')
    wrong = rehearse(script, nproc=1, nnodes=2, args=[tmp_path / "other.pt", 1])
    assert not wrong.ok and "invalid device ordinal" in str(wrong)
