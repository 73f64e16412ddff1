"""The JSON of an old post: each key is explained, the batch rule is DeepSpeed's, its launcher runs it repaired."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.chapters.sources import (
    FOLDER,
    attempt,
    batch_sizes,
    flat_keys,
    key_meanings,
    load_config,
    roadmap_scene,
)

SCRIPT = Path(__file__).with_name("deepspeed_train.py")


def test_every_key_is_explained_and_the_repaired_file_keeps_what_was_printed():
    repaired, printed = dict(flat_keys(load_config())), dict(flat_keys(load_config("printed")))
    assert set(key_meanings()) == set(repaired) >= set(printed)
    assert {key for key in printed if printed[key] != repaired[key]} == {
        "fp16.enabled", "steps_per_print", "wall_clock_breakdown"
    }  # fmt: skip


@pytest.mark.parametrize(
    "settings, expected",
    [
        (load_config(), (16, 4, 2)),
        ({"train_batch_size": 4096}, (4096, 2048, 1)),
        ({"train_micro_batch_size_per_gpu": 3}, (6, 3, 1)),
        ({"train_micro_batch_size_per_gpu": 3, "gradient_accumulation_steps": 4}, (24, 3, 4)),
        ({"train_batch_size": 24, "train_micro_batch_size_per_gpu": 3}, (24, 3, 4)),
    ],
)
def test_batches_on_two_ranks(settings, expected):
    assert batch_sizes(settings, ranks=2) == expected


@pytest.mark.parametrize(
    "settings, said",
    [
        (load_config("printed"), 'add one of them, such as "train_batch_size": 16'),
        ({"train_batch_size": 7}, "train_batch_size is 7, but 3 examples x 1 micro-batches x 2 ranks are 6; make"),
        ({"train_batch_size": 1}, "make train_batch_size a multiple of 2"),
    ],
)
def test_what_deepspeed_refuses_gets_a_sentence(settings, said):
    with pytest.raises(ValueError, match=said):
        batch_sizes(settings, ranks=2)


def why_not() -> str:
    lacking = [tool for tool in ("g++", "ninja") if shutil.which(tool) is None]
    return ", ".join(lacking + ["deepspeed"] * (importlib.util.find_spec("deepspeed") is None))


@pytest.mark.slow
@pytest.mark.skipif(bool(why_not()), reason=f"missing: {why_not()}; pip install .[engines] brings DeepSpeed")
@pytest.mark.timeout(450)
@pytest.mark.parametrize(
    "name, returncode, said",
    [
        ("printed", 1, ["Either train_batch_size or train_micro_batch_size_per_gpu needs to be provided"]),
        ("ds_config", 0, ["rank 0 took 10 steps on 4 examples each", "rank 1 took 10 steps", "step=10", "bwd: "]),
    ],
)
def test_deepspeeds_launcher_refuses_what_was_printed_and_runs_the_repaired_file(tmp_path, name, returncode, said):
    command = [sys.executable, "-m", "deepspeed.launcher.runner", "--num_gpus", "2", str(SCRIPT)]
    command += ["--deepspeed_config", str(FOLDER / f"{name}.json")]
    own = {"DS_ACCELERATOR": "cpu", "TORCH_EXTENSIONS_DIR": os.environ.get("TORCH_EXTENSIONS_DIR", str(tmp_path))}
    own["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    done = subprocess.run(command, env=os.environ | own, cwd=tmp_path, capture_output=True, text=True, timeout=400)
    out = done.stdout + done.stderr
    assert done.returncode == returncode and all(text in out for text in said), out[-3000:]


def test_a_failure_and_a_warning_are_told_and_nothing_is_kept(capsys):
    names = {"x": 1}
    attempt("import warnings\nwarnings.warn('old')\nx = 2", **names)
    attempt("raise ValueError('[enforce fail at /a/b.cc:84] no ib0. \\nmore')")
    assert names == {"x": 1}
    said = capsys.readouterr().out
    assert said.startswith(
        ">>> import warnings\n>>> warnings.warn('old')\n>>> x = 2\n    runs\n    warns: old\n>>> raise"
    )
    assert said.endswith("\n    ValueError: no ib0. \n")


def test_the_roadmap_puts_a_dot_at_the_release_and_a_square_at_the_printed_year():
    scene = roadmap_scene({"DDP": (2021, 2017), "FSDP": (2023, 2022)})
    marks = {item.tooltip: item for item in scene.items if getattr(item, "tooltip", "")}
    released, printed = marks["DDP: first released in 2017"], marks["DDP: printed 2021"]
    ticks = {item.text: item.x for item in scene.items if getattr(item, "text", "").isdigit()}
    assert released.x + released.width / 2 == pytest.approx(ticks["2017"]) and released.radius > 0
    assert printed.x + printed.width / 2 == pytest.approx(ticks["2021"]) and printed.radius == 0
    assert printed.y == released.y < marks["FSDP: printed 2023"].y
