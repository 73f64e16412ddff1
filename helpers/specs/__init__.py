"""What a calculation is about: a link, a GPU, a cluster, a model, a plan for spreading the one over the other.

Frozen, keyword-only, validated when made, and free of torch: the wire, the formulas and the dials all share them.
Sizes are in bytes, times in seconds, rates in bytes or floating-point operations per second. GB is 1e9 bytes.

hardware.py   Link, Nodes, GPU, Cluster, and the tables GPUS and LINKS
clusters.py   CLUSTERS: from one GPU to 128 nodes
models.py     ModelSpec, Plan, and the published models in PRESETS and, with experts, in ROUTED
"""

from helpers.specs.clusters import CLUSTERS
from helpers.specs.hardware import GPU, GPUS, LINKS, Cluster, Link, Nodes
from helpers.specs.models import PRESETS, ROUTED, ModelSpec, Plan

__all__ = [
    "CLUSTERS", "GPU", "GPUS", "LINKS", "PRESETS", "ROUTED", "Cluster", "Link", "ModelSpec", "Nodes", "Plan",
]  # fmt: skip
