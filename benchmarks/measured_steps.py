"""Reads two large tables of measured training steps, with which the step-time model is judged: SimuMax's and vTrain's.

The tables and their licences are in benchmarks/data. Each row becomes a `MeasuredStep`, as the rows of published papers
do that helpers/predict/time/calibrate.py reads.
"""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

from helpers.predict.time.calibrate import MeasuredStep
from helpers.predict.time.stacks import MEGATRON_CORE_NO_OVERLAP, STACKS
from helpers.specs import GPUS, LINKS, PRESETS, ROUTED, Cluster, Link, ModelSpec, Plan
from helpers.specs.hardware import INTRA

DATA = Path(__file__).parent / "data"
# What SimuMax's tables call a model -> the preset, of which the rows have the first layers.
SIMUMAX_MODELS = {"llama3-70b": PRESETS["llama3-70b"], "deepseekv2": ROUTED["deepseek-v2"]}


def simumax_steps(table: str | Path) -> list[MeasuredStep]:
    """SimuMax's measured steps on 8 B200: the table "dense_rows", "cp_rows" or "expert_rows", or a file like them.

    They ran Megatron-LM with every overlap off, in bf16 with fp32 gradients and the distributed optimizer. Context
    parallelism is by all-to-all. Raises ValueError for an unknown table or model.
    """
    path = DATA / "simumax" / f"{table}.csv" if isinstance(table, str) else table
    if not path.exists():
        raise ValueError(
            f"simumax: there is no table {str(table)!r}; give 'dense_rows', 'cp_rows', 'expert_rows' or a Path"
        )
    with open(path, encoding="utf-8") as file:
        return [_simumax(row) for row in csv.DictReader(file)]


def _simumax(row: dict[str, str]) -> MeasuredStep:
    """One row of SimuMax's tables as a MeasuredStep. The model is a preset with fewer layers."""
    if row["model"] not in SIMUMAX_MODELS:
        raise ValueError(
            f"simumax: {row['case']!r} is of the model {row['model']!r}, which is not known; add it to SIMUMAX_MODELS"
        )
    names = ("dp", "tp", "pp", "cp", "ep", "micro_batch", "num_microbatches")
    plan = Plan(
        **{name: int(row[name]) for name in names}, zero=1, sequence_parallel=row["tp"] != "1", cp_method="all_to_all",
        precision="mixed_fp32_grads",
    )  # fmt: skip
    cluster = Cluster(
        gpu=GPUS["B200"], gpus_per_node=8, num_nodes=1, intra=INTRA["B200"], inter=LINKS["400 Gb/s"], network_cards=8
    )
    return MeasuredStep(
        group="SimuMax", name=row["case"], plan=plan, cluster=cluster, stack=MEGATRON_CORE_NO_OVERLAP,
        model=replace(SIMUMAX_MODELS[row["model"]], num_layers=int(row["layers"]), seq=int(row["seq"])),
        seconds=float(row["real_ms"]) / 1e3,
    )  # fmt: skip


def vtrain_steps(table: str | Path) -> list[MeasuredStep]:
    """The measured steps of vTrain's table "single_node" or "multi_node", or of a file like them.

    They ran Megatron-DeepSpeed on A100 in fp16, with full recomputation and without buckets. Raises ValueError for an
    unknown table.
    """
    path = DATA / "vtrain" / f"{table}.csv" if isinstance(table, str) else table
    if not path.exists():
        raise ValueError(f"vtrain: there is no table {str(table)!r}; give 'single_node', 'multi_node' or a Path")
    with open(path, encoding="utf-8") as file:
        return [_vtrain(row, path.stem) for row in csv.DictReader(file)]


def _vtrain(row: dict[str, str], group: str) -> MeasuredStep:
    """One row of vTrain's tables as a MeasuredStep."""
    number = {key: int(value) for key, value in row.items() if value.isdigit()}
    dp, tp, pp = (number[f"{axis} parallelism"] for axis in ("data", "tensor", "pipeline"))
    gpus, micro = number["# GPUs"], number["micro batch"]
    # 51,200: the 50,257 entries of GPT-2's vocabulary, padded to a multiple of 1,024.
    model = ModelSpec(
        num_layers=number["# layers"], hidden=number["hidden size"], num_heads=number["attention heads"], vocab=51_200,
        seq=number["sequence length"],
    )  # fmt: skip
    # vTrain's configurations have 800 Gb/s between nodes: 4 cards of 200. They say 150 GB/s between the GPUs of a node,
    # while INTRA has the rate of NVLink 3 from its data sheet.
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
    return MeasuredStep(
        group=group, name=name, model=model, plan=plan, cluster=cluster, stack=STACKS["Megatron-DeepSpeed"],
        seconds=float(row["iteration time (ms)"]) / 1e3,
    )  # fmt: skip
