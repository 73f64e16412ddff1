"""The pipeline played short and drawn out equals the pipeline played whole; the closed form stands beside it."""

import pytest

from helpers.predict.time.terms.rhythm import closed_form, pipeline_seconds, played


@pytest.mark.parametrize("stages, microbatches, chunks", [(2, 9, 1), (4, 32, 1), (8, 64, 1), (4, 32, 2), (4, 40, 3)])
@pytest.mark.parametrize("ends", [1.0, 0.7, 1.3])
def test_a_long_pipeline_drawn_out_takes_as_long_as_one_played_whole(stages, microbatches, chunks, ends):
    forward = [ends, *[1.0] * (stages * chunks - 2), ends]
    backward = [2 * one for one in forward]
    whole = played(stages, microbatches, chunks, forward, backward)
    assert pipeline_seconds(stages, microbatches, chunks, forward, backward) == pytest.approx(whole, rel=0.03)
    assert closed_form(stages, microbatches, chunks, forward, backward) == pytest.approx(whole, rel=0.1)


def test_equal_stages_have_the_published_bubble():
    """Narayanan et al. 2021, section 2.2: (p - 1) / (m v) of the ideal time."""
    for chunks in (1, 2):
        parts = [1 / chunks] * 4 * chunks
        took = pipeline_seconds(4, 16, chunks, parts, [2 * one for one in parts])
        assert took / (16 * 3) - 1 == pytest.approx(3 / 16 / chunks)
