"""The measured rows: how many, what a row says, and that no column is lost on the way."""

from dataclasses import replace

import pytest

from helpers.predict.time.measured import DATA, published, vtrain
from helpers.predict.time.model import step_time
from helpers.specs import GPUS


def test_all_published_rows_are_there_with_plans_that_use_the_whole_cluster():
    rows = published()
    assert len(rows) == 73
    assert all(row.plan.world_size == row.cluster.world_size for row in rows)
    for row in rows:
        row.plan.check(row.model)


def test_a_published_row_says_what_the_table_does():
    row = next(row for row in published() if row.name == "76.05B tp8 pp4 dp32 v3 mbs2")
    plan = row.plan
    assert (plan.dp, plan.tp, plan.pp, plan.num_chunks, plan.micro_batch, plan.num_microbatches) == (32, 8, 4, 3, 2, 28)
    assert (row.seconds, row.stack.name, row.cluster.gpu.name) == (16.0578, "Megatron 2021", "A100 SXM 80 GB")
    assert row.model.num_params == pytest.approx(76.05e9, rel=0.01)


def test_vtrains_rows_keep_their_batch_and_their_licence():
    single, multi = vtrain("single_node"), vtrain("multi_node")
    assert (len(single), len(multi)) == (726, 41)
    assert {row.group for row in multi} == {"vTrain 3.6B", "vTrain 18.4B"}
    first = single[0]
    assert first.plan.dp * first.plan.micro_batch * first.plan.num_microbatches == 32
    assert (first.model.hidden, first.seconds) == (1024, pytest.approx(0.219732754))
    assert "VIA Research Group at KAIST" in (DATA / "vtrain" / "LICENSE").read_text(encoding="utf-8")


def test_a_v100_of_450_watts_sustains_more_than_others():
    rows = [row for row in published() if "V100" in row.group]
    for row in rows:
        estimate = step_time(row.model, row.plan, row.cluster, row.stack).seconds
        usual = replace(row.cluster, gpu=GPUS["V100"])
        assert abs(estimate / row.seconds - 1) < 0.05
        assert step_time(row.model, row.plan, usual, row.stack).seconds > 1.1 * row.seconds
    assert len(rows) == 2
