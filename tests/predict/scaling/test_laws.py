"""Speed-up and its laws: by hand, against each other, and through measurements with a wrong one."""

import random

import pytest

from helpers.predict.scaling import amdahl, efficiency, fit_amdahl, gustafson, serial_share, speedup

COUNTS = (1, 2, 4, 8, 16, 32)


def test_the_smallest_count_passes_for_perfect():
    assert speedup((4, 2, 8), (180.0, 100.0, 320.0)) == pytest.approx((3.6, 2.0, 6.4))
    assert efficiency((4, 2, 8), (3.6, 2.0, 6.4)) == pytest.approx((0.9, 1.0, 0.8))


def test_amdahl_and_gustafson_are_one_law_seen_from_both_ends():
    assert amdahl(4, 0.2) == pytest.approx(2.5)
    assert gustafson(4, 0.2) == pytest.approx(3.4)
    serial = 0.1  # of the time on one; on 8 it is this share of the time
    on_eight = serial / (serial + (1 - serial) / 8)
    assert gustafson(8, on_eight) == pytest.approx(amdahl(8, serial))


def test_karp_and_flatt_turn_amdahl_around_and_see_an_overhead_grow():
    assert [serial_share(n, amdahl(n, 0.07)) for n in COUNTS[1:]] == pytest.approx([0.07] * 5)
    with_overhead = [serial_share(n, 1 / (1 / n + 0.01 * n)) for n in COUNTS[1:]]
    assert with_overhead == sorted(with_overhead)
    with pytest.raises(ValueError, match="measure on 2 or more"):
        serial_share(1, 1.0)


@pytest.mark.parametrize("seed", range(5))
def test_the_fit_finds_the_serial_share_under_noise(seed):
    noise = random.Random(seed)
    fit = fit_amdahl(COUNTS, [amdahl(n, 0.05) * noise.uniform(0.98, 1.02) for n in COUNTS])
    assert fit.serial == pytest.approx(0.05, abs=0.01)
    assert fit.outlier is None


@pytest.mark.parametrize("wrong", COUNTS)
def test_one_wrong_measurement_is_named_and_bends_nothing(wrong):
    fit = fit_amdahl(COUNTS, [amdahl(n, 0.05) * (0.7 if n == wrong else 1.0) for n in COUNTS])
    assert fit.outlier == wrong
    assert fit.serial == pytest.approx(0.05)
    assert fit.residues[COUNTS.index(wrong)] == pytest.approx(-0.3)
    assert f"The row of {wrong} GPU" in repr(fit)


def test_of_four_rows_none_is_called_wrong_and_a_perfect_one_has_no_largest_speed_up():
    assert fit_amdahl((1, 2, 4, 8), (1.0, 2.0, 2.5, 8.0)).outlier is None
    perfect = fit_amdahl((1, 2, 4), (1.0, 2.1, 4.4))
    assert (perfect.serial, perfect.largest) == (0, float("inf"))
    assert "no largest speed-up" in repr(perfect)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: speedup((1, 2), (1.0,)), "2 counts of GPUs and 1 values"),
        (lambda: speedup((1, 1), (1.0, 2.0)), "name one twice"),
        (lambda: speedup((0,), (1.0,)), "at least 1"),
        (lambda: efficiency((1, 2), (1.0, -2.0)), "the value of 2 GPUs"),
        (lambda: speedup((1,), (float("inf"),)), "infinite"),
        (lambda: amdahl(4, 5), "5 % is 0.05"),
        (lambda: amdahl(0, 0.1), "at least 1"),
        (lambda: fit_amdahl((4,), (1.0,)), "give 2 or more pairs"),
    ],
)
def test_what_cannot_be_is_answered_with_a_sentence(call, said):
    with pytest.raises(ValueError, match=said):
        call()
