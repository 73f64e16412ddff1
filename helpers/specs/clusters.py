"""Clusters to calculate with: one GPU, one node, many nodes with a slow or a fast network."""

from __future__ import annotations

from helpers.specs.hardware import GPUS, LINKS, Cluster, Link

# 6 links of 25 GB/s each way: NVIDIA's V100 data sheet. PCIe 3 x16 carries half of what PCIe 4 does.
NVLINK_2 = Link(latency=3e-6, bandwidth=150e9, name="NVLink 2 (V100, one way)")
PCIE_3 = Link(latency=5e-6, bandwidth=16e9, name="PCIe 3 x16")
# What usually joins the GPUs of a node, by the keys of GPUS.
INTRA = {
    "T4": PCIE_3,
    "RTX 4090": LINKS["PCIe 4 x16"],
    "V100": NVLINK_2,
    "V100 PCIe": PCIE_3,
    "A100 40 GB": LINKS["NVLink 3"],
    "A100": LINKS["NVLink 3"],
    "A100 PCIe": LINKS["PCIe 4 x16"],
    "H800": LINKS["NVLink 4, H800"],
    "H100": LINKS["NVLink 4"],
    "H200": LINKS["NVLink 4"],
    "B200": LINKS["NVLink 5"],
    "GB200": LINKS["NVLink 5"],
}


def _nodes(gpu: str, gpus_per_node: int, num_nodes: int = 1, inter: str = "10 Gb/s", cards: int = 1) -> Cluster:
    return Cluster(
        gpu=GPUS[gpu], gpus_per_node=gpus_per_node, num_nodes=num_nodes, intra=INTRA[gpu], inter=LINKS[inter],
        network_cards=cards,
    )  # fmt: skip


# "8 x 400 Gb/s": a card for each GPU, as in NVIDIA's DGX H100; "10 Gb/s": one card for the whole node.
CLUSTERS = {
    "1 T4": _nodes("T4", 1),
    "1 RTX 4090": _nodes("RTX 4090", 1),
    "1 V100": _nodes("V100", 1),
    "4 V100": _nodes("V100", 4),
    "8 A100 PCIe": _nodes("A100 PCIe", 8),
    "8 A100": _nodes("A100", 8),
    "8 H100": _nodes("H100", 8),
    "4 nodes of 8 H100, 8 x 400 Gb/s": _nodes("H100", 8, 4, "400 Gb/s", 8),
    "8 nodes of 8 A100, 10 Gb/s": _nodes("A100", 8, 8, "10 Gb/s"),
    "128 nodes of 8 H100, 8 x 400 Gb/s": _nodes("H100", 8, 128, "400 Gb/s", 8),
}
