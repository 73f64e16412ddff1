"""Chapter 09's runs: each measurement finds its mistake, and none where there is none."""

from dataclasses import replace

import pytest
import torch

from helpers.chapters import composing, composing_cells
from helpers.chapters.torch_trainer import TorchTrainer
from helpers.compose import Plan
from helpers.records import CommEvent, Span, Timeline
from helpers.workloads import GPT, GPTConfig


def test_a_plan_is_held_beside_one_process(ranks):
    alone, found, verdict = composing.losses_beside_one_process(ranks[:2], Plan(tp=2))
    assert alone == pytest.approx(found, rel=1e-12) and verdict.startswith("equal: 71 tensors x 2 ranks")


def test_bytes_that_were_not_predicted_are_an_error(ranks, monkeypatch):
    plan = Plan(dp=2)
    assert composing.checked_bytes(ranks, plan, 2) == sum(composing.bytes_of_busiest_rank(plan, 2).values())
    other = composing.predicted_traffic(Plan(tp=2), 2, 0)
    monkeypatch.setattr(composing, "predicted_traffic", lambda *_: other)
    with pytest.raises(RuntimeError, match=r"rank 0 sent .* was predicted"):
        composing.checked_bytes(ranks, plan, 2)


def alone() -> list[float]:
    """The losses of two steps in one process without clipping."""
    return replace(composing.TRAINING, steps=2, max_norm=None).run()["losses"].tolist()


def test_what_the_cells_draw_is_refused_where_it_is_wrong():
    assert composing_cells.files_scene({"rank_0.pt": 60, "rank_1.pt": 41}, 100)[1] == "as large"
    assert composing_cells.files_scene({"rank_0.pt": 100, "rank_1.pt": 100}, 100)[1] == "2.00 times as large"
    assert composing_cells.effect_of_the_world([4, 3], [4, 3.5], [4, 3]) == "it trains, and learns more slowly"
    assert composing_cells.effect_of_the_world([4, 3], [4, 3], [4, 3]).startswith("nothing")
    with pytest.raises(AssertionError):
        composing_cells.effect_of_the_world([4, 3], [4, 3.5], [4, 3.4])
    with pytest.raises(AssertionError):
        composing_cells.norms_scene([1.0, 2.0], 3.0, 1.0, 2.0)
    with pytest.raises(AssertionError):
        composing_cells.layouts_scene({"dp 4": 1.0})


def test_an_optimizer_that_comes_first_moves_what_tp_leaves_whole(ranks):
    (right, all_of_them), (wrong, few) = (
        ranks[:2].run(composing.shard_and_train, 2, optimizer_first=first)[0] for first in (False, True)
    )
    assert all_of_them == 1 and 0.04 < few < 0.06
    assert right[0] == wrong[0] and right[1] < wrong[1]
    assert right == pytest.approx(alone(), rel=1e-12)


def test_only_the_mean_over_dp_is_that_of_one_process(ranks):
    expected = alone()
    dp, world = (ranks[:4].run(composing.losses_averaged_over, axis, 2) for axis in ("dp", "world"))
    assert dp[0] == pytest.approx(expected, rel=1e-12) and world[0][1] > expected[1] + 1e-3
    assert len(set(map(tuple, dp))) == len(set(map(tuple, world))) == 1, "every rank sees the same loss"


def test_one_seed_makes_equal_parts_which_stay_equal(ranks):
    model = composing.gpt_of_seeds(one_seed=True)
    losses, parts = ranks[:4].run(composing.train_with_one_seed, 2)[3]
    assert composing.losses_in_one_process(model, 2) == pytest.approx(losses, abs=1e-5)
    name = "blocks.0.attention.projection.weight"
    assert all(torch.equal(part, model.get_parameter(name)[:, :8]) for part in model.get_parameter(name).chunk(4, 1))
    assert torch.allclose(parts[name], model.get_parameter(name)[:, :8], atol=1e-4)
    assert not torch.equal(*composing.gpt_of_seeds(one_seed=False).get_parameter(name).chunk(4, 1)[:2])


def event(start: float, end: float) -> CommEvent:
    told = dict(op="all_reduce", payload_bytes=8, group="1", group_ranks=(0, 1), sequence=0, caller="a.py:1")
    return CommEvent(rank=0, start=start, end=end, dtype="float32", shape=(2,), **told)


def test_waiting_inside_a_part_is_no_compute():
    timeline = Timeline(
        source="emulated",
        spans=(
            Span(rank=0, lane="compute", name="a", kind="forward", start=0, end=10),
            Span(rank=0, lane="communication", name="all_reduce", kind="communication", start=2, end=5),
        ),
    )
    found = composing.without_waits(timeline, [event(6, 7), event(2, 5), event(9, 12)])
    computes = [(one.start, one.end) for one in found.spans if one.kind == "forward"]
    assert computes == [(0, 2), (5, 6), (7, 10)] and found.spans[-1] == timeline.spans[-1]


PAIRS = [Plan(dp=2, tp=2, zero=3), Plan(dp=2, pp=2, num_microbatches=4), Plan(pp=2, tp=2, num_microbatches=4)]


@pytest.mark.parametrize("plan", PAIRS, ids=str)
def test_our_trainer_and_torchs_parts_give_the_same(ranks, plan):
    assert composing.equal_to_torch(ranks, plan).startswith("equal: 38 tensors x 4 ranks")


@pytest.mark.parametrize(
    ("tied", "plan", "words"),
    [
        (True, Plan(dp=2, pp=2), "tied=True"),
        (False, Plan(dp=2, tp=2, zero=1), "stage 3 without"),
        (False, Plan(dp=2, tp=2), "takes no DTensors"),
    ],
    ids=["tied", "zero 1", "DDP with tp"],
)
def test_what_torchs_parts_cannot_do_is_a_sentence(tied, plan, words):
    with pytest.raises(ValueError, match=words):
        TorchTrainer(GPT(GPTConfig.tiny(tied=tied)), plan)
