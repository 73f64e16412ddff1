"""`make test-torch`: the environment in which another torch lies above the packages of this one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy

from tools.try_torch import make_layer, pip_command


def test_a_layer_has_its_own_torch_and_everything_else_of_this_environment(tmp_path):
    python = make_layer(tmp_path / "layer")
    (packages,) = (tmp_path / "layer" / "lib").glob("python*/site-packages")
    (packages / "torch.py").write_text("__version__ = 'another'")
    told = "import torch, numpy, helpers; print(torch.__version__, numpy.__file__, helpers.__name__, sep='\\n')"
    said = subprocess.run([python, "-c", told], capture_output=True, text=True, check=True, cwd=tmp_path).stdout
    assert said.splitlines() == ["another", numpy.__file__, "helpers"]
    assert (tmp_path / "layer" / "share" / "jupyter").exists(), "kernels are looked up there"


def test_pip_is_asked_for_the_newest_torch_or_for_the_one_that_is_named():
    newest, named = (pip_command(Path("layer/bin/python"), version, "URL") for version in ("", "2.13.0"))
    assert newest[0] == sys.executable and newest[-1] == "torch" and named[-1] == "torch==2.13.0"
    assert "--upgrade" in newest and newest[newest.index("--python") + 1] == "layer/bin/python"
