"""Measured curves: read from a file, and explained by their parts."""

from __future__ import annotations

import numpy as np
import pytest

from helpers.learner.words import use_language
from helpers.predict.scaling import SOURCES_SPEEDUPS, expected_maximum, explain_curve, read_measurements
from helpers.predict.scaling.measured_curves import GRID

LAW = [n / (1 + 0.05 * (n - 1)) for n in (1, 2, 4, 8, 16)]


def test_a_file_and_its_text_are_read_alike(tmp_path):
    text = "gpus,samples per second\n" + "\n".join(f"{2**i},{100 * one}" for i, one in enumerate(LAW))
    path = tmp_path / "mine.csv"
    path.write_text(text, encoding="utf-8-sig")
    found = read_measurements(path)
    assert found == read_measurements(str(path)) == read_measurements(text)
    assert found.speedups == pytest.approx(LAW)
    assert found.points[1].efficiency == pytest.approx(LAW[1] / 2)
    assert found.fit.serial == pytest.approx(0.05) and not found.notes


@pytest.mark.parametrize(
    "text",
    [
        "world_size;img/s\n1;100\n2;190\n",
        "tokens/s\tranks\n100\t1\n190\t2\n",
        "卡数,吞吐\n1,100\n2,190\n",
        "step time (s),n,throughput\n0.1,1,100\n0.2,2,190\n",
        "1 100\n2 190\n",
        "# mine\n\nGPUs , Samples/sec\n1 , 100\n2,1.9e2,\n",
    ],
)
def test_a_header_in_other_words_is_understood(text):
    found = read_measurements(text)
    assert (found.gpus, found.rates, found.notes) == ((1, 2), (100, 190), ())


@pytest.mark.parametrize(
    ("text", "gpus", "said"),
    [
        ("a,b\n1,100\n2,190", (1, 2), "line 1: the header 'a, b' was not understood"),
        ("1,100\n4,360\n2,190", (1, 2, 4), "line 3: 2 GPUs came out of order"),
        ("1,100\n2,190\n2,180", (1, 2), "line 3: 2 GPUs appeared before; the mean of 190 and 180"),
        ("2,200\n4,380", (2, 4), "line 1: no row is of 1 GPU, so speed-up is relative to 2 GPUs"),
        ("1,100\n2,1900", (1, 2), "line 2: 1900 on 2 GPUs is 9.50 times the ideal"),
        ("1,100\n2,19", (1, 2), "line 2: 19 on 2 GPUs is less than on the smallest count"),
    ],
)
def test_what_is_odd_is_said_and_read_all_the_same(text, gpus, said):
    found = read_measurements(text)
    assert found.gpus == gpus
    assert [str(note) for note in found.notes if said in str(note)]
    assert said in repr(found)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1,100\n3O,200", "line 2: '3O' is not a count of GPUs"),
        ("1,100\n-2,200", "line 2: '-2' is not a count"),
        ("1,100\n2.5,200", "line 2: '2.5' is not a count"),
        ("1,100\n2,-200", "line 2: '-200' is not a number of samples"),
        ("1,100\n2,fast", "line 2: 'fast' is not a number"),
        ("1,100\n2,1e999", "line 2: '1e999' is not a number"),
        ("1;100\n2;1 900,5", "line 2: '1 900,5' is not a number"),
        ("1,100\n2\n", "line 2: '2' does not have two columns"),
        ("1,x\n-1,5\n", "line 1: 'x'.* line 2: '-1'"),
        ("gpus,seconds\n1,0.5", "line 1: the column 'seconds' holds seconds"),
        ("gpus,rate\n", "no measurements"),
        ("\n\n", "no measurements"),
        ("nowhere.csv", "there is no file nowhere.csv"),
    ],
)
def test_what_cannot_be_read_names_line_and_value(text, said):
    with pytest.raises(ValueError, match=said):
        read_measurements(text)


def test_a_wrong_row_among_many_is_named_by_the_fit():
    rows = [f"{2**i},{100 * one * (0.6 if i == 2 else 1)}" for i, one in enumerate(LAW)]
    assert "The row of 4 GPUs was left out, because it is -40%" in repr(read_measurements("\n".join(rows)))


def test_it_speaks_chinese_too():
    with use_language("zh"):
        assert "效率" in repr(read_measurements("1,100\n2,190"))
        with pytest.raises(ValueError, match="第 2 行"):
            read_measurements("1,100\nx,190")


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


@pytest.mark.parametrize("images", [64, 32])
def test_no_mix_on_the_whole_grid_is_better_or_wider_than_the_one_that_was_found(images):
    fit = explain_curve(images=images)
    counts, speedups = np.array(COUNTS), np.array(SOURCES_SPEEDUPS)
    rows = [np.array(fit.ring) / fit.step, [expected_maximum(n) for n in COUNTS], counts - 1]
    lost = counts[-1] / speedups[-1] - 1
    ends = [1.0, 1.2 * lost / rows[1][-1], 1.2 * lost / rows[2][-1]]
    mixes = np.stack(np.meshgrid(*(np.linspace(0, end, GRID) for end in ends)), axis=-1).reshape(-1, 3)
    errors = (1 + mixes @ np.stack(rows)) * speedups / counts - 1
    best = (errors**2).sum(axis=1).argmin()
    fits = (abs(errors) <= np.maximum(0.05 / speedups, abs(errors[best]).max())).all(axis=1)
    for part, row, mix in zip(fit.parts[1:], rows, mixes.T, strict=True):
        found = [part.lost[-1], part.low, part.high]
        assert found == pytest.approx([mix[best] * row[-1], min(mix[fits]) * row[-1], max(mix[fits]) * row[-1]])


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
