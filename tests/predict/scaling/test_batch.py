"""The learning rate of a larger batch, and the gradient noise scale of gradients whose noise is known."""

import numpy as np
import pytest

from helpers.predict.scaling import critical_batch, noise_scale, scaled_lr


def test_the_noise_scale_of_known_gradients_is_found_without_bias():
    """Gradients of mean 0.3 in each of 50 directions and variance 4: S / G . G is 200 / 4.5."""
    draw = np.random.default_rng(0)
    samples = draw.normal(0.3, 2.0, size=(400, 64, 50))
    squares = [(samples.reshape(-1, size, 50).mean(axis=1) ** 2).sum(axis=1) for size in (8, 64)]
    found = noise_scale(8, 64, *squares)
    assert found.noise == pytest.approx(200, rel=0.03)
    assert found.batch == pytest.approx(200 / 4.5, rel=0.1)


def test_gradients_without_a_mean_have_no_noise_scale():
    drowned = noise_scale(1, 4, [4.0], [0.9])
    assert drowned.signal < 0 and drowned.batch != drowned.batch
    assert "cannot be told from 0" in repr(drowned)


def test_the_critical_batch_is_found_from_the_steps_of_several_batches():
    batches = (8, 32, 128, 512)
    steps = [100 * (1 + 60 / batch) for batch in batches]
    assert critical_batch(batches, steps) == pytest.approx(60)


def test_the_learning_rate_grows_with_the_batch_or_with_its_root():
    assert scaled_lr(0.1, 1024, 256) == pytest.approx(0.4)
    assert scaled_lr(0.1, 1024, 256, "sqrt") == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: noise_scale(8, 8, [1.0], [1.0]), "a small and a larger one"),
        (lambda: noise_scale(0, 8, [1.0], [1.0]), "at least 1"),
        (lambda: critical_batch((8, 8), (10.0, 10.0)), "two batches or more"),
        (lambda: critical_batch((8, 16), (10.0, 30.0)), "do not fall"),
        (lambda: scaled_lr(0.1, 0, 256), "above 0"),
        (lambda: scaled_lr(0.1, 512, 256, "cubic"), "linear, sqrt"),
    ],
)
def test_what_cannot_be_is_answered_with_a_sentence(call, said):
    with pytest.raises(ValueError, match=said):
        call()
