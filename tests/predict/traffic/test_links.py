"""Which link an axis crosses, and what is left of the network for one of several groups."""

from helpers.predict.traffic.axes import axis_link
from helpers.specs import GPUS, LINKS, Cluster
from helpers.specs.mesh import Mesh


def test_groups_that_leave_a_node_side_by_side_share_its_network_and_a_stage_talks_to_its_neighbours_alone():
    parts = {"gpu": GPUS["H100"], "intra": LINKS["NVLink 4"], "inter": LINKS["100 Gb/s"]}
    cluster, mesh = Cluster(**parts, gpus_per_node=4, num_nodes=4), Mesh(dp=2, pp=4, tp=2)
    assert axis_link(cluster, mesh, "tp", 0) == axis_link(cluster, mesh, "dp", 5) == cluster.intra
    assert axis_link(cluster, mesh, "pp", 0).bandwidth == LINKS["100 Gb/s"].bandwidth / 4
    wide = Cluster(**parts, gpus_per_node=8, num_nodes=2)
    assert [axis_link(wide, mesh, "pp", rank) == wide.intra for rank in (0, 4, 8, 12)] == [True, False, False, True]
    assert axis_link(cluster, Mesh(dp=4), "tp", 0) is None
