"""Chapter 11's runs: what they count and predict, not how fast this machine is."""

import os

import pytest
import torch

from helpers.chapters import scaling
from helpers.chapters.scaling import (
    CARD,
    Speedups,
    _take_cores,
    divided_steps,
    emulated_speedup,
    live_speedup,
    measure_noise_scale,
    share_cores,
)
from helpers.learner.words import use_language
from helpers.predict.scaling.laws import points_of
from helpers.predict.time.data_parallel import simulate_ddp_step
from helpers.specs import Link
from helpers.workloads import GPT, GPTConfig, characters, token_loss

LINK = Link.from_gigabits(10)


@pytest.mark.parametrize(("kind", "wholes"), [("strong", (6, 6)), ("weak", (6, 12))])
def test_live_ranks_share_a_batch_or_bring_one_each(ranks, kind, wholes):
    found = live_speedup(ranks, counts=(1, 2), batch=6, kind=kind)
    assert found.gpus == (1, 2) and found.speedups[0] == 1
    assert found.cores == len(set().union(*ranks[:2].run(scaling._cores)))
    assert [one.samples_per_second * one.seconds for one in found.points] == pytest.approx(wholes)


def test_it_says_who_shares_the_cores():
    points = points_of((1, 2, 4), (10.0, 18.0, 18.5), (0.1, 0.06, 0.05))
    assert "4 ranks share 2 cores" in repr(Speedups(points=points, cores=2))
    assert "each of 4 ranks may have one" in repr(Speedups(points=points, cores=8))
    with use_language("zh"):
        assert "2 个核" in repr(Speedups(points=points, cores=2))


@pytest.mark.parametrize(("kind", "part"), [("weak", 1.0), ("strong", 0.25)])
def test_the_speed_up_over_a_link_is_that_of_the_simulated_steps(monkeypatch, kind, part):
    """A link that behaves: what is played takes as long as was simulated."""
    monkeypatch.setattr(scaling, "emulate_ddp_step", simulate_ddp_step)
    found = emulated_speedup(LINK, counts=(1, 4), kind=kind)
    compute = CARD.forward_seconds + sum(CARD.seconds)
    assert found.speedups == pytest.approx(found.predicted)
    assert found.points[0].seconds == pytest.approx(compute)
    assert found.speedups[1] == pytest.approx(4 * part * compute / found.points[1].seconds)
    assert found.points[1].seconds > part * compute
    assert f"predicted {found.predicted[1]:.2f} times" in repr(found)


def test_cards_on_an_emulated_link_are_not_faster_than_predicted():
    found = emulated_speedup(LINK, counts=(1, 2))
    assert 0.1 * found.predicted[1] < found.speedups[1] < 1.02 * found.predicted[1]


def test_the_noise_scale_is_that_of_gradients_computed_on_one_process(ranks):
    found = measure_noise_scale(ranks[:2], batch=2, batches=3, trained=(0,), seed=5)
    torch.manual_seed(5)
    model, corpus = GPT(GPTConfig.tiny()), characters()
    small, large = [], []
    for step in range(3):
        tokens, targets = corpus.batch(step, 4, 32, seed=5)
        grads = []
        for rows in (slice(0, 2), slice(2, 4), slice(0, 4)):
            model.zero_grad()
            token_loss(model(tokens[rows]), targets[rows]).backward()
            grads.append(sum(float(one.grad.double().square().sum()) for one in model.parameters()))
        small += grads[:2]
        large.append(grads[2])
    few, many = sum(small) / 6, sum(large) / 3
    assert found[0].noise == pytest.approx((few - many) / (1 / 2 - 1 / 4), rel=1e-4)
    assert found[0].signal == pytest.approx((4 * many - 2 * few) / 2, rel=1e-4)


def test_gradients_agree_at_first_and_less_when_the_loss_has_fallen(ranks):
    scales = measure_noise_scale(ranks[:2], batch=4, batches=8, trained=(0, 40))
    assert scales[40].batch > 2 * scales[0].batch


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda ranks: live_speedup(ranks[:2], counts=(1, 2, 4)), "as many as you have ranks"),
        (lambda ranks: live_speedup(ranks[:2], counts=(2, 1)), "rising"),
        (lambda ranks: live_speedup(ranks[:2], counts=(1, 2), batch=5), "do not divide among 2 ranks"),
        (lambda ranks: live_speedup(ranks[:2], kind="both"), "strong, weak"),
        (lambda ranks: emulated_speedup(LINK, kind="both"), "strong, weak"),
        (lambda ranks: emulated_speedup(LINK, counts=(1, 16)), "emulate 1 to 8"),
        (lambda ranks: measure_noise_scale(ranks[:1]), "2 ranks or more"),
    ],
)
def test_what_cannot_be_is_answered_with_a_sentence(ranks, call, said):
    with pytest.raises(ValueError, match=said):
        call(ranks)


def test_both_parts_of_a_step_are_timed_on_a_free_clock(ranks):
    steps = divided_steps(ranks, batch=4, evaluated=3)
    assert list(steps) == [1, 2] and all(0 < step.serial and 0 < step.divided for step in steps.values())
    assert steps[1].total == steps[1].serial + steps[1].divided
    more = divided_steps(ranks, counts=(1,), batch=4, evaluated=30)[1]  # ten times as much for rank 0 alone
    assert more.serial / more.total > 1.5 * steps[1].serial / steps[1].total


@pytest.mark.parametrize("wrong", [dict(batch=3), dict(batch=0), dict(evaluated=0)])
def test_work_that_does_not_divide_is_refused(ranks, wrong):
    with pytest.raises(ValueError, match=r"give a batch that \[1, 2\] ranks can divide"):
        divided_steps(ranks, **wrong)


def in_one_core():
    if not hasattr(os, "sched_setaffinity"):
        return _take_cores(1)
    before = os.sched_getaffinity(0)
    try:
        return _take_cores(1)
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="only Linux says on which cores a process computes")
def test_a_rank_takes_as_few_cores_as_it_is_told(ranks):
    assert ranks[:2].run(in_one_core) == [1, 1]
    with pytest.raises(ValueError, match="give at least 1"):
        share_cores(ranks, cores=0)
