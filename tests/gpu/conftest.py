"""Everything here needs an NVIDIA GPU that torch can use, and is skipped where there is none.

With `--device card` it runs on practice cards, one here and one on each of two ranks, but for what needs CUDA itself:
that says `@pytest.mark.cuda("why")`.
"""

from pathlib import Path

import pytest

from helpers.devices import cards
from helpers.ranks.processes.limits import num_gpus

HERE, MEMORY = Path(__file__).parent, 500_000_000


def on_cards(config: pytest.Config) -> bool:
    return config.getoption("--device") == "card"


def pytest_configure(config: pytest.Config) -> None:
    if on_cards(config):
        cards.install(MEMORY)  # before the first backward, and before the tests ask tests/gpu/device.py


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    missing = pytest.mark.skip(reason="torch sees no NVIDIA GPU here")
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            if num_gpus() == 0 and not on_cards(config):
                item.add_marker(missing)


@pytest.fixture(scope="module")
def on_nccl(request):
    """One rank on each GPU, talking through NCCL; a single rank on a machine with one GPU. Or two with a card each."""
    from helpers.ranks import Ranks
    from tests.conftest import make_ranks

    card = on_cards(request.config)
    with make_ranks(2, "card") if card else Ranks(num_gpus(), device="cuda", timeout=150, quiet=True) as pool:
        yield pool


@pytest.fixture(scope="module")
def on_shared_gpu():
    """More ranks than GPUs: they share the GPUs and talk through gloo."""
    from helpers.ranks import Ranks

    with Ranks(num_gpus() + 1, device="cuda", timeout=150, quiet=True) as pool:
        yield pool
