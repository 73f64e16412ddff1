"""Lab 13's checks: their right answers are what the course's context parallelism does."""

import pytest

from helpers.grading.long_context import sequence
from helpers.parallel.context_parallel import token_indices


# -- 13.zigzag -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("num_tokens", [1, 2, 5, 8, 11, 16, 29])
def test_the_zigzag_is_that_of_the_ring(num_tokens, num_ranks):
    shards, places = sequence.zigzag(num_tokens, num_ranks)
    assert shards == [indices.tolist() for indices in token_indices(num_tokens, num_ranks, zigzag=True)]
    joined = sum(shards, [])
    assert [joined[place] for place in places] == list(range(num_tokens))
