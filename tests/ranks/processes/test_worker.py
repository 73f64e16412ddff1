"""An import that was interrupted on a rank, because another rank raised, leaves nothing that spoils the next one."""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest
import torch
import torch.distributed as dist

from helpers.ranks import RankError, Ranks
from helpers.ranks.processes.worker import drop_interrupted_imports, is_torch_module

PACKAGE = """
from cut_package import part
import builtins
builtins.stop_here()
value = 3
"""
PART = """
import cut_package as owner
def value():
    return owner.value
"""


def cut(folder, told):
    """Rank 1 says that it is in the middle of its import, and waits there; rank 0 raises."""
    import builtins
    import threading

    sys.path.insert(0, folder)
    if dist.get_rank() == 0:
        dist.recv(torch.zeros(1), 1)
        raise ValueError(told)

    def stop_here():
        dist.send(torch.zeros(1), 0)
        threading.Event().wait()

    builtins.stop_here = stop_here
    importlib.import_module("cut_package")


def imported(folder):
    import builtins

    builtins.stop_here = lambda: None
    package = importlib.import_module("cut_package")
    sys.path.remove(folder)
    return package.part.value(), package.part.owner is package


def test_the_next_import_begins_anew(ranks, tmp_path):
    (tmp_path / "cut_package").mkdir()
    (tmp_path / "cut_package" / "__init__.py").write_text(PACKAGE)
    (tmp_path / "cut_package" / "part.py").write_text(PART)
    with pytest.raises(RankError, match="rank 0 raised ValueError: enough"):
        ranks[:2].run(cut, str(tmp_path), "enough")
    assert ranks[:2].run(imported, str(tmp_path)) == [(3, True)] * 2


def pretend_a_cut_import_of_torch():
    """Rank 1 waits with an orphan of torch in its modules, until it is interrupted."""
    import threading

    if dist.get_rank() == 0:
        dist.recv(torch.zeros(1), 1)
        raise ValueError("enough")
    sys.modules["torch.never.finished"] = ModuleType("torch.never.finished")
    dist.send(torch.zeros(1), 0)
    threading.Event().wait()


def test_ranks_are_new_after_a_cut_import_of_torch_which_registers_itself_only_once():
    with Ranks(2, device="cpu", quiet=True) as own:
        with pytest.raises(RankError, match="enough") as caught:
            own.run(pretend_a_cut_import_of_torch)
        assert "variables are lost" in str(caught.value)
        assert own.run(lambda: "torch.never.finished" in sys.modules) == [False, False]
    assert is_torch_module("torch._dynamo.pgo") and not is_torch_module("torchvision.ops")


def test_only_what_is_new_and_has_no_package_or_no_end_is_forgotten():
    half = ModuleType("half")
    half.__spec__ = ModuleSpec("half", None)
    half.__spec__._initializing = True
    names = ("whole", "whole.part", "gone.part", "gone.part.deep", "half.part", "known.part")
    modules = {name: ModuleType(name) for name in names} | {"half": half}
    forgotten = drop_interrupted_imports({"known.part"}, modules)
    assert set(forgotten) == {"half", "half.part", "gone.part", "gone.part.deep"}
    assert set(modules) == {"whole", "whole.part", "known.part"}
