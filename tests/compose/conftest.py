"""Eight ranks for meshes; smaller ones are slices of them."""

import pytest

from tests.conftest import make_ranks


@pytest.fixture(scope="package")
def eight(request):
    with make_ranks(8, request.config.getoption("--device")) as pool:
        yield pool
