"""Measured steps as rows that a calibration reads: published tables, and vTrain's measurements."""

from __future__ import annotations

import csv
from dataclasses import dataclass, replace
from pathlib import Path

from helpers.predict.time.stacks import STACKS, Stack
from helpers.specs import GPUS, Cluster, Link, ModelSpec, Plan
from helpers.specs.clusters import INTRA


@dataclass(frozen=True, kw_only=True)
class Row:
    """A measured step. group: the table it stands in."""

    group: str
    name: str
    model: ModelSpec
    plan: Plan
    cluster: Cluster
    stack: Stack
    seconds: float


# The first words of a group -> its stack.
STACK_OF = {
    "Narayanan T1": "Megatron 2021", "Narayanan T2 ZeRO-3": "DeepSpeed ZeRO-3", "Narayanan T2 PTD": "Megatron 2021",
    "Megatron-Core": "Megatron-Core", "Megatron 2020": "Megatron 2020", "Korthikanti": "Megatron 2022",
    "Llama 3": "Llama 3", "BLOOM": "Megatron-DeepSpeed", "MegaScale T2 Megatron-LM": "Megatron 2022",
    "MegaScale T2 MegaScale": "MegaScale", "llm-foundry": "FSDP", "TorchTitan": "TorchTitan", "nanotron": "nanotron",
}  # fmt: skip
GPU_KEYS = {"A100 40": "A100 40 GB", "V100 SXM3": "V100"} | {gpu.name: key for key, gpu in GPUS.items()}


DATA = Path(__file__).parent / "data"


def published(path: Path = DATA / "published" / "steps.csv") -> list[Row]:
    """The rows of a table like steps.csv, whose columns are the fields of ModelSpec, Cluster and Plan."""
    with open(path, encoding="utf-8") as file:
        return [_published(row) for row in csv.DictReader(file)]


def _published(row: dict[str, str]) -> Row:
    number = {key: int(row[key]) for key in row if row[key] and row[key].lstrip("-").isdigit()}
    key = GPU_KEYS[row["gpu"]]
    model = ModelSpec(
        num_layers=number["num_layers"], hidden=number["hidden"], num_heads=number["num_heads"],
        num_kv_heads=number["num_kv_heads"], ffn_hidden=number["ffn_hidden"], vocab=number["vocab"], seq=number["seq"],
        gated=bool(number["gated"]), norm=row["norm"], tied_embeddings=bool(number["tied"]),
        bias=row["norm"] == "layer", positions="learned" if row["norm"] == "layer" else "rope",
    )  # fmt: skip
    gigabits, cards = float(row["network_gbps"]), 8 if number["gpus_per_node"] >= 8 else 1
    cluster = Cluster(
        gpu=replace(GPUS[key], name=row["gpu"]), gpus_per_node=number["gpus_per_node"],
        num_nodes=number["nodes"], intra=INTRA[key],
        inter=Link.from_gigabits(gigabits / cards, latency=5e-6), network_cards=cards,
    )  # fmt: skip
    axes = {name: number[name] for name in ("dp", "tp", "pp", "cp", "zero", "micro_batch", "num_microbatches")}
    plan = Plan(
        **axes, num_chunks=number["chunks"], sequence_parallel=bool(number["sequence_parallel"]),
        recompute=row["recompute"], attention=row["attention"], precision=row["precision"], fp8="fp8" in row["row"],
    )  # fmt: skip
    stack = next(STACKS[name] for start, name in STACK_OF.items() if row["group"].startswith(start))
    return Row(
        group=row["group"], name=row["row"], model=model, plan=plan, cluster=cluster, stack=stack,
        seconds=float(row["seconds"]),
    )  # fmt: skip


def vtrain(table: str | Path) -> list[Row]:
    """The rows of vTrain's "single_node", "multi_node" or a file like them. ValueError for a table that is not there.

    Megatron-DeepSpeed on A100, fp16, full recomputation, no buckets.
    """
    path = DATA / "vtrain" / f"{table}.csv" if isinstance(table, str) else table
    if not path.exists():
        raise ValueError(f"vtrain: there is no table {str(table)!r}; give 'single_node', 'multi_node' or a Path")
    with open(path, encoding="utf-8") as file:
        return [_vtrain(row, path.stem) for row in csv.DictReader(file)]


def _vtrain(row: dict[str, str], group: str) -> Row:
    number = {key: int(value) for key, value in row.items() if value.isdigit()}
    dp, tp, pp = (number[f"{axis} parallelism"] for axis in ("data", "tensor", "pipeline"))
    gpus, micro = number["# GPUs"], number["micro batch"]
    model = ModelSpec(
        num_layers=number["# layers"], hidden=number["hidden size"], num_heads=number["attention heads"], vocab=51_200,
        seq=number["sequence length"],
    )  # fmt: skip
    # 150 GB/s between the GPUs of a node, 800 Gb/s between nodes: vTrain's configurations.
    cluster = Cluster(
        gpu=GPUS["A100"], gpus_per_node=min(8, gpus), num_nodes=max(1, gpus // 8), intra=INTRA["A100"],
        inter=Link.from_gigabits(200, latency=5e-6), network_cards=4,
    )  # fmt: skip
    plan = Plan(
        dp=dp, tp=tp, pp=pp, micro_batch=micro, num_microbatches=number["global batch"] // (dp * micro),
        recompute="full", attention="materialized", precision="mixed",
    )  # fmt: skip
    if group.startswith("multi"):
        group = f"vTrain {row['Parameters (billion)']}B"
    shape = f"{gpus} GPUs, hidden {model.hidden}, {model.num_layers} layers"
    name = f"{shape}, {dp=} {tp=} {pp=}, batch {number['global batch']}, micro-batch {micro}"
    return Row(
        group=group, name=name, model=model, plan=plan, cluster=cluster, stack=STACKS["Megatron-DeepSpeed"],
        seconds=float(row["iteration time (ms)"]) / 1e3,
    )  # fmt: skip
