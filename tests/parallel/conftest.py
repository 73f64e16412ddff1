"""Provides worlds of 3 and 4 ranks by default; sizes 1 and 2, which one model per strategy runs anyway, are slow."""

import pytest


@pytest.fixture(params=[*(pytest.param(size, marks=pytest.mark.slow) for size in (1, 2)), 3, 4])
def world(request, ranks):
    """Ranks of each size in turn."""
    return ranks[: request.param]
