"""Who sends to whom."""

import pytest

from helpers.draw import Line, topology_scene


@pytest.mark.parametrize(("kind", "edges"), [("ring", 5), ("star", 4)])
def test_topologies_have_their_edges(kind, edges):
    scene = topology_scene(kind, 5)
    assert sum(isinstance(item, Line) for item in scene.items) == edges
    assert {f"rank {rank}" for rank in range(5)} <= {label.text for label in scene.labels()}
