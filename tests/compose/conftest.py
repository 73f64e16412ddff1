"""Eight ranks for meshes; smaller ones are slices of them."""

from __future__ import annotations

import pytest

from helpers.ranks import Ranks


@pytest.fixture(scope="package")
def eight():
    with Ranks(8, device="cpu", timeout=120, quiet=True) as pool:
        yield pool
