from __future__ import annotations

import pytest

from tests.ranks.kernel import Kernel


@pytest.fixture(scope="module")
def kernel():
    """A Jupyter kernel with four ranks."""
    kernel = Kernel()
    try:
        reply = kernel.run("from helpers.ranks import Ranks, RankError\nranks = Ranks(4, device='cpu')")
        assert reply.error is None, reply.shown
        yield kernel
    finally:
        kernel.close()
