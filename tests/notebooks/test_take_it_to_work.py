"""The page of tools for work: the variables that it names are those of the torch that is installed."""

from __future__ import annotations

import mmap
import re
from pathlib import Path

import torch

from tests.notebooks.chapter import ROOT, load, source

HOME = Path(torch.__file__).parent


def test_every_variable_of_torch_is_one():
    """In the headers, which the build without CUDA has too, or in the library."""
    page = "".join(map(source, load(ROOT / "notebooks" / "take_it_to_work.ipynb")))
    headers = "".join(path.read_text() for path in (HOME / "include/torch/csrc/distributed/c10d").glob("*.hpp"))
    names = {*re.findall(r"`(TORCH_\w+|GLOO_\w+)[=`]", page)}
    with (HOME / "lib" / "libtorch_cpu.so").open("rb") as library:
        held = mmap.mmap(library.fileno(), 0, access=mmap.ACCESS_READ)
        assert len(names) > 10 and not [name for name in names if name not in headers and held.find(name.encode()) < 0]
    default = re.search(r'"TORCH_FR_BUFFER_SIZE", "\w+"}, (\d+)\)', headers)[1]
    assert re.search(rf"^\| `TORCH_FR_BUFFER_SIZE` .*\| {default} \|", page, re.MULTILINE)
