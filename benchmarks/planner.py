"""How long the planner searches, and what it answers to ten questions.

    python -m benchmarks.planner

Seconds are the processor's. Questions share what is cached: the second of a model on a cluster finds its layers known.
"""

from __future__ import annotations

import time
from dataclasses import replace

from benchmarks.paired import write_table
from helpers.predict.advice import advise
from helpers.predict.time.convolutions import RESNET_152
from helpers.specs import CLUSTERS, GPUS, PRESETS, Cluster, Link
from helpers.specs.hardware import PCIE_3


def cluster(key: str, nodes: int = 1, gpus: int | None = None, gigabits: float | None = None) -> Cluster:
    """A cluster of CLUSTERS with so many nodes, GPUs in each, and Gb/s of a node's network."""
    found = replace(CLUSTERS[key], num_nodes=nodes)
    found = replace(found, gpus_per_node=gpus or found.gpus_per_node)
    if gigabits is None:
        return found
    return replace(found, inter=Link.from_gigabits(gigabits / 8, latency=5e-6), network_cards=8)


BIG, ONE = cluster("8 H100", 2048, gigabits=3200), cluster("8 A100", gpus=1)
QUESTIONS = (
    ("405B on 16,384 H100 at 8k", PRESETS["llama3-405b"], BIG, dict(global_batch=2048, seq=8192)),
    ("405B on 16,384 H100 at 131k", PRESETS["llama3-405b"], BIG, dict(global_batch=128, seq=131_072)),
    ("175B on 1,024 A100", PRESETS["gpt3-175b"], cluster("8 A100", 128, gigabits=1600), dict(global_batch=1536)),
    ("70B on 2 x 8 H100", PRESETS["llama3-70b"], cluster("8 H100", 2, gigabits=3200), {}),
    ("8B on 8 x 80 GB", PRESETS["llama3-8b"], CLUSTERS["8 H100"], {}),
    ("13B on 8 A100 PCIe", PRESETS["llama2-13b"], CLUSTERS["8 A100 PCIe"], dict(global_batch=256)),
    (
        "GPT-2 on 4 V100 over PCIe",
        PRESETS["gpt2"],
        replace(CLUSTERS["4 V100"], gpu=GPUS["V100 PCIe"], intra=PCIE_3),
        {},
    ),
    ("7B on 24 GB", PRESETS["llama2-7b"], CLUSTERS["1 RTX 4090"], dict(global_batch=16)),
    (
        "70B LoRA on one A100",
        PRESETS["llama3-70b"],
        cluster("8 A100", gpus=1),
        dict(global_batch=16, seq=4096, lora=16),
    ),
    ("ResNet-152 on 16 A100", RESNET_152, cluster("8 A100", 2, gigabits=200), dict(global_batch=1024)),
)


def main() -> None:
    advise(PRESETS["gpt2"], CLUSTERS["8 H100"])  # words and tables are read once
    rows = []
    for name, model, where, how in QUESTIONS:
        start = time.process_time()
        found = advise(model, where, **how)
        took = time.process_time() - start
        rows.append(
            {
                "question": name, "first plan": f"{found.chosen.title}: {found.chosen.plan_text}",
                "step": found.chosen.step_text, "MFU": f"{found.chosen.mfu:.0%}",
                "warnings": len(found.chosen.warnings), "plans": found.searched, "search, s": took,
            }
        )  # fmt: skip
    print(write_table("planner", rows, "python -m benchmarks.planner").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
