"""Replaces what no rehearsal can try, such as CUDA graphs and compiled models, and notes its name for the report.

The script runs on as far as it can, and the report names whatever it used of this. A name such as "graphs" stands for
one such thing: `words["not.graphs"]` is the sentence about it in every language. A rehearsal runs a script for CUDA on
practice cards, which are simulated GPUs that compute on the CPU.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.cuda.comm
import torch.cuda.graphs
import torch.cuda.nvtx
import torch.cuda.profiler
import torch.utils.cpp_extension

from helpers.commands.rehearse import rank_notes
from helpers.devices.call_site import call_site
from helpers.devices.cards.torch_patches import replace_in_torch, replacement
from helpers.learner.words import book
from helpers.ranks.board.sites import is_library, is_package

words = book("rehearse")
KERNELS = frozenset(  # packages that bring GPU kernels of their own
    "triton flash_attn flash_attn_interface xformers transformer_engine apex bitsandbytes cupy pycuda deepspeed "
    "causal_conv1d mamba_ssm liger_kernel cutlass vllm pynvml".split()
)


class NotRehearsed(RuntimeError):
    """The script asks for what cannot be had here, and cannot go on without it."""

    def __init__(self, name: str):
        self.words = words["stops"].format(what=words[f"not.{name}"])
        super().__init__(str(self.words))


def note_unsupported(name: str) -> None:
    """Note for the report that the script uses this, with the line that does."""
    rank_notes.note_once("not rehearsed", name=name, site=call_site())


def replace(folder: str) -> None:
    """Replace everything that cannot be rehearsed. folder: of these ranks alone, for a program of that kind."""
    cuda = torch.cuda
    cuda.CUDAGraph = cuda.graphs.CUDAGraph = _Graph
    cuda.graph = cuda.graphs.graph = _capture
    cuda.graph_pool_handle = lambda: (0, 0)  # torch names a memory pool by two numbers
    cuda.make_graphed_callables = cuda.graphs.make_graphed_callables = _graphed
    torch.compile = _compile
    torch.nn.Module.compile = lambda module, *args, **kwargs: note_unsupported("compile")
    for name in ("range_push", "range_pop", "range_start", "range_end", "mark"):
        setattr(cuda.nvtx, name, _nothing("nvtx", 0))
    # The argument is evaluated first, so each use is noted; then the block runs as usual.
    cuda.nvtx.range = lambda *args, **kwargs: contextlib.nullcontext(note_unsupported("nvtx"))
    # The value is for `profile`, which scripts use in a `with`.
    cuda.profiler.start = cuda.profiler.stop = cuda.profiler.profile = _nothing("profiler", contextlib.nullcontext())
    cuda.cudart = lambda: _Anything("profiler")  # scripts start and stop CUDA's profiler with it
    for profiler in (torch.profiler._KinetoProfile, torch.autograd.profiler.profile):
        profiler.__init__ = replacement(profiler.__init__, _init_without_gpu)
    for name in ("utilization", "temperature", "power_draw", "clock_rate", "memory_usage"):
        setattr(cuda, name, _nothing("sensors", 0))
    for name in ("_record_memory_history", "_dump_snapshot", "memory_snapshot", "_snapshot"):
        setattr(cuda.memory, name, _nothing("snapshots", []))
    torch.nn.DataParallel.__init__ = _stops("two_gpus")
    replace_in_torch("data_parallel", torch.nn.parallel.data_parallel, _stops("two_gpus"))
    for name in ("broadcast", "scatter", "gather", "reduce_add", "broadcast_coalesced"):
        setattr(torch.cuda.comm, name, _stops("two_gpus"))
    sys.meta_path.insert(0, _Kernels())
    for name in ("load", "load_inline"):
        setattr(torch.utils.cpp_extension, name, _stops("extensions"))
    for name in ("to_sparse", "to_sparse_csr", "to_sparse_coo"):
        setattr(torch.Tensor, name, replacement(getattr(torch.Tensor, name), _sparse))
    _provide_nvidia_smi(Path(folder))


def _provide_nvidia_smi(folder: Path) -> None:
    """Let a script run nvidia-smi, whose output scripts write to their logs. It prints one line."""
    program = folder / "programs" / "nvidia-smi"
    program.parent.mkdir(exist_ok=True)
    unfinished = program.with_name(f"unfinished{os.getpid()}")  # each rank writes the same one
    unfinished.write_text("#!/bin/sh\necho practice card\n", encoding="utf-8")
    unfinished.chmod(0o755)
    unfinished.rename(program)
    os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH", os.defpath), str(program.parent)])

    def note_use(event: str, args: tuple) -> None:
        if event in ("subprocess.Popen", "os.system") and program.name in str(args):
            note_unsupported("sensors")

    sys.addaudithook(note_use)


def _nothing(name: str, value: Any) -> Callable:
    """A function that only notes its use and returns this value."""

    def function(*args, **kwargs):
        note_unsupported(name)
        return value

    return function


def _stops(name: str) -> Callable:
    """A function that ends the script, because it cannot go on without the result."""

    def function(*args, **kwargs):
        raise NotRehearsed(name)

    return function


def _sparse(function: Callable, /, *args, **kwargs):
    """Calls a function that makes a sparse tensor, after a note of its use."""
    note_unsupported("sparse")
    return function(*args, **kwargs)


def _init_without_gpu(init: Callable, self, *args, activities=None, **kwargs):
    """Makes a profiler that records the CPU alone, whatever the script asks for."""
    note_unsupported("profiler")
    for name in ("use_cuda", "use_device"):
        kwargs.pop(name, None)
    if activities is not None:
        kwargs["activities"] = [torch.profiler.ProfilerActivity.CPU]
    init(self, *args, **kwargs)


class _Anything:
    """An object whose attributes are all functions that only note their use."""

    def __init__(self, name: str):
        self.name = name

    def __getattr__(self, _: str) -> Callable:
        return _nothing(self.name, 0)


class _Graph:
    """A CUDA graph that captures nothing: its operations run once, at the time of the capture, and no replay runs."""

    def __init__(self, *args, **kwargs) -> None:
        note_unsupported("graphs")

    def __getattr__(self, name: str) -> Callable:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: None


@contextlib.contextmanager
def _capture(*args, **kwargs):
    """torch.cuda.graph, whose block runs as usual."""
    note_unsupported("graphs")
    yield


def _graphed(callables, *args, **kwargs):
    """torch.cuda.make_graphed_callables, which returns what it was given."""
    note_unsupported("graphs")
    return callables


def _compile(model=None, **kwargs):
    """torch.compile, which returns the model itself. Without a model it is a decorator."""
    note_unsupported("compile")
    return model if model is not None else lambda function: function


class _Kernels:
    """A finder of imports that finds nothing, but notes when the script imports a package with kernels of its own.

    It is asked before all others, so the package need not be installed. An import by a library does not count.
    """

    def find_spec(self, name: str, path=None, target=None) -> None:
        if name.partition(".")[0] not in KERNELS:
            return None
        frame = sys._getframe(1)
        while frame is not None and "importlib" in frame.f_code.co_filename:
            frame = frame.f_back
        if frame is not None and not (is_library(frame.f_code.co_filename) or is_package(frame.f_code.co_filename)):
            note_unsupported("kernels")
        return None
