"""Does it fit, what dominates, and is the change offered the smallest one that works."""

from dataclasses import replace
from itertools import combinations

import pytest

from helpers.predict.advice.fit import NEXT_TO_FREE, USABLE_SHARE, Move, apply_moves, fit, fullest_stage, moves
from helpers.predict.memory import memory
from helpers.quantities.costs import sent_bytes
from helpers.specs import GPUS, PRESETS, Plan

LLAMA, XL, H100, V100 = PRESETS["llama3-8b"], PRESETS["gpt2-xl"], GPUS["H100"], GPUS["V100"]


def fits(model, plan, gpu):
    return plan is not None and fullest_stage(model, plan)[1].total <= USABLE_SHARE * gpu.memory


def test_a_plan_that_fits_says_so_and_changes_nothing():
    advice = fit(PRESETS["gpt2"], Plan(micro_batch=4), V100)
    assert advice.fits and advice.changes == () and advice.suggested == Plan(micro_batch=4)
    assert advice.text.startswith("It fits: ") and "30.1 GB usable (94 % of 32.0 GB)" in advice.text
    assert advice.remedy == ""


def test_what_dominates_is_the_largest_kind():
    advice = fit(LLAMA, Plan(dp=8), H100)
    assert advice.memory.dominant == "optimizer"
    assert "The largest part is optimizer state: 96.4 GB, 56 %." in advice.text
    assert fit(LLAMA, Plan(dp=8, zero=3, micro_batch=4), H100).memory.dominant == "activations"


def test_one_change_is_said_with_what_it_saves_and_costs():
    advice = fit(XL, Plan(dp=8, micro_batch=2), V100)
    assert [move.field for move in advice.changes] == ["zero"] and advice.suggested.zero == 1
    assert advice.remedy == "Smallest change: ZeRO-1 instead of 0: 31.1 GB → 14.8 GB, costs nothing in traffic."


@pytest.mark.parametrize(
    ("model", "plan", "gpu", "fields"),
    [
        ("llama3-8b", Plan(dp=8), "H100", ["zero"]),
        ("llama3-8b", Plan(dp=8, zero=3, micro_batch=4), "H100", ["micro_batch"]),
        ("llama3-70b", Plan(dp=64), "H100", ["zero", "recompute"]),
        ("llama3-70b", Plan(dp=2, tp=8, pp=4, num_microbatches=8), "H100", ["sequence_parallel"]),
        ("gpt3-175b", Plan(tp=8, pp=8, num_microbatches=64, attention="materialized"), "A100", None),
    ],
)
def test_nothing_cheaper_works(model, plan, gpu, fields):
    """By brute force, each rule in its turn: next to free, one change, two changes."""
    model, gpu = PRESETS[model], GPUS[gpu]
    advice, known = fit(model, plan, gpu), moves(model, plan)
    pairs = [pair for pair in combinations(known, 2) if pair[0].field != pair[1].field]
    choices = [*((move,) for move in known), *pairs]
    working = [chosen for chosen in choices if fits(model, apply_moves(model, plan, chosen), gpu)]
    assert advice.changes in working and not fits(model, plan, gpu)
    free = [chosen for chosen in working if max(move.order for move in chosen) <= NEXT_TO_FREE]
    fewest = min(len(chosen) for chosen in free or working)
    rivals = [chosen for chosen in free or working if len(chosen) == fewest]
    assert len(advice.changes) == fewest
    assert max(m.order for m in advice.changes) == min(max(m.order for m in rival) for rival in rivals)
    assert fields is None or [move.field for move in advice.changes] == fields


def test_two_free_changes_go_before_one_that_slows_the_step():
    """Korthikanti et al. 2022: sequence parallelism with selective recomputation instead of full recomputation."""
    plan = Plan(tp=8, pp=8, num_microbatches=64, attention="materialized", micro_batch=2, zero=1)
    advice = fit(PRESETS["gpt3-175b"], plan, replace(GPUS["A100"], memory=90e9))
    assert [move.field for move in advice.changes] == ["attention", "sequence_parallel"]
    assert fits(PRESETS["gpt3-175b"], replace(plan, recompute="full"), replace(GPUS["A100"], memory=90e9))


def test_more_than_two_changes_are_as_few_as_can_be():
    plan = Plan(dp=8, attention="materialized", micro_batch=4)
    advice = fit(PRESETS["llama3-70b"], replace(plan, dp=16), H100)
    assert len(advice.changes) > 2 and advice.suggested.world_size == 16
    for left_out in advice.changes:
        fewer = [move for move in advice.changes if move is not left_out]
        assert not fits(PRESETS["llama3-70b"], apply_moves(PRESETS["llama3-70b"], replace(plan, dp=16), fewer), H100)


def test_world_size_and_global_batch_stay():
    plan = Plan(dp=16, micro_batch=4, num_microbatches=2)
    for move in moves(LLAMA, plan):
        new = apply_moves(LLAMA, plan, (move,))
        if new is None:
            assert move.field == "sequence_parallel" or move.value > 16
            continue
        assert new.world_size == 16 and getattr(new, move.field) == move.value
        assert new.dp * new.micro_batch * new.num_microbatches == 16 * 4 * 2


@pytest.mark.parametrize(("model", "num_ranks"), [("llama3-8b", 2), ("llama3-405b", 64)])
def test_gpus_are_added_only_where_nothing_else_helps(model, num_ranks):
    model = PRESETS[model]
    advice = fit(model, Plan(), H100)
    assert advice.suggested.world_size >= num_ranks and fits(model, advice.suggested, H100)
    assert f"Not on 1 GPU. {advice.suggested.world_size} GPUs are enough with " in advice.remedy
    pairs = combinations(moves(model, Plan()), 2)
    assert not any(fits(model, apply_moves(model, Plan(), pair), H100) for pair in pairs)


def test_what_fits_nowhere_gets_a_sentence():
    tiny = replace(H100, memory=1e6)
    advice = fit(LLAMA, Plan(), tiny)
    assert advice.suggested is None
    assert advice.remedy.startswith("No change that this search tries makes it fit; shorten the sequence")


def test_the_fullest_rank_is_the_fullest_of_all_stages():
    for plan in (Plan(pp=8, num_microbatches=16), Plan(pp=4, num_microbatches=1), Plan(pp=16, tp=8, zero=3, dp=2)):
        for model in (LLAMA, PRESETS["gpt3-175b"], PRESETS["gpt2"]):
            if model.num_layers % plan.pp or model.num_heads % plan.tp:
                continue
            everything = [memory(model, plan, stage).total for stage in range(plan.pp)]
            assert fullest_stage(model, plan)[1].total == max(everything)


def test_tensor_parallelism_stays_in_its_node():
    assert max(move.value for move in moves(LLAMA, Plan(dp=64), gpus_per_node=4) if move.field == "tp") == 4


@pytest.mark.parametrize(
    ("move", "plan", "cost"),
    [
        (Move(field="zero", value=2, order=6), Plan(dp=8), "costs nothing in traffic"),
        (Move(field="zero", value=2, order=6), Plan(dp=8, num_microbatches=4), "reduce-scatter in each of 4 micro-b"),
        (Move(field="zero", value=3, order=8), Plan(dp=8), "costs half as much traffic again"),
        (Move(field="zero", value=3, order=8), Plan(dp=8, num_microbatches=16), "in each of 16 micro-batches"),
        (Move(field="sequence_parallel", value=True, order=3), Plan(tp=8), "a quarter more traffic in each layer"),
    ],
)
def test_a_change_says_what_it_costs(move, plan, cost):
    assert cost in move.cost(plan)


def test_the_quarter_of_sequence_parallelism_is_that_of_a_ring():
    """Four all-reduces a layer become as many gathers and scatters, and two more gathers of half an all-reduce each."""
    extra = 2 * sent_bytes("all_gather", 1000, 8, "ring") / (4 * sent_bytes("all_reduce", 1000, 8, "ring"))
    assert extra == pytest.approx(0.25)


def test_moves_are_in_their_order_and_only_those_that_change_something():
    known = moves(LLAMA, Plan(dp=8, zero=2, recompute="full", optimizer="sgd", micro_batch=6))
    assert [move.order for move in known] == sorted(move.order for move in known)
    first = [("sequence_parallel", True), ("micro_batch", 3), ("zero", 3)]
    assert [(move.field, move.value) for move in known][:3] == first
    assert not {"optimizer", "recompute", "attention"} & {move.field for move in known}


def test_advice_is_remembered():
    assert fit(LLAMA, Plan(dp=8), H100) is fit(LLAMA, Plan(dp=8), H100)
