"""Mistakes of public bug reports, written anew and small: each is one finding with ranks, line and cure."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from helpers.commands.rehearse import rehearse
from tests.commands.rehearse import test_silent
from tests.commands.rehearse.test_silent import HEAD, rehearsed

RUNS = 10  # of each script in the slow test


@dataclass(frozen=True)
class Report:
    """A script for `nproc` ranks, what the one finding says, and a part of the line that it names first."""

    script: str
    says: tuple[str, ...]
    line: str
    nproc: int = 2


REPORTS = {
    "receives that wait for each other": Report(
        """
x, other = torch.ones(4, device="cuda"), 1 - rank
works = [dist.irecv(torch.empty_like(x), other)]
works += [dist.isend(x, other)]
for work in works:
    work.wait()
""",
        ("Hangs on NCCL (", "whatever the size of the messages", "Let one side send first"),
        "dist.irecv",
    ),
    "both send first": Report(
        """
x, other = torch.ones(4, device="cuda"), 1 - rank
dist.barrier()
dist.send(x, other)
dist.recv(x, other)
""",
        ("Hangs on NCCL if the message is large", "Give both directions to one dist.batch_isend_irecv"),
        "dist.send",
    ),
    "a batch without its other side": Report(
        """
x, other = torch.ones(4, device="cuda"), 1 - rank
dist.barrier()
ops = [dist.P2POp(dist.isend, x, other)] if rank == 0 else []
ops += [dist.P2POp(dist.irecv, torch.empty_like(x), other)]
for work in dist.batch_isend_irecv(ops):
    work.wait()
dist.barrier()
""",
        (
            "This message waits for its other side",
            "rank 0 has posted 1 receive from rank 1, and rank 1 has posted 0 sends to rank 0",
        ),
        "dist.batch_isend_irecv",
    ),
    "a rank skips a batch": Report(
        """
model = nn.parallel.DistributedDataParallel(nn.Linear(4, 2).cuda(), device_ids=[rank])
for step in range(4):
    if rank == 0 and step == 1:
        continue
    model(torch.randn(3, 4, device="cuda")).sum().backward()
""",
        ("the ranks have called all_reduce", "(rank 0)", "(rank 1)", "the same number of batches"),
        "backward()",
    ),
    "early stop on one rank": Report(
        """
model = nn.parallel.DistributedDataParallel(nn.Linear(4, 2).cuda(), device_ids=[rank])
for step in range(3):
    if rank == 1 and step == 2:
        break
    model(torch.randn(3, 4, device="cuda")).sum().backward()
dist.barrier()
""",
        ("Wrong on NCCL, without an error (ranks 0, 1)", "rank 0 calls all_reduce", "rank 1 calls barrier"),
        "",
    ),
    "a decision from a sum that one rank has": Report(
        """
loss = torch.tensor(float(rank), device="cuda")
dist.reduce(loss, 0)
if loss.item() > 1.0 or rank == 1:
    dist.all_gather_object([None, None], rank) if rank == 1 else None
""",
        ("Hangs on NCCL", "rank 0 calls nothing more"),
        "dist.all_gather_object",
    ),
    "a step that GradScaler skips": Report(
        """
from torch.distributed.optim import ZeroRedundancyOptimizer
model = nn.Linear(2, 2).cuda()
optimizer, scaler = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1), torch.amp.GradScaler("cuda")
loss = model(torch.ones(1, 2, device="cuda")).sum() * (float("inf") if rank == 1 else 1.0)
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()
""",
        ("Hangs on NCCL", "rank 0 waits in broadcast", "rank 1 calls nothing more"),
        "scaler.step(optimizer)",
    ),
    "a root outside the group": Report(
        """
groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
dist.broadcast(torch.ones(2, device="cuda"), src=0, group=groups[rank // 2])
""",
        ("Error (ranks 2, 3)", "Global rank 0 is not part of group <torch.distributed.distributed_c10d.ProcessGroup"),
        "dist.broadcast",
        nproc=4,
    ),
}


@pytest.mark.parametrize("name", REPORTS)
def test_a_reported_mistake_is_one_finding_with_its_line_and_its_cure(name: str):
    report = REPORTS[name]
    result = rehearsed(report.script, report.nproc)
    assert len(result.findings) == 1 and not result.ok, str(result)
    (found,) = result.findings
    text = "\n".join(found.lines())
    assert all(part in text for part in report.says), text
    assert report.line in text and found.cure, text


# Both ranks have left init_process_group, where rank 1 needs the store that rank 0 holds.
MET = """
import time
open(f"{folder}/{rank}", "w").close()
while len(os.listdir(folder)) < 2:
    time.sleep(0.01)
"""


def test_what_ends_the_process_below_torch_is_no_mistake_of_the_script(tmp_path):
    result = rehearse(HEAD + f"folder = {str(tmp_path)!r}" + MET + "os.abort()\n", 2, limit=60)
    assert result.exit_code == 2 and not result.findings, str(result)
    assert "C++ code of torch has crashed on ranks 0, 1" in str(result.problem) and "killed by SIGABRT" in str(result)


def test_a_rank_that_is_too_busy_to_answer_is_let_come_to_its_end(tmp_path):
    """As on a machine without a free core: rank 1 computes in C and answers nothing while rank 0 has ended."""
    late = "if rank == 1:\n    sum(range(50_000_000))\n"
    result = rehearse(HEAD + f"folder = {str(tmp_path)!r}" + MET + late + "os.abort()\n", 2, limit=60)
    assert "C++ code of torch has crashed on ranks 0, 1" in str(result.problem), str(result)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("raise NotImplementedError('this model has no decoder')", "this model has no decoder"),
        ("nn.Module()(1)", 'missing the required "forward" function'),
        ("torch.ones(2, 3, device='cuda') @ torch.ones(2, 3, device='cuda')", "mat1 and mat2 shapes"),
    ],
)
def test_an_error_that_gpus_would_have_is_the_scripts_mistake(body: str, said: str):
    result = rehearse(HEAD + body + "\n", 2, limit=60)
    assert result.exit_code == 1 and said in str(result.findings[0].words), str(result)


def test_what_no_device_made_in_python_has_ends_the_rehearsal_without_a_mistake():
    result = rehearse(HEAD + "torch.nested.nested_tensor([torch.ones(2)], device='cuda') * 2\n", 2, limit=60)
    assert result.exit_code == 2 and "a practice card cannot do what torch asks" in str(result.problem), str(result)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*REPORTS, *test_silent.CASES])
def test_nothing_is_printed_twice_and_every_run_says_the_same(name: str):
    script, nproc = (REPORTS[name].script, REPORTS[name].nproc) if name in REPORTS else (test_silent.CASES[name][0], 2)
    results = [rehearsed(script, nproc) for _ in range(RUNS)]
    for result in results:
        assert len(result.findings) == 1, str(result)
    assert len({(one.exit_code, one.findings[0].ranks) for one in results}) == 1, [*map(str, results)]


def test_what_a_library_does_by_itself_is_a_note(tmp_path):
    """A race that begins on a stream of a library, in a script that runs to its end."""
    packages = tmp_path / "site-packages"
    packages.mkdir()
    trainer = """
import torch
def filled(x):
    with torch.cuda.stream(torch.cuda.Stream()):
        x.fill_(2.0)
    return x
"""
    (packages / "some_trainer.py").write_text(trainer)
    body = "import sys; sys.path.append({path!r}); import some_trainer\n"
    body += "x = some_trainer.filled(torch.ones(4, device='cuda'))\nprint((x * 2).sum().item())\n"
    result = rehearse(HEAD + body.replace("{path!r}", repr(str(packages))), 2, limit=60)
    assert result.ok and result.exit_code == 0, str(result)
    assert {one.kind for one in result.findings} == {"note"}
    assert "A library does this by itself, and the script ran to its end" in str(result)
