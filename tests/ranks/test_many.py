"""A world of many ranks: what each would import by itself is imported once, before they are forked."""

from __future__ import annotations

import sys

import pytest

from helpers.ranks import Ranks
from helpers.ranks.zygote import FORKS, MANY


def has_compiler():
    return "torch._dynamo" in sys.modules


@pytest.mark.skipif(not FORKS, reason="only forked ranks share memory")
def test_many_ranks_share_what_their_first_optimizer_imports():
    with Ranks(MANY, device="cpu", quiet=True, timeout=120) as many:
        assert all(many.run(has_compiler))
