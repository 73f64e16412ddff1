"""Rehearsals of scripts and of a notebook's function: what is found, where it is found, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from helpers.commands.rehearse import RehearsalReport, findings, rehearse, run
from helpers.learner.words import Words

ROOT = Path(__file__).parents[3]
HEAD = """\
import os, sys
import torch, torch.distributed as dist, torch.nn as nn, torch.nn.functional as F
local_rank, rank = int(os.environ["LOCAL_RANK"]), int(os.environ["RANK"])
torch.cuda.set_device(local_rank)
dist.init_process_group("nccl")
"""
CLEAN = """\
model = nn.parallel.DistributedDataParallel(nn.Linear(4, 4).cuda(), device_ids=[local_rank])
optimizer = torch.optim.AdamW(model.parameters())
for step in range(2):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        out = model(torch.randn(2, 4, device="cuda"))
    assert out.dtype is torch.bfloat16 and str(out.device) == f"cuda:{local_rank}"
    out.sum().backward()
    optimizer.step()
print("loss", out.float().sum().item() < 99)
dist.destroy_process_group()
"""


def rehearsed(body: str, head: str = HEAD, nproc: int = 2, **more) -> RehearsalReport:
    return rehearse(head + body, nproc, limit=60, **more)


def line_of(report: RehearsalReport, kind: str) -> str:
    """The text of the first line that the first finding of a kind points at."""
    found = next(one for one in report.findings if one.kind == kind)
    return str(found.lines())


def test_a_clean_script_runs_to_its_end_and_nothing_is_found():
    report = rehearsed(CLEAN)
    assert report.ok and report.exit_code == 0 and not report.findings and report.ended == "ended"
    assert report.printed[1].endswith("loss True\n") and min(report.peaks.values()) > 4 * 4 * 4 * 4
    assert {op for op, _, _ in report.messages} >= {"all_reduce", "broadcast"}
    assert json.loads(json.dumps(report.as_json()))["ok"] and "2 practice cards" in report._repr_html_()
    assert "no proof" in str(report) and "may hide other mistakes" not in str(report)


def test_a_clean_script_of_tensor_parallelism_is_clean():
    """DTensor's results are on their way for a while, in forward and in backward."""
    report = rehearse(ROOT / "benchmarks/rehearsal/first/c09_tensor_parallel.py", 2, limit=60)
    assert report.ok and not report.findings


def test_a_device_mistake_ends_one_rank_and_is_told_with_its_line_in_cudas_words():
    report = rehearsed("x = torch.ones(2).cuda()\nif rank == 1:\n    x + torch.ones(2)\ndist.all_reduce(x)\n")
    assert report.exit_code == 1 and len(report.findings) == 1 and report.findings[0].ranks == (1,)
    said = line_of(report, "error")
    assert "cuda:1 and cpu" in said and "x + torch.ones(2)" in said and "card" not in said


def test_a_full_card_says_what_holds_it():
    body = "model = nn.Linear(1000, 1000).cuda()\nmodel(torch.ones(1, 1000, device='cuda')).sum().backward()\n"
    body += "torch.optim.Adam(model.parameters()).step()\n"
    report = rehearsed(body, memory="14 MB")
    said = line_of(report, "out of memory")
    assert "CUDA out of memory" in said and "gradients" in said and "optimizer state" in said and ".step()" in said
    assert report.findings[0].ranks == (0, 1) and max(report.peaks.values()) <= 14e6


def test_a_collective_behind_an_if_is_wrong_without_an_error_and_has_a_cure():
    report = rehearsed("x = torch.ones(2).cuda()\nif rank == 0:\n    dist.all_reduce(x)\ndist.broadcast(x, 0)\n")
    said = line_of(report, "unnoticed")
    assert "goes on with wrong data" in said and "an `if` on the rank" in said
    assert "may hide other mistakes" in str(report)


def test_the_report_of_the_guide_is_what_is_said(tmp_path):
    script = tmp_path / "train.py"
    both_send_first = "dist.send(loss, 1 - rank)\ndist.recv(torch.empty_like(loss), 1 - rank)\n"
    script.write_text(HEAD + "loss = torch.ones(1).cuda()\n" + both_send_first)
    shown = [line for line in rehearse(script, 2, limit=60).findings[0].lines() if not line.startswith("  at ")]
    assert "\n".join(["```", *shown, "```"]) in (ROOT / "docs" / "rehearse.md").read_text(encoding="utf-8")


def test_ranks_that_share_a_gpu_are_told():
    forgotten = HEAD.replace("torch.cuda.set_device(local_rank)\n", "\n")
    report = rehearsed("dist.all_reduce(torch.ones(2).cuda())\n", forgotten)
    assert report.ended == "ended" and report.findings[0].ranks == (0, 1) and "may hide other mistakes" in str(report)
    assert "Duplicate GPU" in line_of(report, "error") and "set_device" in str(report.findings[0].cure)


def test_gpus_may_be_numbered_in_any_order():
    head = HEAD.replace("set_device(local_rank)", "set_device(1 - local_rank)")
    assert rehearsed("x = torch.ones(2, device=1 - local_rank)\ndist.all_reduce(x)\n", head).ok


def test_cuda_visible_devices_counts_from_the_scripts_first_use_of_cuda():
    seen = "import os\nos.environ['CUDA_VISIBLE_DEVICES'] = os.environ['LOCAL_RANK']\n"
    head = seen + HEAD.replace("set_device(local_rank)", "set_device(0)")
    assert rehearsed("assert torch.cuda.device_count() == 1\ndist.all_reduce(torch.ones(2).cuda())\n", head).ok
    assert "invalid device ordinal" in line_of(rehearsed("", seen + HEAD), "error")


def test_the_global_rank_is_no_gpu_of_the_second_node():
    report = rehearsed("", HEAD.replace("set_device(local_rank)", "set_device(rank)"), nproc=1, nnodes=2)
    assert report.findings[0].ranks == (1,) and "invalid device ordinal" in line_of(report, "error")


def test_a_race_is_found_where_there_is_no_process_group():
    body = "side, x = torch.cuda.Stream(), torch.ones(2, device='cuda')\nwith torch.cuda.stream(side):\n    x * 2\n"
    report = rehearsed(body, HEAD.replace("dist.init", "# dist.init"), nproc=1)
    assert report.exit_code == 1 and "x * 2" in line_of(report, "race")


def test_a_script_is_compiled_without_our_own_future():
    """torch's DDP compares the annotation of a hook with a class; a dataclass reads them, too."""
    body = "def hook(state, bucket: dist.GradBucket): ...\nassert hook.__annotations__['bucket'] is dist.GradBucket\n"
    assert rehearsed(body, nproc=1).ok


def test_a_rank_that_stands_in_another_groups_call_is_named_with_its_line():
    body = "g, x = dist.new_group(), torch.ones(2, device='cuda')\ndist.all_reduce(x)\ndist.all_reduce(x, group=g)\n"
    body += "for one in [None, g] if rank else [g, None]:\n    dist.all_reduce(x, group=one)\n"
    report = rehearsed(body)
    said = line_of(report, "hangs")
    assert len(report.findings) == 1 and report.findings[0].ranks == (0, 1)
    assert "same order on every rank" in str(report.findings[0].cure) and "nothing more" not in said
    assert "ranks 0, 1 (the default group)" in said and "ranks 0, 1 (the group of line 6)" in said


def test_groups_that_each_rank_makes_for_itself_end_the_rehearsal_at_once():
    report = rehearsed("group = dist.new_group([rank])\ndist.barrier(group)\n")
    said = line_of(report, "error")
    assert report.ended == "failed" and len(report.findings) == 1 and "new_group" in str(report.findings[0].cure)
    assert "makes a group of 0 on rank 0" in said and "of 1 on rank 1" in said and "line 6" in said


def test_ranks_whose_groups_never_meet_are_named_with_their_line():
    report = rehearsed(
        "for ranks in [[0], [0, 1]][rank:]:\n    dist.new_group(ranks, use_local_synchronization=True)\n"
    )
    assert report.ended == "hang" and report.findings[0].ranks == (0, 1), str(report)
    assert "new_group" in line_of(report, "hangs") and "line 7" in line_of(report, "hangs")


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("sys.exit(3)\n", "sys.exit(3)"),
        ("import no_such_package\n", "no_such_package"),
        ("nn.DataParallel(nn.Linear(2, 2).cuda())\n", "two GPUs"),
        ("torch.eye(2).to_sparse().cuda()\n", "sparse"),
        ("os._exit(5)\n", "exit code 5"),
    ],
)
def test_what_is_no_mistake_and_no_end_is_a_sentence(body: str, told: str):
    report = rehearsed(body, nproc=1)
    assert report.exit_code == 2 and not report.findings and told in str(report.problem)


def test_what_was_not_rehearsed_is_named():
    body = "@torch.compile\ndef f(x):\n    return x\nf(torch.ones(1))\nwith torch.cuda.graph(torch.cuda.CUDAGraph()):\n"
    report = rehearsed(body + "    pass\ntorch.cuda.nvtx.range_push('a')\n", nproc=1)
    assert report.ok and len(report.not_rehearsed) == 3 and "CUDA graphs" in str(report)


def test_a_script_that_does_not_end_is_ended():
    report = rehearse("import time\nwhile True:\n    time.sleep(0.1)\n", 1, limit=2)
    assert report.ended == "timeout" and report.exit_code == 2 and "time.sleep" in str(report.problem)


@pytest.mark.parametrize("verdict", ["timeout", "interrupted"])
def test_where_it_was_stopped_stands_without_another_word(verdict):
    crew = SimpleNamespace(exit_codes={}, causes=[], places=[Words.of("rank 0 is at a line")])
    scene = SimpleNamespace(exits={}, processes=crew, verdict=verdict)
    assert str(findings.problem(scene, ())) == "rank 0 is at a line"


def test_what_prints_without_measure_is_cut():
    report = rehearse("for _ in range(1000):\n    print('x' * 10_000)\n", 1, limit=60)
    assert report.ok and len(report.printed[0]) < 300_000


def test_a_sentence_for_what_cannot_be_started(tmp_path, capsys):
    (tmp_path / "c.py").write_text("int main() {}\n")
    for arguments, told in (
        (["nowhere.py"], "does not exist"),
        ([str(tmp_path / "c.py")], "is not Python"),
        ([str(tmp_path / "c.py"), "--nproc", "0"], "nproc=0"),
        ([str(tmp_path / "c.py"), "--memory", "much"], "much"),
        ([str(tmp_path / "c.py"), "--nproc", "100000"], "GB of memory"),
    ):
        assert run.main(arguments) == 2
        assert told in capsys.readouterr().err


def test_the_script_gets_its_arguments_and_no_process_stays(tmp_path, capsys):
    script = tmp_path / "train.py"
    script.write_text("import os, sys\nprint(sys.argv[1:], 'pid', os.getpid())\n")
    assert run.main([str(script), "--nproc", "1", "--", "--epochs", "3"]) == 0
    said = capsys.readouterr().out
    assert "['--epochs', '3']" in said and "ran to its end on 1 practice card." in said
    assert not psutil.pid_exists(int(said.partition("pid ")[2].split()[0]))
