"""Fixtures that every test may use. Ranks are started once a session: a test that needs ranks reuses them."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def ranks():
    """Four ranks on CPU; `ranks[:1]`, `ranks[:2]` and `ranks[:3]` are warm smaller worlds."""
    from helpers.ranks import Ranks

    with Ranks(4, device="cpu", timeout=120, quiet=True) as pool:
        yield pool


@pytest.fixture(params=[1, 2, 3, 4])
def world(request, ranks):
    """Ranks of each size from 1 to 4 in turn."""
    return ranks[: request.param]
