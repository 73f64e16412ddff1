"""What a curve lost: parts that were put in are found, and what cannot be told apart is said."""

import pytest

from helpers.predict.scaling import SOURCES_SPEEDUPS, expected_maximum, explain_curve

COUNTS = (1, 2, 4, 8, 16)


def test_the_expected_maximum_is_that_of_the_tables():
    """Teichroew 1956: 0.56419, 1.02938, 1.42360, 1.76599."""
    found = [expected_maximum(n) for n in COUNTS]
    assert found == pytest.approx([0, 0.56419, 1.02938, 1.42360, 1.76599], abs=1e-4)


def test_the_ring_of_resnet_152_takes_18_ms_and_does_not_make_11_of_16():
    fit = explain_curve()
    assert fit.ring[-1] == pytest.approx(18.2e-3, rel=0.01)
    assert fit.ring_alone[-1] > 12
    assert max(map(abs, fit.residues)) < 0.03
    small = explain_curve(images=32)  # there it would make fewer than 11 of 16, but 1.6 of 2 instead of 1.8
    assert small.ring_alone[-1] < SOURCES_SPEEDUPS[-1] and small.ring_alone[1] < 1.6


@pytest.mark.parametrize("part", ["gradients", "stragglers", "input"])
def test_a_part_that_was_put_in_alone_is_found(part):
    step, ring = explain_curve().step, explain_curve().ring
    lost = {
        "gradients": [0.8 * seconds / step for seconds in ring],
        "stragglers": [0.2 * expected_maximum(n) for n in COUNTS],
        "input": [0.02 * (n - 1) for n in COUNTS],
    }[part]
    fit = explain_curve(COUNTS, [n / (1 + one) for n, one in zip(COUNTS, lost, strict=True)], half_digit=0.001)
    found = {one.name: one.lost[-1] for one in fit.parts}
    assert found.pop(part) == pytest.approx(lost[-1], abs=0.02)
    assert max(found.values()) < 0.02


def test_five_printed_numbers_do_not_tell_stragglers_from_the_ring():
    gradients, stragglers, shared = explain_curve().parts[1:]
    assert gradients.low == stragglers.low == 0
    assert gradients.high > 0.1 and stragglers.high > 0.15
    assert shared.low <= shared.lost[-1] <= shared.high
    exact = explain_curve(COUNTS, [n / (1 + 0.2 * expected_maximum(n)) for n in COUNTS], half_digit=0.001)
    assert exact.parts[2].high - exact.parts[2].low < stragglers.high - stragglers.low


def test_a_fixed_batch_explains_the_same_curve_without_a_shared_input():
    """So the five numbers do not say either whether the batch grew."""
    fixed = explain_curve(images=1024, kind="strong")
    batch, shared = fixed.parts[0], fixed.parts[3]
    assert batch.low == batch.lost[-1] == batch.high > 0.2
    assert shared.lost[-1] < 0.02 and max(map(abs, fixed.residues)) < 0.04


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: explain_curve((2, 4, 8, 16), (2.0, 3.5, 6.0, 11.0)), "from 1 GPU on"),
        (lambda: explain_curve((1, 4, 2, 8), (1.0, 3.5, 1.9, 6.0)), "order the counts"),
        (lambda: explain_curve((1, 2), (1.0, 1.8)), "give 4 or more"),
        (lambda: explain_curve(half_digit=2.0), "give 0.05"),
        (lambda: explain_curve(kind="strong", images=24), "does not divide images"),
        (lambda: explain_curve(kind="fixed"), "strong, weak"),
    ],
)
def test_what_cannot_be_is_answered_with_a_sentence(call, said):
    with pytest.raises(ValueError, match=said):
        call()
