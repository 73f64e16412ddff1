"""Provides the specifications that predictions start from: links, GPUs, clusters, model shapes and parallel plans.

All are frozen, keyword-only, checked when they are made, and free of torch, so that the emulated network, the formulas
and the explorers share them. Sizes are in bytes, times in seconds, rates in bytes or floating-point operations per
second. GB is 1e9 bytes.

hardware.py          Link, Nodes, GPU, Cluster, and the tables GPUS, LINKS, REACHED and CLUSTERS
mesh.py              Mesh: which rank stands at which coordinates, and the groups of each axis
models.py            ModelSpec, LatentAttention and Plan
published_models.py  the published models in PRESETS and, with experts, in ROUTED
checks.py            the checks that raise ValueError with a sentence
trainable.py         the plans that this course's Trainer cannot run, each with the nearest plan that works

Begin with models.py.
"""

from helpers import import_on_demand

# The ranks need a Link alone, and models.py would bring the schedules of pipelines.
__getattr__ = import_on_demand(
    __name__,
    {
        "hardware": ("CLUSTERS", "GPU", "GPUS", "LINKS", "Cluster", "Link", "Nodes"),
        "models": ("LatentAttention", "ModelSpec", "Plan"),
        "published_models": ("PRESETS", "ROUTED"),
    },
)
