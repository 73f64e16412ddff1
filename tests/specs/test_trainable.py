"""Which plans this course's Trainer runs is known without torch, and every refusal names a plan that works."""

import subprocess
import sys

import pytest

from helpers.specs import Plan
from helpers.specs.trainable import check_trainable


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        (Plan(dp=2, cp_method="all_gather"), "with cp=1 each rank has them all: leave it out, or set cp above 1"),
        (Plan(dp=2, pp=2, zero=2, num_microbatches=4), "4.00 GB per rank and step instead of 2.00 GB"),
        (Plan(cp=2, pp=2, zero=2, num_microbatches=4), "4.00 GB per rank and step instead of 2.00 GB"),
        (Plan(dp=2, sequence_parallel=True), "with tp=1 has one rank"),
        (Plan(pp=2, num_chunks=2, num_microbatches=2), "'interleaved' is for"),
        (Plan(pp=2, schedule="interleaved", num_microbatches=2), "needs at least 2; set both or neither"),
        (Plan(dp=4, ep=2, zero=3), "over dp \\* cp = 4 ranks, and its experts over 2 of them. Use zero=2, or ep=1"),
        (Plan(dp=2, tp=2, ep=2, sequence_parallel=True), "its own tokens to route, .* use sequence_parallel=False"),
        (Plan(dp=2, fp8=True), "Trainer: fp8=True is not modelled here; leave it out"),
        (Plan(dp=4, zero=3, shard_ranks=2), "Trainer: shard_ranks=2 is not modelled here"),
    ],
    ids=["cp", "zero 2", "zero 2 with cp", "sequence", "chunks", "no chunks", "ep", "tokens", "fp8", "hybrid"],
)
def test_a_plan_that_the_trainer_refuses(plan, says):
    with pytest.raises(ValueError, match=says):
        check_trainable(plan, 4 * 10**9)


def test_plans_that_it_runs():
    for plan in (Plan(), Plan(dp=2, zero=3), Plan(dp=2, tp=2, pp=2, zero=1, sequence_parallel=True)):
        check_trainable(plan, 4 * 10**9)
    for method in Plan.KNOWN["cp_method"]:
        check_trainable(Plan(cp=2, dp=2, tp=2, zero=3, sequence_parallel=True, cp_method=method), 4 * 10**9)
    for zero in (0, 1, 2):
        check_trainable(Plan(cp=2, dp=2, tp=2, ep=4, zero=zero), 4 * 10**9)
    check_trainable(Plan(pp=2, num_chunks=2, schedule="interleaved", num_microbatches=2), 4 * 10**9)


def test_the_planner_asks_without_torch():
    code = "import sys, helpers.predict.advice.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
