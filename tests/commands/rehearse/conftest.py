"""One hash seed for all rehearsals of a test process, since each other one costs the start of a zygote."""

from __future__ import annotations

import pytest

from helpers.ranks.processes import spec

LAST_DIGITS = 4  # of the seeds that are drawn, on which the hash seed depends


@pytest.fixture(autouse=True, scope="session")
def one_hash_seed():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spec, "_last_digits", lambda: LAST_DIGITS)
        yield
