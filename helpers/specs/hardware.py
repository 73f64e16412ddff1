"""Describes what computes and what carries: links, GPUs and clusters, with tables of the published ones.

GPUS and LINKS have the vendors' rates and sizes; CLUSTERS has ready clusters from one GPU to 128 nodes. INTRA says
which link usually joins the GPUs of a node. REACHED has what nccl-tests measured of NVLink, and COMPUTE_SHARE is the
share of the peak that examples assume. Chapters, cards and the napkin sheet take their rates from these tables; a test
compares the constants of predict/time with them, and each rate that a text quotes beside NVLink.

The alpha-beta model gives a message of n bytes the seconds alpha + beta n, where alpha is a latency and 1 / beta a
bandwidth.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import isfinite

from helpers.specs.checks import check_count, check_positive


@dataclass(frozen=True, kw_only=True)
class Link:
    """A link of the alpha-beta model: a message of n bytes takes `latency + n / bandwidth` seconds.

    latency: seconds per message, whatever its size (alpha). bandwidth: bytes per second (1 / beta).
    Raises ValueError for a negative latency or a bandwidth that is not above 0.
    Source: Thakur, Rabenseifner & Gropp 2005, section 3.
    """

    latency: float
    bandwidth: float
    name: str = ""

    def __post_init__(self) -> None:
        if isinstance(self.latency, bool) or not isinstance(self.latency, (int, float)) or not self.latency >= 0:
            raise ValueError(f"Link: latency is {self.latency!r}, but it must be 0 or more seconds (1e-5 is 10 us)")
        if not isfinite(self.latency):
            raise ValueError("Link: latency is infinite, so nothing would ever arrive; give it in seconds")
        check_positive("Link", "bandwidth (bytes per second; 10 Gb/s is 1.25e9)", self.bandwidth)

    @classmethod
    def from_gigabits(cls, gigabits: float, *, latency: float = 30e-6, name: str = "") -> Link:
        """A link rated in Gb/s, as network cards are: 10 Gb/s carries 1.25e9 bytes per second."""
        check_positive("Link", "gigabits per second", gigabits)
        return cls(latency=latency, bandwidth=gigabits * 1e9 / 8, name=name or f"{gigabits:g} Gb/s")

    def seconds(self, num_bytes: float) -> float:
        """Seconds that one message of `num_bytes` bytes takes."""
        return self.latency + num_bytes / self.bandwidth

    def between(self, ranks: Iterable[int]) -> Link:
        """The link between these ranks, which is this one for all ranks.

        `Nodes` has the same method, so an emulated network can be either: one link for all, or ranks on several nodes.
        """
        return self


@dataclass(frozen=True, kw_only=True)
class Nodes:
    """Ranks on nodes: the link `inside` joins ranks of one node, the link `across` joins ranks of several nodes.

    nodes: the ranks of each node. The emulated network takes it to give every pair of ranks its link. Raises ValueError
    where a rank is on no node or on two.
    """

    nodes: tuple[tuple[int, ...], ...]
    inside: Link
    across: Link

    def __post_init__(self) -> None:
        object.__setattr__(self, "nodes", tuple(map(tuple, self.nodes)))  # frozen; callers may pass lists
        ranks = sorted(rank for node in self.nodes for rank in node)
        if not ranks or ranks != list(range(len(ranks))):
            raise ValueError(f"Nodes: nodes hold the ranks {ranks}; put each rank from 0 on into one node, once")

    def between(self, ranks: Iterable[int]) -> Link:
        """The link between these ranks: `inside` where one node has them all, else `across`."""
        return self.inside if any(set(ranks) <= set(node) for node in self.nodes) else self.across


@dataclass(frozen=True, kw_only=True)
class ReachedRate:
    """The bus bandwidth that nccl-tests measured for long all-reduces on the 8 GPUs of a node, in bytes per second.

    ring: by a ring, which the GPUs add up. nvls: where the switch adds up (NVLink SHARP), or None where it cannot. Bus
    bandwidth is the tensor times 2 (N - 1) / N over the time, so with NVLS it may lie above what the link carries.
    """

    ring: float
    nvls: float | None


@dataclass(frozen=True, kw_only=True)
class GPU:
    """One accelerator, with the figures of its data sheet.

    memory: bytes. flops: dense 16-bit operations per second. memory_bandwidth: bytes per second. reported: the bytes
    that the device itself reports, which are more, or None where this table does not have them. fp8_flops: dense 8-bit
    operations per second, None for a GPU without 8-bit units. num_sms: streaming multiprocessors; 108 is an A100's.
    """

    name: str
    memory: float
    flops: float
    memory_bandwidth: float
    reported: float | None = None
    fp8_flops: float | None = None
    num_sms: int = 108

    def __post_init__(self) -> None:
        check_count("GPU", "num_sms", self.num_sms)
        for name in ("memory", "flops", "memory_bandwidth"):
            check_positive("GPU", name, getattr(self, name))
        for name in ("reported", "fp8_flops"):
            if getattr(self, name) is not None:
                check_positive("GPU", name, getattr(self, name))


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """`num_nodes` machines of `gpus_per_node` GPUs. `intra` joins GPUs of a node, `inter` is one network card.

    intra: what one GPU can send, whatever its neighbours do. inter: what one card carries in each direction.
    network_cards: how many cards a node has: 1 that all its GPUs share, or as many as GPUs. For a ring over all GPUs
    only their sum counts, because the ring enters and leaves a node once, or once per card with that card's part of the
    bytes. So 8 GPUs behind one card of 10 Gb/s reduce 8 times as slowly as 8 GPUs with a card each.
    """

    gpu: GPU
    gpus_per_node: int
    num_nodes: int
    intra: Link
    inter: Link
    network_cards: int = 1

    def __post_init__(self) -> None:
        for name in ("gpus_per_node", "num_nodes", "network_cards"):
            check_count("Cluster", name, getattr(self, name))

    @property
    def world_size(self) -> int:
        return self.gpus_per_node * self.num_nodes

    @property
    def network(self) -> Link:
        """All network cards of a node together, which its GPUs share on the way to other nodes."""
        if self.network_cards == 1:
            return self.inter
        name = f"{self.network_cards} x {self.inter.name}"
        return Link(latency=self.inter.latency, bandwidth=self.network_cards * self.inter.bandwidth, name=name)

    def link_for(self, world_size: int, *, stride: int = 1) -> Link:
        """The link that limits a ring over `world_size` ranks, each `stride` ranks after the one before.

        Within a node this is `intra`, beyond it the node's network. Where `stride` such rings leave a node side by side
        (as the data-parallel groups of tensor-parallel ranks do), each gets its share of the network, and never more
        than `intra`.
        """
        check_count("Cluster", "world_size", world_size)
        check_count("Cluster", "stride", stride)
        if world_size == 1 or world_size * stride <= self.gpus_per_node:
            return self.intra
        return self.network_for(min(stride, self.gpus_per_node))

    def network_for(self, senders: int) -> Link:
        """The share of a node's network for each of `senders` rings or ranks of the node that send at the same time."""
        check_count("Cluster", "senders", senders)
        network, share = self.network, self.network.bandwidth / senders
        if share > self.intra.bandwidth:  # bytes reach a card over the node's own links, which are then the limit
            return Link(latency=network.latency, bandwidth=self.intra.bandwidth, name=f"{self.intra.name}, to a card")
        if senders == 1:
            return network
        return Link(latency=network.latency, bandwidth=share, name=f"{network.name}, shared by {senders}")


MIB = 2**20
# Sources: the vendors' data sheets (dense, without sparsity). Latencies are orders of magnitude; measure your own.
# `reported` has the totals that nvidia-smi prints: github.com/modal-labs/modal-client/pull/2797, and for B200
# github.com/NVIDIA/TensorRT-LLM/issues/10278; V100 and H200: thundergolfer.com/blog/nvidia-gpu-memory-capacity.
GPUS = {
    "T4": GPU(name="T4", memory=16e9, reported=15_360 * MIB, flops=65e12, memory_bandwidth=0.32e12, num_sms=40),
    "RTX 4090": GPU(name="RTX 4090", memory=24e9, flops=165e12, memory_bandwidth=1.008e12, num_sms=128),
    "V100": GPU(
        name="V100 SXM2", memory=32e9, reported=32_768 * MIB, flops=125e12, memory_bandwidth=0.9e12, num_sms=80
    ),
    "V100 PCIe": GPU(
        name="V100 PCIe", memory=32e9, reported=32_768 * MIB, flops=112e12, memory_bandwidth=0.9e12, num_sms=80
    ),
    "A100 40 GB": GPU(
        name="A100 SXM 40 GB", memory=40e9, reported=40_960 * MIB, flops=312e12, memory_bandwidth=1.555e12
    ),
    "A100": GPU(name="A100 SXM 80 GB", memory=80e9, reported=81_920 * MIB, flops=312e12, memory_bandwidth=2.039e12),
    "A100 PCIe": GPU(
        name="A100 PCIe 80 GB", memory=80e9, reported=81_920 * MIB, flops=312e12, memory_bandwidth=1.935e12
    ),
    "H800": GPU(name="H800 SXM", memory=80e9, flops=989e12, memory_bandwidth=3.35e12, num_sms=132, fp8_flops=1979e12),
    "H100": GPU(
        name="H100 SXM", memory=80e9, reported=81_559 * MIB, flops=989e12, memory_bandwidth=3.35e12, num_sms=132,
        fp8_flops=1979e12,
    ),
    "H200": GPU(
        name="H200 SXM", memory=141e9, reported=150.8e9, flops=989e12, memory_bandwidth=4.8e12, num_sms=132,
        fp8_flops=1979e12,
    ),
    "B200": GPU(
        name="B200", memory=180e9, reported=183_359 * MIB, flops=2250e12, memory_bandwidth=7.7e12, num_sms=148,
        fp8_flops=4500e12,
    ),
    "GB200": GPU(
        name="GB200, of an NVL72", memory=186e9, flops=2500e12, memory_bandwidth=8e12, num_sms=148, fp8_flops=5000e12
    ),
}  # fmt: skip
LINKS = {
    "1 Gb/s": Link.from_gigabits(1, latency=50e-6),
    "10 Gb/s": Link.from_gigabits(10, latency=30e-6),
    "100 Gb/s": Link.from_gigabits(100, latency=10e-6),
    "400 Gb/s": Link.from_gigabits(400, latency=5e-6),
    "PCIe 4 x16": Link(latency=5e-6, bandwidth=32e9, name="PCIe 4 x16"),
    "NVLink 3": Link(latency=3e-6, bandwidth=300e9, name="NVLink 3 (A100, one way)"),
    "NVLink 4": Link(latency=3e-6, bandwidth=450e9, name="NVLink 4 (H100, one way)"),
    "NVLink 4, H800": Link(latency=3e-6, bandwidth=200e9, name="NVLink 4 (H800, one way)"),
    "NVLink 5": Link(latency=3e-6, bandwidth=900e9, name="NVLink 5 (B200, one way)"),
}
# These two are for older GPUs only, so they are not in LINKS, from which a reader chooses in the explorers.
# 6 links of 25 GB/s each way: NVIDIA's V100 data sheet. PCIe 3 x16 carries half of what PCIe 4 does.
NVLINK_2 = Link(latency=3e-6, bandwidth=150e9, name="NVLink 2 (V100, one way)")
PCIE_3 = Link(latency=5e-6, bandwidth=16e9, name="PCIe 3 x16")
# On 8 A100 with 8 GiB, and on 8 H200 with 16 GiB, as predict/time/collectives.py has them. NCCL's maintainers say the
# same of H100: 450 GB/s line rate, 370 by a ring, 480 with NVLS (github.com/NVIDIA/nccl-tests/issues/212).
REACHED = {
    "NVLink 3": ReachedRate(ring=2 * 7 / 8 * 8192 * 2**20 / 64074e-6, nvls=None),
    "NVLink 4": ReachedRate(ring=367.61e9, nvls=482.26e9),
}
# The share of the data sheet's 16-bit peak that a training step is assumed to compute at, where an example does without
# the time model: the middle of the MFU that published runs report (Llama 3: 38 to 43 %).
COMPUTE_SHARE = 0.4
# The link that usually joins the GPUs of a node, by the keys of GPUS.
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


def reached(link: str) -> Link:
    """A link of LINKS with the rate that a ring reaches on it, where that was measured. KeyError where it was not."""
    return replace(LINKS[link], bandwidth=REACHED[link].ring, name=f"{link}, as a ring reaches it")


def switch_seconds(num_bytes: float, link: str) -> float:
    """Seconds of an all-reduce of `num_bytes` bytes that the switch adds up, whatever the number of ranks.

    A rank sends its tensor to the switch once and receives the sum once, so there are two messages and no ring. Only
    NVLink 4 was measured; a faster NVLink is taken to reach the same share of its line rate, which is an assumption.
    """
    measured = REACHED["NVLink 4"].nvls / (2 * 7 / 8)  # bytes of the tensor per second, on 8 GPUs
    return 2 * LINKS[link].latency + num_bytes / (measured * LINKS[link].bandwidth / LINKS["NVLink 4"].bandwidth)


def _nodes(gpu: str, gpus_per_node: int, num_nodes: int = 1, inter: str = "10 Gb/s", cards: int = 1) -> Cluster:
    """A cluster by names. inter: the link of a network card. cards: the number of network cards of a node."""
    return Cluster(
        gpu=GPUS[gpu], gpus_per_node=gpus_per_node, num_nodes=num_nodes, intra=INTRA[gpu], inter=LINKS[inter],
        network_cards=cards,
    )  # fmt: skip


# "8 x 400 Gb/s": a card for each GPU, as in NVIDIA's DGX H100; "10 Gb/s": one card for the whole node.
CLUSTERS = {
    # With a single node, the network card is never used.
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
