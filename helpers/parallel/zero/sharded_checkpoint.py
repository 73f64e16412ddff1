"""Saves and loads checkpoints of ZeRO: every rank writes its shards, and any number of ranks can load them.

    save(folder, sharded, …)   each rank writes one file; .metadata, written last, says where each range is
    load(folder, sharded, …)   there may be more or fewer ranks: each reads the ranges that its own shards cover
torch.distributed.checkpoint (dcp) writes the files and reshards: when it loads, it finds the files that have the wanted
elements. It asks a planner which elements each rank writes or reads, and the two planners here answer with ranges of
flattened tensors. A save is complete or absent, because it is written to another folder and renamed at the end.
The functions get a LocalShards (state.py): what this rank stores, under the plain model's names.
"""

from __future__ import annotations

import io
import os
import pickle
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint import metadata as md
from torch.distributed.checkpoint import planner as plans
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from helpers.parallel.zero.state import MASTER, LocalShards, ShardRange, local_shards

ABOUT = "about"  # the name under which everything that is not a tensor is stored, as bytes
PARTIAL = ".partial"  # the ending of a folder that is still being written


def save(
    folder: str | os.PathLike,
    sharded: object,
    optimizer: object = None,
    *,
    model: nn.Module | None = None,
    extra: object = None,
) -> None:
    """Write a sharded checkpoint. Every rank calls it, with a folder that all ranks see.

    sharded: a Zero1 or a Zero2, or a Zero3 with its `optimizer`. model: with Zero1 and Zero2 the plain model, whose
    buffers and frozen parameters are saved, too. extra: plain data, such as the step number and a scheduler's state.
    Raises ValueError if the folder already has a checkpoint.
    """
    shards, folder, group = local_shards(sharded, optimizer, model), Path(folder), sharded.group
    if (folder / ".metadata").exists():
        raise ValueError(f"{folder} already holds a checkpoint: give each checkpoint its own folder, such as step_100")
    partial = folder.with_name(folder.name + PARTIAL)
    if group.rank() == 0:
        shutil.rmtree(partial, ignore_errors=True)  # a save that was interrupted may have left it
    dist.barrier(group=group)
    ranges = _ranges(shards) | _about(shards, group, extra)
    writer = dcp.FileSystemWriter(partial, single_file_per_rank=True)
    dcp.save(ranges, storage_writer=writer, planner=_SavePlanner(), process_group=group)
    if group.rank() == 0:
        os.replace(partial, folder)
    dist.barrier(group=group)


def load(
    folder: str | os.PathLike, sharded: object, optimizer: object = None, *, model: nn.Module | None = None
) -> object:
    """Restore weights, the optimizer's state and its options, and return `extra`. Every rank calls it.

    The number of ranks, buckets and units may differ from those of the save. Raises ValueError, before anything is
    changed, for a folder without a complete checkpoint, for another model and for other parameter groups.
    """
    shards, group = local_shards(sharded, optimizer, model), sharded.group
    stored = check_files(Path(folder))
    about = _read_about(folder, stored, group)
    _check_fits(shards, about, folder)
    ranges = _ranges(shards, with_state=False)
    # allocates the optimizer's states and adds them to `ranges`, so that dcp.load fills them too
    states = _allocate_states(shards, stored, ranges) if shards.optimizer is not None else {}
    dcp.load(ranges, storage_reader=dcp.FileSystemReader(folder), planner=LoadPlanner(), process_group=group)
    # about["groups"]: for each parameter group its options and the names of its parameters
    restore_optimizer(shards, [options for options, _ in about["groups"]], states)
    if hasattr(sharded, "gather_parameters"):  # Zero1 and Zero2, where every rank stores full weights
        sharded.gather_parameters()
    return about["extra"]


@dataclass
class TensorRange:
    """A range of a flattened tensor: its elements from `start` on."""

    tensor: Tensor  # the elements of the range, 1-D
    start: int = 0
    numel: int | None = None  # of the flattened tensor; None where the range is all of it

    @property
    def chunk(self) -> md.ChunkStorageMetadata:
        """Where the range begins and how long it is, in torch's words."""
        return md.ChunkStorageMetadata(torch.Size([self.start]), self.tensor.shape)

    @property
    def size(self) -> torch.Size:
        """The size of the flattened tensor."""
        return self.tensor.shape if self.numel is None else torch.Size([self.numel])


class _SavePlanner(dcp.DefaultSavePlanner):
    """Tells torch which range each rank writes. torch writes once what several ranks have in common.

    torch sets `state_dict` to the ranges by name, then calls create_local_plan, and lookup_object for each item.
    """

    def __init__(self):
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    def create_local_plan(self) -> plans.SavePlan:
        self.plan = plans.SavePlan([self._item(name, part) for name, part in self.state_dict.items()])
        return self.plan

    def _item(self, name: str, part: TensorRange) -> plans.WriteItem:
        properties = md.TensorProperties.create_from_tensor(part.tensor)
        data = plans.TensorWriteData(chunk=part.chunk, properties=properties, size=part.size)
        index = md.MetadataIndex(name, part.chunk.offsets)
        return plans.WriteItem(index=index, type=plans.WriteItemType.SHARD, tensor_data=data)

    def lookup_object(self, index: md.MetadataIndex) -> Tensor:  # index.fqn: the name
        return self.state_dict[index.fqn].tensor.detach()


class LoadPlanner(dcp.DefaultLoadPlanner):
    """Tells torch which ranges this rank reads; torch finds the files that have them and writes into the ranges."""

    def set_up_planner(self, state_dict: dict, metadata: md.Metadata | None = None, is_coordinator: bool = False):
        self.state_dict, self.metadata, self.is_coordinator = state_dict, metadata, is_coordinator

    def create_local_plan(self) -> plans.LoadPlan:
        stored = self.metadata.state_dict_metadata
        items: list[plans.ReadItem] = []  # one for each file and wanted range that overlap
        for name, part in self.state_dict.items():
            items += create_read_items_for_chunk_list(name, stored[name], [part.chunk])
        return plans.LoadPlan(items)

    def lookup_tensor(self, index: md.MetadataIndex) -> Tensor:
        return self.state_dict[index.fqn].tensor.detach()


def _ranges(shards: LocalShards, *, with_state: bool = True) -> dict[str, TensorRange]:
    """Return what this rank saves, by its name in the files. Without state, these are the targets of a load."""
    ranges = {f"model/{name}": TensorRange(tensor.detach().view(-1)) for name, tensor in shards.unsharded.items()}
    for shard in shards.ranges:
        if shard.tensor.numel():
            ranges[f"model/{shard.name}"] = TensorRange(shard.tensor.detach(), shard.start, shard.shape.numel())
            if with_state:
                ranges |= _state_ranges(shard, shards.state_of(shard))
    return ranges


def _state_ranges(shard: ShardRange, state: dict) -> dict[str, TensorRange]:
    """Name the optimizer's state: state/<parameter>/<key> is a range, number/<parameter>/<key> a single number."""
    ranges = {}
    for key, value in state.items():
        if isinstance(value, Tensor) and value.shape == shard.tensor.shape:
            ranges[f"state/{shard.name}/{key}"] = TensorRange(value.detach(), shard.start, shard.shape.numel())
        elif isinstance(value, Tensor) and value.dim() == 0:
            ranges[f"number/{shard.name}/{key}"] = TensorRange(value.detach().view(1))
        elif value is not None:
            raise ValueError(
                f"the optimizer's state {key!r} of {shard.name} is {value!r:.80}: a checkpoint takes tensors as long "
                "as the shard, and single numbers as tensors without dimensions"
            )
    return ranges


def _allocate_states(shards: LocalShards, stored: dict, ranges: dict[str, TensorRange]) -> dict[int, dict]:
    """Allocate the optimizer's state of each local tensor and add it to `ranges`, so that the load fills it.

    Returns the states by the id of the local tensor.
    """
    keys: dict[str, list[tuple[str, str]]] = {}  # parameter -> (kind, key) of each state that the files have
    for name in stored:  # such as state/blocks.0.weight/exp_avg
        kind, _, rest = name.partition("/")
        if kind in ("state", "number"):
            parameter, _, key = rest.rpartition("/")
            keys.setdefault(parameter, []).append((kind, key))
    states = {}
    for shard in shards.ranges:
        state = states[id(shard.local)] = {}
        stored_here = keys.get(shard.name, ()) if shard.tensor.numel() else ()  # nothing for a range without elements
        for kind, key in stored_here:
            name = f"{kind}/{shard.name}/{key}"
            dtype = stored[name].properties.dtype
            if kind == "number":
                ranges[name] = TensorRange(torch.zeros(1, dtype=dtype))
                state[key] = ranges[name].tensor[0]  # a view without dimensions, so the load fills it
            elif key == MASTER:  # float32 masters exist already: they are the optimizer's own parameters
                ranges[name] = TensorRange(shard.local.detach(), shard.start, shard.shape.numel())
            else:
                state[key] = torch.zeros_like(shard.local, dtype=dtype).detach()
                ranges[name] = TensorRange(state[key], shard.start, shard.shape.numel())
    return states


def restore_optimizer(shards: LocalShards, options: list[dict], states: dict[int, dict]) -> None:
    """Give the optimizer what was read; torch's load_state_dict moves it to the right devices."""
    if shards.optimizer is None:
        return
    # a state_dict names the optimizer's tensors by numbers, in the order of the parameter groups
    current = shards.optimizer.state_dict()
    indices = [index for group in current["param_groups"] for index in group["params"]]
    tensors = [tensor for group in shards.optimizer.param_groups for tensor in group["params"]]
    state = {i: states[id(tensor)] for i, tensor in zip(indices, tensors, strict=True) if states.get(id(tensor))}
    # the saved options replace those that the optimizer was built with; "params" stays
    groups = [group | saved for group, saved in zip(current["param_groups"], options, strict=True)]
    shards.optimizer.load_state_dict({"state": state, "param_groups": groups})


def _about(shards: LocalShards, group: dist.ProcessGroup, extra: object) -> dict[str, TensorRange]:
    """Return everything that is not a tensor as bytes, on rank 0; the other ranks write none of it."""
    if group.rank() != 0:
        return {}
    about = _shapes(shards) | {"groups": shards.groups, "world_size": group.size(), "extra": extra}
    buffer = io.BytesIO()
    torch.save(about, buffer)
    return {ABOUT: TensorRange(torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8))}


def _shapes(shards: LocalShards) -> dict[str, dict[str, tuple[int, ...]]]:
    """Return the model's shapes by name: "shapes" of sharded parameters, "whole" of tensors that every rank stores."""
    sharded = {name: tuple(shape) for name, shape in shards.shapes.items()}
    return {"shapes": sharded, "whole": {name: tuple(tensor.shape) for name, tensor in shards.unsharded.items()}}


def _read_about(folder: str | os.PathLike, stored: dict, group: dist.ProcessGroup) -> dict:
    """Return the dict that `_about` wrote."""
    target = {ABOUT: TensorRange(torch.zeros(stored[ABOUT].size, dtype=torch.uint8))}
    dcp.load(target, storage_reader=dcp.FileSystemReader(folder), planner=LoadPlanner(), process_group=group)
    # weights_only accepts plain data only, so that a file cannot run code
    return torch.load(io.BytesIO(target[ABOUT].tensor.numpy().tobytes()), weights_only=True)


def check_files(folder: Path) -> dict[str, md.TensorStorageMetadata]:
    """Return what is stored, by name. Raises ValueError if the checkpoint is not complete."""
    if not (folder / ".metadata").exists():
        why = "it does not exist" if not folder.exists() else "it has no .metadata, which is written last"
        raise ValueError(f"{folder} holds no complete checkpoint: {why}. Was the save interrupted? Take an earlier one")
    try:
        metadata = dcp.FileSystemReader(folder).read_metadata()
    except (EOFError, pickle.UnpicklingError) as error:
        raise ValueError(f"{folder}/.metadata is damaged ({error}): take an earlier checkpoint") from error
    ends: dict[str, int] = {}  # file -> the number of bytes that it must have
    for info in metadata.storage_data.values():  # where each range begins in which file, and its length
        ends[info.relative_path] = max(ends.get(info.relative_path, 0), info.offset + info.length)
    for name, end in sorted(ends.items()):
        size = (folder / name).stat().st_size if (folder / name).exists() else None
        if size is None or size < end:
            state = "is missing" if size is None else f"has {size} of {end} bytes"
            raise ValueError(
                f"{folder}: the shard {name} {state}. Every rank wrote one of {len(ends)} files, and none can be "
                "replaced by the others: copy the whole folder, or take an earlier checkpoint"
            )
    return metadata.state_dict_metadata


def _check_fits(shards: LocalShards, about: dict, folder: str | os.PathLike) -> None:
    """Raise ValueError where the checkpoint is of another model or has other parameter groups."""
    for key, here in _shapes(shards).items():
        saved = about[key]
        for name in [*saved, *here]:
            if here.get(name) != saved.get(name):
                raise ValueError(
                    f"{folder} is a checkpoint of another model: {name} is {saved.get(name, 'not in it')} there and "
                    f"{here.get(name, 'not in it')} here. Build the model that was saved, with the same parameter names"
                )
    names = [members for _, members in about["groups"]]
    if shards.optimizer is not None and names != [members for _, members in shards.groups]:
        raise ValueError(
            f"{folder} was saved with parameter groups of {[len(n) for n in names]} parameters; this optimizer has "
            f"{[len(members) for _, members in shards.groups]}, or other parameters in them: build the same groups"
        )
