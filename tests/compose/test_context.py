"""Plans with context parallelism equal one process on every rank, and send what was predicted."""

import pytest

from helpers.compose import Plan
from tests.compose.cases import Case
from tests.compose.test_trainer import check

METHODS = Plan.KNOWN["cp_method"]
WITH = {
    "alone": {},
    "dp": dict(dp=2),
    "tp": dict(tp=2),
    "pp": dict(pp=2, num_microbatches=4),
    "zero 1": dict(dp=2, zero=1, num_microbatches=2),
    "zero 2": dict(dp=2, zero=2, num_microbatches=2),
    "zero 3": dict(dp=2, zero=3, num_microbatches=2),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("others", WITH.values(), ids=WITH)
def test_with_each_other_axis_it_equals_one_process(eight, others, method):
    check(eight, Case(Plan(cp=2, cp_method=method, **others), tied=True, grouped=True))


CASES = [
    # a replica alone, so ZeRO shards over the cp ranks
    Case(Plan(cp=3, zero=1), tied=True, grouped=True),
    Case(Plan(cp=4, zero=3, cp_method="all_to_all"), tied=False, grouped=False),
    # 8 tokens on 3 ranks: 3, 3 and 2, so the messages of tp and pp differ between cp ranks
    Case(Plan(cp=3, tp=2), tied=True, grouped=False),
    Case(Plan(cp=3, pp=2, num_microbatches=4, cp_method="all_gather", recompute="full"), tied=True, grouped=True),
    # one key and value head on two tensor ranks; fewer of them than cp ranks
    Case(Plan(cp=2, tp=4), tied=True, grouped=True),
    Case(Plan(cp=2, tp=4, cp_method="all_to_all", sequence_parallel=True), tied=True, grouped=True),
    # attention runs again in backward, after forwards of later micro-batches
    Case(Plan(cp=2, pp=2, num_microbatches=4, recompute="selective"), tied=True, grouped=False),
    Case(Plan(cp=2, dp=2, num_microbatches=2, cp_method="all_to_all", recompute="full"), tied=True, grouped=False),
    Case(Plan(cp=2, pp=2, num_microbatches=4, num_chunks=2, schedule="interleaved"), tied=True, grouped=False),
    # all axes
    Case(Plan(cp=2, pp=2, dp=2, zero=1, num_microbatches=4, schedule="zb_h1"), tied=True, grouped=True),
    Case(Plan(cp=2, pp=2, tp=2, num_microbatches=2, sequence_parallel=True), tied=True, grouped=False),
    Case(Plan(cp=2, dp=2, tp=2, zero=3, sequence_parallel=True, recompute="selective"), tied=True, grouped=True),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_on_three_axes_and_with_options_it_equals_one_process(eight, case):
    check(eight, case)
