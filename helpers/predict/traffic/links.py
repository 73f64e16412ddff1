"""Which link the messages of an axis cross: the links inside a node, or its network, which its groups share."""

from __future__ import annotations

from functools import lru_cache

from helpers.specs import Cluster, Link
from helpers.specs.mesh import Mesh


def axis_link(cluster: Cluster, mesh: Mesh, axis: str, rank: int) -> Link | None:
    """The slowest link between `rank` and those it talks to on an axis; None where it is alone on it.

    Nodes hold neighbouring ranks. A pipeline talks to the stages before and after, the other axes to their whole ring.
    Where groups of one axis leave a node side by side, each gets its share of the network (`Cluster.network_for`).
    """
    group = mesh.ranks_along(axis, rank)
    if len(group) == 1:
        return None
    here, place = rank // cluster.gpus_per_node, group.index(rank)
    peers = group[max(0, place - 1) : place + 2] if axis == "pp" else group
    if all(peer // cluster.gpus_per_node == here for peer in peers):
        return cluster.intra
    return cluster.network_for(_leaving(mesh, axis, cluster.gpus_per_node, here))


@lru_cache(maxsize=512)
def _leaving(mesh: Mesh, axis: str, gpus_per_node: int, node: int) -> int:
    """How many groups of the axis have ranks in this node and in others."""
    nodes = ({rank // gpus_per_node for rank in group} for group in mesh.groups(axis))
    return sum(node in each and len(each) > 1 for each in nodes)
