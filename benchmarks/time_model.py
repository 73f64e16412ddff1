"""How near the model of time comes to measured steps: published tables, and vTrain's.

    python -m benchmarks.time_model [splits]

Errors are absolute percentages of the measured seconds. Splits are seeded, and each figure is their mean. The rows have
shaped the stacks' facts and the terms; the constants of a split are fitted on its own rows alone.
"""

from __future__ import annotations

import random
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, median

from benchmarks.measured_steps import simumax_steps, vtrain_steps
from benchmarks.paired import write_table
from helpers.predict.time.calibrate import PRIOR, MeasuredStep, calibrate, published_steps
from helpers.predict.time.stacks import MEGATRON_CORE
from helpers.predict.time.step import Constants, step_time
from helpers.specs import CLUSTERS, PRESETS, Plan

FOUR = ("products", "inside", "launch", "step")
ALL = tuple(PRIOR)
CAUSES = {
    "Narayanan T2 ZeRO-3": "DeepSpeed of 2021 on 384 to 2,240 GPUs, of which hops of a gather per tensor explain half",
    "TorchTitan, 8B 64k": "unexplained: its attention in blocks is as fast as without cp, that with cp 4 is not",
    "TorchTitan, 8B 128k": "unexplained: from cp 2 to cp 4 attention takes half as long again per pair of tokens",
    "TorchTitan, 405B": "the only row with AsyncTP and with a pipeline in Float8",
    "nanotron, 64 nodes 3.57B": "unexplained: a quarter of the work per GPU of 16 nodes took four fifths of their time",
    "nanotron, 2 nodes": "judged by anchors on 64 nodes, whose slow network passes for slow products",
    "nanotron": "its network reached about half its rate on 32 nodes and more, which one anchor seldom shows",
    "BLOOM": "unexplained: micro-batches of one or two under tp 8 lose more than any term says",
    "Megatron-Core": "unexplained, of a plan that is partly unknown",
    "Megatron 2020 V100": "one anchor for V100 and A100",
    "llm-foundry": "a small model: what a step costs beside its terms is known from one anchor only",
}


def error(row: MeasuredStep, constants: Constants) -> float:
    """Predicted over measured, less one."""
    return step_time(row.model, row.plan, row.cluster, row.stack, constants).seconds / row.seconds - 1


def by_anchor(rows: Sequence[MeasuredStep], splits: int) -> tuple[float, float, dict[MeasuredStep, list[float]]]:
    """One row per stack is known, the others are judged: median error, the share within 20 %, and each row's errors."""
    stacks, each = defaultdict(list), defaultdict(list)
    for row in rows:
        stacks[row.stack.name].append(row)
    medians, within = [], []
    for seed in range(splits):
        found = []
        for name, members in stacks.items():
            anchor = random.Random(f"{seed} {name}").choice(members)
            constants = calibrate([anchor]).constants
            for row in members:
                if row is not anchor:
                    each[row].append(error(row, constants))
                    found.append(abs(each[row][-1]))
        medians.append(median(found))
        within.append(fmean(one < 0.2 for one in found))
    return fmean(medians), fmean(within), each


def held_by_anchor(rows: Sequence[MeasuredStep], splits: int) -> float:
    """As `by_anchor`: the share of judged rows that lie in their 80 % interval."""
    found = []
    for seed in range(splits):
        for name in {row.stack.name for row in rows}:
            members = [row for row in rows if row.stack.name == name]
            fit = calibrate([random.Random(f"{seed} {name}").choice(members)])
            for row in members:  # the anchor too: one of about six
                low, high = fit.estimate(row.model, row.plan, row.cluster, row.stack).interval
                found.append(low <= row.seconds <= high)
    return fmean(found)


def by_one_row(known: Sequence[MeasuredStep], judged: Sequence[MeasuredStep]) -> list[float]:
    """The absolute errors of `judged`, each by the constants of each single row of `known` with the same stack."""
    found = []
    for anchor in known:
        constants = calibrate([anchor]).constants
        found += [abs(error(row, constants)) for row in judged if row is not anchor and row.stack == anchor.stack]
    return found


def context_parallel(rows: Sequence[MeasuredStep]) -> tuple[list[MeasuredStep], list[MeasuredStep]]:
    """The rows without context parallelism of the stacks that have some with it, and those with it."""
    judged = [row for row in rows if row.plan.cp > 1]
    stacks = {row.stack for row in judged}
    return [row for row in rows if row.plan.cp == 1 and row.stack in stacks], judged


def by_one_row_lines(rows: Sequence[MeasuredStep]) -> list[tuple[str, str, str, str]]:
    """The lines of the table about SimuMax's rows and about context parallelism."""
    dense, experts = simumax_steps("dense_rows"), simumax_steps("expert_rows")
    known, judged = context_parallel([*rows, *dense, *simumax_steps("cp_rows")])
    lines = []
    for what, must, aim, found in (
        ("SimuMax dense, one calibration row", "10 %", "6 %", by_one_row(dense, dense)),
        (f"context parallelism, {len(judged)} rows, one calibration row at cp 1", "15 %", "10 %",
         by_one_row(known, judged)),
        ("experts of DeepSeek-V2, 6 rows, one of them for calibration", "20 %", "10 %", by_one_row(experts, experts)),
    ):  # fmt: skip
        lines.append((f"{what}: median / mean", f"{median(found):.1%} / {fmean(found):.1%}", must, aim))
    return lines


def precision_lines(rows: Sequence[MeasuredStep], splits: int) -> list[tuple[str, str, str, str]]:
    """The lines of the table about the rows whose precision was wrong until November 2026, and about the others."""
    misread = [abs(error(as_bf16(row), Constants())) for row in rows]
    settled = [row for row in rows if not was_misread(row)]
    plain = [abs(error(row, Constants())) for row in settled]
    middle, within, _ = by_anchor(settled, splits)
    both = f"{median(plain):.1%} / {middle:.1%} ({within:.0%} within 20 %)"
    return [
        ("published, before calibration, with Float8 rows read as bf16: median / within 20 %",
         f"{median(misread):.1%} / {fmean(one < 0.2 for one in misread):.0%}", "", ""),
        ("rows whose precision was always right: before calibration / one anchor row per stack", both,
         "10.6 % / 6.5 %", "9.5 % / 6 %"),
    ]  # fmt: skip


def was_misread(row: MeasuredStep) -> bool:
    """Whether the table had this row of TorchTitan in the wrong precision, or not at all, until November 2026."""
    return row.plan.fp8 or row.name == "70B FSDP32 TP8 bf16"


def as_bf16(row: MeasuredStep) -> MeasuredStep:
    """The row as it was read before: without 8 bits."""
    return replace(row, plan=replace(row.plan, fp8=False))


def fitted_on(rows: Sequence[MeasuredStep], known: int, names: Sequence[str], splits: int) -> float:
    """Mean error of the rest after fitting on `known` random rows."""
    found = []
    for seed in range(splits):
        mixed = list(rows)
        random.Random(seed).shuffle(mixed)
        constants = calibrate(mixed[:known], names=names).constants
        found.append(fmean(abs(error(row, constants)) for row in mixed[known:]))
    return fmean(found)


def covered(rows: Sequence[MeasuredStep], known: int, names: Sequence[str], splits: int) -> float:
    """The share of the rest that lies in its 80 % interval after fitting on `known` random rows."""
    found = []
    for seed in range(splits):
        mixed = random.Random(seed).sample(list(rows), min(len(rows), known + 100))
        fit = calibrate(mixed[:known], names=names)
        for row in mixed[known:]:
            low, high = fit.estimate(row.model, row.plan, row.cluster, row.stack).interval
            found.append(low <= row.seconds <= high)
    return fmean(found)


def of_another(known: Sequence[MeasuredStep], judged: Sequence[MeasuredStep]) -> float:
    constants = calibrate(known).constants
    return fmean(abs(error(row, constants)) for row in judged)


def lost(rows: Sequence[MeasuredStep], constants: Constants) -> float:
    """The measured time of the plan that the model would choose, over the best measured one, less one."""
    chosen = min(rows, key=lambda row: step_time(row.model, row.plan, row.cluster, row.stack, constants).seconds)
    return chosen.seconds / min(row.seconds for row in rows) - 1


def tasks(rows: Sequence[MeasuredStep]) -> list[list[MeasuredStep]]:
    """Rows that do the same work on the same GPUs, where there are three plans or more."""
    same = defaultdict(list)
    for row in rows:
        batch = row.plan.dp * row.plan.micro_batch * row.plan.num_microbatches
        same[row.group, row.model, row.cluster, batch].append(row)
    return [members for members in same.values() if len(members) > 2]


def choices(
    single: list[MeasuredStep], models: list[list[MeasuredStep]], bloom: list[MeasuredStep]
) -> list[tuple[str, str, str, str]]:
    """Time lost by choosing with the model: constants from other rows than those chosen among."""
    known = random.Random(0).sample(single, 40)
    constants = calibrate(known, names=FOUR).constants
    each = [lost(task, constants) for task in tasks([row for row in single if row not in known])]
    found = [("chosen plan, vTrain single-node, mean of tasks", f"{fmean(each):.1%} ({len(each)} tasks)", "8 %", "3 %")]
    for here, other in (models, models[::-1]):
        told = f"chosen plan, {here[0].group}, fitted on the other model"
        found.append((told, f"{lost(here, calibrate(other).constants):.1%}", "8 %", "3 %"))
    same = [row for row in bloom if "B2048" in row.name and row.model == bloom[0].model]
    found.append(
        ("chosen plan, BLOOM, 176B, batch 2048, before calibration", f"{lost(same, Constants()):.1%}", "8 %", "3 %")
    )
    return found


def seconds_of_an_estimate() -> float:
    """Median over forty plans for 16,384 GPUs that were not priced before: seconds of the processor."""
    cluster = replace(CLUSTERS["128 nodes of 8 H100, 8 x 400 Gb/s"], num_nodes=2048)
    how = dict(precision="mixed_fp32_grads", zero=1, sequence_parallel=True)
    took = []
    for tp in (4, 8):
        for pp in (8, 16):
            for count in range(1, 11):
                plan = Plan(dp=16_384 // tp // pp, tp=tp, pp=pp, micro_batch=count, num_microbatches=16 + count, **how)
                start = time.process_time()
                step_time(PRESETS["llama3-405b"], plan, cluster, MEGATRON_CORE)
                took.append(time.process_time() - start)
    return median(took)


def outliers(each: dict[MeasuredStep, list[float]]) -> list[str]:
    lines = []
    for row, found in sorted(each.items(), key=lambda pair: -abs(fmean(pair[1]))):
        if abs(fmean(found)) > 0.15:
            name = f"{row.group}, {row.name}"
            cause = next((text for start, text in CAUSES.items() if name.startswith(start)), "unexplained")
            lines.append(f"- {name}: {fmean(found):+.0%}; {cause}")
    return lines


def main(splits: int) -> None:
    rows, single, multi = published_steps(), vtrain_steps("single_node"), vtrain_steps("multi_node")
    models = [[row for row in multi if row.group.endswith(size)] for size in (" 3.6B", "18.4B")]
    middle, within, each = by_anchor(rows, splits)
    unexplained = ("Narayanan T2 ZeRO-3", "nanotron, 64")
    usual = [row for row in rows if not f"{row.group}, {row.name}".startswith(unexplained)]
    middle_2, within_2, _ = by_anchor(usual, splits)
    few = max(1, splits // 10)
    plain = [abs(error(row, Constants())) for row in rows]
    table = [
        ("published, before calibration: median / within 20 %",
         f"{median(plain):.1%} / {fmean(one < 0.2 for one in plain):.0%}", "", ""),
        ("published, one anchor row per stack: median / within 20 %",
         f"{middle:.1%} / {within:.0%}", "11 % / 75 %", "8 % / 90 %"),
        ("the same without ZeRO-3 of 2021 and nanotron on 64 nodes", f"{middle_2:.1%} / {within_2:.0%}", "", ""),
        *precision_lines(rows, splits),
        *by_one_row_lines(rows),
        ("vTrain single-node, 40 rows, 4 constants", f"{fitted_on(single, 40, FOUR, splits):.1%}", "11 %", "9 %"),
        ("vTrain single-node, 40 rows, 6 constants", f"{fitted_on(single, 40, ALL, splits):.1%}", "9.5 %", "8.4 %"),
        ("vTrain multi-node, 18.4B judged by 3.6B, 6 constants", f"{of_another(*models):.1%}", "20 %", "12 %"),
        ("vTrain multi-node, 3.6B judged by 18.4B, 6 constants", f"{of_another(*models[::-1]):.1%}", "20 %", "12 %"),
        ("vTrain multi-node pooled, 10 rows, 6 constants", f"{fitted_on(multi, 10, ALL, splits):.1%}", "12 %", "9 %"),
        ("rows in their 80 % interval: single-node (40 known), multi-node (10 known)",
         f"{covered(single, 40, FOUR, few):.0%}, {covered(multi, 10, ALL, few):.0%}", "", ""),
        ("rows in their 80 % interval: published, one anchor per stack", f"{held_by_anchor(rows, few):.0%}", "", ""),
        *choices(single, models, [row for row in rows if row.group == "BLOOM sweep"]),
        ("one estimate, 16,384 GPUs, of the processor", f"{1e3 * seconds_of_an_estimate():.1f} ms", "10 ms", "5 ms"),
    ]  # fmt: skip
    keys = ("what", "reached", "must", "aim")
    lines = [dict(zip(keys, row, strict=True)) for row in table]
    path = write_table("time_model", lines, f"python -m benchmarks.time_model {splits}")
    told = "## Published rows with a mean error above 15 % over their anchors"
    path.write_text("\n".join([path.read_text(encoding="utf-8"), told, "", *outliers(each), ""]), encoding="utf-8")
    print(path.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 50)
