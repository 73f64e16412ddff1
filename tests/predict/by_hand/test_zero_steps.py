"""The explorer's numbers are those of Zero3 on live ranks and of torch's Adam on the mean loss.

The bytes of a rank are those of `model_states`."""

import cloudpickle
import pytest
import torch
from torch import nn

from helpers.predict.by_hand.zero_steps import (
    BYTES,
    EVERY,
    KINDS,
    LAYERS,
    OWN,
    RANKS,
    STAGES,
    STALE,
    elements,
    messages,
    recorded,
    seconds,
    sent_bytes,
    zero_steps,
)
from helpers.predict.memory.states import model_states
from helpers.predict.traffic.zero import data_parallel_share, stage1_share, stage2_share, stage3_share
from helpers.specs import Link, Plan
from tools import record_explorers
from tools.record_explorers import BATCHES, TARGETS, Circular

cloudpickle.register_pickle_by_value(record_explorers)


def test_the_numbers_are_those_of_a_run(ranks):
    assert record_explorers.record_zero_steps(ranks) == recorded()


def test_one_process_ends_with_the_same_numbers():
    """Torch's Adam on the mean of the ranks' losses."""
    model = nn.Sequential(*map(Circular, record_explorers.WEIGHTS))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    losses = [(model(batch) - target).square().sum() / 2 for batch, target in zip(BATCHES, TARGETS, strict=True)]
    (sum(losses) / RANKS).backward()
    optimizer.step()
    for layer, weight in zip(LAYERS, model.parameters(), strict=True):
        found = {"means": weight.grad, "updated": weight, "moments": optimizer.state[weight]["exp_avg"]}
        for kind, tensor in found.items():
            assert recorded()[kind][layer] == pytest.approx(tensor.tolist(), abs=1e-6)


@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_ends_with_the_same_numbers(stage):
    for kind, name in zip(KINDS, ("updated", "means", "moments"), strict=True):
        for layer, index in elements():
            copies = [held[kind].get((layer, index)) for held in zero_steps(stage)[-1].copies]
            values = {copy.value for copy in copies if copy and copy.state != STALE}
            assert values == {recorded()[name][layer][index]}


@pytest.mark.parametrize("stage", STAGES)
def test_all_ranks_together_hold_every_number_at_every_step(stage):
    """Nothing is lost: of each number some rank has one that is good for something."""
    for step in zero_steps(stage):
        for kind in ("parameters", "optimizer"):
            held = {place for rank in step.copies for place, number in rank[kind].items() if number.state != STALE}
            assert held == set(elements())
        owned = [place for rank in step.copies for place, number in rank["optimizer"].items() if number.state == OWN]
        assert len(owned) == len(set(owned)) == (0 if stage == 0 else len(elements()))


def test_the_terms_of_the_ranks_are_averaged_to_whole_numbers():
    """The batches are chosen so, to be followed by eye."""
    for layer, means in recorded()["means"].items():
        terms = zip(*(own[layer] for own in recorded()["terms"]), strict=True)
        assert means == [sum(values) / RANKS for values in terms] and all(isinstance(mean, int) for mean in means)


@pytest.mark.parametrize("stage", STAGES)
def test_a_rank_weighs_what_model_states_says(stage):
    """At the end of a step, when gradients are still there: 2 + 2 + 12 bytes a number."""
    expected = model_states(len(elements()), Plan(dp=RANKS, zero=stage))
    last = zero_steps(stage)[-1]
    for rank in range(RANKS):
        assert [last.num_bytes(rank, kind) for kind in KINDS] == [getattr(expected, kind) for kind in KINDS]
        assert last.total_bytes(rank) == expected.total


def test_stage_3_holds_one_layer_whole_at_a_time():
    peaks = [max(step.num_bytes(0, "parameters") for step in zero_steps(stage)) for stage in STAGES]
    assert peaks == [18, 18, 18, BYTES["parameters"] * (3 + 2)]
    for step in zero_steps(3):
        whole = [name for name in LAYERS if all((name, n) in step.copies[0]["parameters"] for n in range(3))]
        assert len(whole) <= 1


@pytest.mark.parametrize("stage", STAGES)
def test_a_rank_computes_from_what_it_holds_and_nothing_else(stage):
    for step in zero_steps(stage):
        if step.action in ("compute", "gradients"):
            for held in step.copies:
                assert set(elements(step.layers)) <= set(held["parameters"])


def test_gathered_numbers_are_everybodys_and_freed():
    gathered, computed, freed = zero_steps(3)[1:4]
    assert gathered.copies[0]["parameters"]["a", 1].state == EVERY
    assert gathered.copies[0]["parameters"]["a", 0].state == OWN
    assert computed.written == {("parameters", "a")}
    assert freed.copies == zero_steps(3)[0].copies


def test_in_an_update_the_numbers_of_others_become_old():
    update, gathered = zero_steps(1)[-2:]
    assert update.copies[0]["parameters"]["a", 1].state == STALE
    assert all(number.state == EVERY for held in gathered.copies for number in held["parameters"].values())


@pytest.mark.parametrize("world_size", [1, 3, 64])
def test_what_is_sent_is_what_the_closed_forms_say(world_size):
    shares = (data_parallel_share, stage1_share, stage2_share, stage3_share)
    for stage, share in zip(STAGES, shares, strict=True):
        assert sent_bytes(stage, 1000, world_size) == pytest.approx(2 * 1000 * share(world_size))


def test_what_is_sent_so_far():
    assert [round(sent_bytes(3, 9, 3, until)) for until in (1, 2, 3, 5, 20, None)] == [0, 4, 4, 8, 36, 36]
    assert [(one.op, one.layers) for one in messages(1)] == [("reduce_scatter", "abc"), ("all_gather", "abc")]


def test_seconds_count_every_message():
    link = Link(latency=1.0, bandwidth=1e30)
    rounds = {0: 3 * 4, 1: 2 * 2, 2: 4 * 2, 3: 9 * 2}
    assert {stage: round(seconds(stage, 9, 3, link)) for stage in STAGES} == rounds


def test_a_stage_that_is_not_there_gets_a_sentence():
    with pytest.raises(ValueError, match="there is no ZeRO stage 4; take one of 0, 1, 2, 3"):
        zero_steps(4)
