"""A window of steps of a job that never imports us, and a sentence where there is none."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from helpers.commands.jobs.hang import HangReport
from helpers.commands.jobs.hang_cause import HangCause, JobState
from helpers.commands.jobs.profile import ProfiledJob, main
from helpers.commands.traces import explain, read

TRAINS = """
    import torch, torch.distributed as dist
    from torch.profiler import record_function
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
    generator, other = (torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2))
    for step in range(6):
        with record_function("data_parallel_step"):
            model(torch.ones(2, 8)).sum().backward()
            generator.step()
            other.step()
    dist.destroy_process_group()
"""


def test_one_trace_per_rank_of_the_steps_that_the_first_optimizer_counts(tmp_path, capsys):
    script, folder = tmp_path / "train.py", tmp_path / "traces"
    script.write_text(textwrap.dedent(TRAINS))
    folder.mkdir()
    (folder / "rank5.pt.trace.json").write_text('{"traceEvents": []}')  # an earlier job left it
    assert main(["--active", "2", "--out", str(folder), "--", str(script)]) == 0
    run = read(folder)
    assert run.ranks == (0, 1) and [len(steps) for steps in run.steps.values()] == [2, 2]
    assert len(list(folder.iterdir())) == 3
    parts = explain(run).parts
    assert parts["data"] == 0 < min(parts["compute"], parts["communication"])
    assert capsys.readouterr().out.startswith(f"2 traces of steps 4 to 5, from ProfilerStep#2, in {folder}")


def test_a_job_that_ends_before_a_step_of_its_window_does_ends_well(tmp_path, capsys):
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(TRAINS))
    assert main(["--warmup", "4", "--out", str(tmp_path / "traces"), "--", str(script)]) == 1
    assert capsys.readouterr().out.startswith("No trace: the job ended after 6 steps")


@pytest.mark.parametrize(
    ("num_traces", "steps", "text"),
    [
        (0, {0: 2}, "No trace: the job ended after 2 steps, and the window is steps 4 to 6."),
        (0, {}, "no optimizer of torch.optim made a step"),
        (1, {0: 5}, "The job ended within the window, after step 5."),
        (1, {0: 9}, "1 trace of steps 4 to 6, from ProfilerStep#2, in"),
    ],
)
def test_a_job_that_ends_before_the_window_or_within_it(num_traces, steps, text):
    state = JobState(ranks={}, children={}, calls={}, groups={}, limit=1.0)
    report = HangReport(outcome="ended", code=0, state=state, cause=HangCause(kind="ended"), torch=None)
    job = ProfiledJob(report=report, folder=Path("x"), num_traces=num_traces, steps=steps, window=(1, 1, 3))
    assert text in str(job) and ("within" in str(job)) == ("within" in text)
