"""Everything in this folder needs an NVIDIA GPU that torch can use, and is skipped where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.ranks.limits import num_gpus

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items):
    missing = pytest.mark.skip(reason="torch sees no NVIDIA GPU here")
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            if num_gpus() == 0:
                item.add_marker(missing)


@pytest.fixture(scope="module")
def on_nccl():
    """One rank on each GPU, talking through NCCL; a single rank on a machine with one GPU."""
    from helpers.ranks import Ranks

    with Ranks(num_gpus(), device="cuda", timeout=150, quiet=True) as pool:
        yield pool


@pytest.fixture(scope="module")
def on_shared_gpu():
    """More ranks than GPUs: they share the GPUs and talk through gloo."""
    from helpers.ranks import Ranks

    with Ranks(num_gpus() + 1, device="cuda", timeout=150, quiet=True) as pool:
        yield pool
