"""The rows of measured steps: each has the precision, the stack and the GPU that its source's caption says."""

from __future__ import annotations

import csv
import re
from dataclasses import replace

import pytest
import yaml

from benchmarks.measured_steps import DATA as LARGE_TABLES
from benchmarks.measured_steps import simumax_steps
from helpers.predict.time.calibrate import DATA, VARIANTS, published_steps
from helpers.predict.time.kernels import sustained_share
from helpers.predict.time.stacks import MEGATRON_CORE_NO_OVERLAP, STACKS
from helpers.specs import GPUS, PRESETS, ROUTED

STEPS = DATA / "published" / "steps.csv"
CAPTIONS = yaml.safe_load((DATA / "published" / "captions.yaml").read_text(encoding="utf-8"))
ROWS = list(csv.DictReader(STEPS.read_text(encoding="utf-8").splitlines()))


def caption_of(row):
    found = [entry for entry in CAPTIONS if re.match(entry["rows"], f"{row['group']}, {row['row']}")]
    assert len(found) == 1, f"{row['group']}, {row['row']} has {len(found)} captions"
    return found[0]


def contradictions(row):
    """In what a row of steps.csv differs from the caption of its source."""
    entry = caption_of(row)
    differ = [name for name in ("gpu", "stack", "precision") if row[name] != entry[name]]
    is_fp8, is_async = (re.search(word, entry["caption"], re.I) is not None for word in ("float8|fp8", "AsyncTP"))
    differ += ["fp8"] if is_fp8 != (row["precision"] == "fp8") else []
    differ += ["AsyncTP"] if is_async != row["stack"].endswith("AsyncTP") else []
    method = entry.get("cp_method", "") if row["cp"] != "1" else ""
    return differ + (["cp_method"] if row["cp_method"] != method else [])


def test_every_row_follows_the_caption_of_its_source():
    assert {f"{row['group']}, {row['row']}": found for row in ROWS if (found := contradictions(row))} == {}
    unused = [entry["rows"] for entry in CAPTIONS if not any(caption_of(row) is entry for row in ROWS)]
    assert unused == []


@pytest.mark.parametrize(
    "name, change, differs",
    [
        ("8B 32k cp1", {"precision": "mixed"}, ["precision", "fp8"]),  # as these rows were until November 2026
        ("405B interleaved v=2", {"stack": "TorchTitan"}, ["stack", "AsyncTP"]),
        ("70B FSDP32 TP8", {"gpu": "H100 SXM"}, ["gpu"]),
        ("8B 64k cp2", {"cp_method": "ring"}, ["cp_method"]),
    ],
)
def test_a_row_that_lost_its_label_contradicts_its_caption(name, change, differs):
    assert contradictions(next(row for row in ROWS if row["row"] == name) | change) == differs


def test_what_the_rows_say_reaches_the_plan_the_stack_and_the_gpu():
    for row, step in zip(ROWS, published_steps(), strict=True):
        is_fp8 = row["precision"] == "fp8"
        assert (step.plan.fp8, step.plan.precision) == (is_fp8, "mixed" if is_fp8 else row["precision"])
        assert (step.stack, step.cluster.gpu.name) == (STACKS[row["stack"]], row["gpu"])
        assert row["cp"] == "1" or step.plan.cp_method == row["cp_method"]
    titan = {row.cluster.gpu for row in published_steps() if row.group == "TorchTitan"}
    assert {(gpu.memory, gpu.memory_bandwidth) for gpu in titan} == {(96e9, 2.4e12)}
    assert all(sustained_share(gpu) < sustained_share(GPUS["H100"]) for gpu in titan)  # 500 W instead of 700


def written(tmp_path, rows):
    """A table of these rows as a file."""
    path = tmp_path / "steps.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, rows[0])
        table.writeheader()
        table.writerows(rows)
    return path


def test_a_table_without_the_newer_columns_is_read_by_the_group(tmp_path):
    """As the tables of others have it: the usual GPU's name, no stack, no method."""
    old = [
        {key: value for key, value in row.items() if key not in ("stack", "cp_method")} | {"gpu": gpu}
        for row in ROWS
        for name, gpu in (
            ("8B 128k cp4", "H100 SXM"),
            ("405B interleaved v=2", "H100 SXM"),
            ("8.67B mp8 n=8", "V100 SXM2"),
        )
        if row["row"] == name and (row["group"][-4:] in ("itan", "V100"))
    ]
    v100, titan, large = published_steps(written(tmp_path, old))
    assert large.stack.name == "TorchTitan AsyncTP"
    assert (v100.cluster.gpu.name, titan.cluster.gpu.name) == ("V100 SXM3", "H100 SXM 96 GB 500 W")
    assert (titan.stack.name, titan.plan.cp_method, titan.plan.fp8) == ("TorchTitan", "all_gather", True)


@pytest.mark.parametrize(
    "change, said",
    [
        ({"stack": "Colossal"}, "ran the stack 'Colossal', which is not known; fill its column stack with one of Mega"),
        ({"stack": "", "group": "FMS-FSDP"}, "'FMS-FSDP', .* ran the stack '', which is not known"),
        ({"gpu": "H300"}, "ran on 'H300', which is not known; there are A100 40"),
    ],
)
def test_a_row_of_unknown_origin_gets_a_sentence(tmp_path, change, said):
    with pytest.raises(ValueError, match=said):
        published_steps(written(tmp_path, [ROWS[0] | change]))


def test_simumax_rows_are_llama_with_fewer_layers_and_no_overlap():
    dense, cp = simumax_steps("dense_rows"), simumax_steps("cp_rows")
    assert (len(dense), len(cp)) == (12, 4)
    assert {row.plan.cp_method for row in cp} == {"all_to_all"} and {row.plan.cp for row in dense} == {1}
    assert all(row.plan.world_size == 8 == row.cluster.world_size for row in dense + cp)
    assert {row.stack for row in dense + cp} == {MEGATRON_CORE_NO_OVERLAP}
    first = dense[0]
    assert first.model == replace(PRESETS["llama3-70b"], num_layers=12, seq=4096)
    assert (first.seconds, first.plan.zero, first.plan.precision) == (0.843, 1, "mixed_fp32_grads")
    hidden = ("tensor_hidden", "context_hidden", "data_hidden", "gather_hidden")
    assert [getattr(MEGATRON_CORE_NO_OVERLAP, name) for name in hidden] == [0.0] * 4
    assert "Apache License" in (LARGE_TABLES / "simumax" / "LICENSE").read_text(encoding="utf-8")


def test_simumax_refuses_what_is_not_modelled(tmp_path):
    with pytest.raises(ValueError, match="there is no table 'moe_rows'; give 'dense_rows', 'cp_rows', 'expert_rows'"):
        simumax_steps("moe_rows")
    row = next(csv.DictReader((LARGE_TABLES / "simumax" / "cp_rows.csv").read_text(encoding="utf-8").splitlines()))
    with pytest.raises(ValueError, match="of the model 'mixtral', which is not known; add it to SIMUMAX_MODELS"):
        simumax_steps(written(tmp_path, [row | {"model": "mixtral"}]))


def test_simumax_rows_with_experts_are_deepseek_v2_with_four_layers():
    rows = simumax_steps("expert_rows")
    assert {row.model for row in rows} == {replace(ROUTED["deepseek-v2"], num_layers=4)}
    assert {(row.plan.dp, row.plan.pp, row.plan.ep) for row in rows} == {(8, 1, 8), (4, 2, 4)}
    assert {row.stack for row in rows} == {MEGATRON_CORE_NO_OVERLAP} and rows[0].seconds == pytest.approx(0.3666)


def test_variants_are_of_gpus_that_the_course_knows():
    assert {key for key, _ in VARIANTS.values()} == set(GPUS)
