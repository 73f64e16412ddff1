"""Chapter 11's runs: what they count and predict, not how fast this machine is."""

import pytest
import torch

from helpers.chapters import scaling
from helpers.chapters.scaling import (
    CARD,
    emulated_speedup,
    measure_noise_scale,
)
from helpers.predict.time.data_parallel import simulate_ddp_step
from helpers.specs import Link
from helpers.workloads import GPT, GPTConfig, characters, token_loss

LINK = Link.from_gigabits(10)


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
        (lambda ranks: emulated_speedup(LINK, kind="both"), "strong, weak"),
        (lambda ranks: emulated_speedup(LINK, counts=(1, 16)), "emulate 1 to 8"),
        (lambda ranks: measure_noise_scale(ranks[:1]), "2 ranks or more"),
    ],
)
def test_what_cannot_be_is_answered_with_a_sentence(ranks, call, said):
    with pytest.raises(ValueError, match=said):
        call(ranks)
