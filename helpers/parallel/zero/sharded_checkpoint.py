"""Checkpoints of sharded training: every rank writes its shards, and any number of ranks reads what it needs of them.

    save(folder, sharded, …)   each rank writes a file; the last, .metadata, says which range is where
    load(folder, sharded, …)   the ranks may be more or fewer: each reads the ranges that its own shards cover
Files and resharding are torch.distributed.checkpoint's; here it learns that a shard is a range of a flattened tensor.
A save is whole or not there: it is written beside `folder` and renamed at its end.
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

ABOUT = "about"
PARTIAL = ".partial"


def save(
    folder: str | os.PathLike,
    sharded: object,
    optimizer: object = None,
    *,
    model: nn.Module | None = None,
    extra: object = None,
) -> None:
    """Write a sharded checkpoint; every rank calls it. The folder must be one that all ranks see.

    sharded: a Zero1 or a Zero2; or a Zero3 with its `optimizer`. model: beside Zero1 and Zero2, the plain model, whose
    buffers and frozen parameters are saved, too. extra: plain data, such as the number of the step and the scheduler.
    Raises ValueError if the folder already holds a checkpoint.
    """
    mine, folder, group = local_shards(sharded, optimizer, model), Path(folder), sharded.group
    if (folder / ".metadata").exists():
        raise ValueError(f"{folder} holds a checkpoint already: give each its own folder, such as step_100")
    partial = folder.with_name(folder.name + PARTIAL)
    if group.rank() == 0:
        shutil.rmtree(partial, ignore_errors=True)  # of a save that was interrupted
    dist.barrier(group=group)
    ranges = _ranges(mine) | _about(mine, group, extra)
    writer = dcp.FileSystemWriter(partial, single_file_per_rank=True)
    dcp.save(ranges, storage_writer=writer, planner=_SavePlanner(), process_group=group)
    if group.rank() == 0:
        os.replace(partial, folder)
    dist.barrier(group=group)


def load(
    folder: str | os.PathLike, sharded: object, optimizer: object = None, *, model: nn.Module | None = None
) -> object:
    """Restore weights, the optimizer's state and its options; every rank calls it. Returns what `extra` was.

    The number of ranks, buckets and units may be others than at the time of saving. Raises ValueError, before anything
    is changed, for a folder that holds no whole checkpoint, and for one of another model or of other parameter groups.
    """
    mine, group = local_shards(sharded, optimizer, model), sharded.group
    stored = check_files(Path(folder))
    about = _read_about(folder, stored, group)
    _check_fits(mine, about, folder)
    ranges = _ranges(mine, with_state=False)
    states = _room_for_states(mine, stored, ranges) if mine.optimizer is not None else {}
    dcp.load(ranges, storage_reader=dcp.FileSystemReader(folder), planner=LoadPlanner(), process_group=group)
    restore_optimizer(mine, [options for options, _ in about["groups"]], states)
    if hasattr(sharded, "gather_parameters"):
        sharded.gather_parameters()
    return about["extra"]


@dataclass
class TensorRange:
    """Elements start … of a flattened tensor with numel elements; here they are `tensor`, 1-D."""

    tensor: Tensor
    start: int = 0
    numel: int | None = None

    @property
    def chunk(self) -> md.ChunkStorageMetadata:
        return md.ChunkStorageMetadata(torch.Size([self.start]), self.tensor.shape)

    @property
    def size(self) -> torch.Size:
        return self.tensor.shape if self.numel is None else torch.Size([self.numel])


class _SavePlanner(dcp.DefaultSavePlanner):
    """Tells torch which range each rank writes. What several ranks hold alike is written once."""

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

    def lookup_object(self, index: md.MetadataIndex) -> Tensor:
        return self.state_dict[index.fqn].tensor.detach()


class LoadPlanner(dcp.DefaultLoadPlanner):
    """Tells torch which range each rank wants; which files hold it, torch finds out."""

    def __init__(self):
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    def set_up_planner(self, state_dict: dict, metadata: md.Metadata | None = None, is_coordinator: bool = False):
        self.state_dict, self.metadata, self.is_coordinator = state_dict, metadata, is_coordinator

    def create_local_plan(self) -> plans.LoadPlan:
        stored = self.metadata.state_dict_metadata
        items = [
            item
            for name, part in self.state_dict.items()
            for item in create_read_items_for_chunk_list(name, stored[name], [part.chunk])
        ]
        return plans.LoadPlan(items)

    def lookup_tensor(self, index: md.MetadataIndex) -> Tensor:
        return self.state_dict[index.fqn].tensor.detach()


def _ranges(mine: LocalShards, *, with_state: bool = True) -> dict[str, TensorRange]:
    """What this rank saves, by its name in the files; without state: what it reads its weights into."""
    ranges = {f"model/{name}": TensorRange(tensor.detach().view(-1)) for name, tensor in mine.whole.items()}
    for part in mine.parts:
        if part.tensor.numel():
            ranges[f"model/{part.name}"] = TensorRange(part.tensor.detach(), part.start, part.shape.numel())
            if with_state:
                ranges |= _state_ranges(part, mine.state_of(part))
    return ranges


def _state_ranges(part: ShardRange, state: dict) -> dict[str, TensorRange]:
    """state/<parameter>/<key> is as long as the parameter; number/<parameter>/<key> is one number, a step counter."""
    ranges = {}
    for key, value in state.items():
        if isinstance(value, Tensor) and value.shape == part.tensor.shape:
            ranges[f"state/{part.name}/{key}"] = TensorRange(value.detach(), part.start, part.shape.numel())
        elif isinstance(value, Tensor) and value.dim() == 0:
            ranges[f"number/{part.name}/{key}"] = TensorRange(value.detach().view(1))
        elif value is not None:
            raise ValueError(
                f"the optimizer's state {key!r} of {part.name} is {value!r:.80}: a checkpoint takes tensors as long as "
                "the shard, and single numbers as tensors without dimensions"
            )
    return ranges


def _room_for_states(mine: LocalShards, stored: dict, ranges: dict[str, TensorRange]) -> list[dict]:
    """A state for each local tensor of the optimizer, filled once `ranges`, which it adds to, have been read."""
    keys: dict[str, list[tuple[str, str]]] = {}
    for name in stored:
        kind, _, rest = name.partition("/")
        if kind in ("state", "number"):
            parameter, _, key = rest.rpartition("/")
            keys.setdefault(parameter, []).append((kind, key))
    states = {}
    for part in mine.parts:
        state = states[id(part.local)] = {}
        for kind, key in keys.get(part.name, ()) if part.tensor.numel() else ():
            name, size = f"{kind}/{part.name}/{key}", part.shape.numel()
            dtype = stored[name].properties.dtype
            if kind == "number":
                ranges[name] = TensorRange(torch.zeros(1, dtype=dtype))
                state[key] = ranges[name].tensor[0]
            else:
                is_master = key == MASTER
                room = part.local.detach() if is_master else torch.zeros_like(part.local, dtype=dtype).detach()
                ranges[name] = TensorRange(room, part.start, size)
                state |= {} if is_master else {key: room}
    return states


def restore_optimizer(mine: LocalShards, options: list[dict], states: dict[int, dict]) -> None:
    """Give the optimizer what was read; torch's load_state_dict puts it on the devices where it belongs."""
    if mine.optimizer is None:
        return
    own = mine.optimizer.state_dict()
    places = [i for group in own["param_groups"] for i in group["params"]]
    tensors = [tensor for group in mine.optimizer.param_groups for tensor in group["params"]]
    state = {i: states[id(tensor)] for i, tensor in zip(places, tensors, strict=True) if states.get(id(tensor))}
    groups = [group | saved for group, saved in zip(own["param_groups"], options, strict=True)]
    mine.optimizer.load_state_dict({"state": state, "param_groups": groups})


def _about(mine: LocalShards, group: dist.ProcessGroup, extra: object) -> dict[str, TensorRange]:
    """What is no tensor; rank 0 writes it, as bytes."""
    if group.rank() != 0:
        return {}
    shapes = {name: tuple(shape) for name, shape in mine.shapes.items()}
    whole = {name: tuple(tensor.shape) for name, tensor in mine.whole.items()}
    about = {"shapes": shapes, "whole": whole, "groups": mine.groups, "world_size": group.size(), "extra": extra}
    buffer = io.BytesIO()
    torch.save(about, buffer)
    return {ABOUT: TensorRange(torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8))}


def _read_about(folder: str | os.PathLike, stored: dict, group: dist.ProcessGroup) -> dict:
    room = {ABOUT: TensorRange(torch.zeros(stored[ABOUT].size, dtype=torch.uint8))}
    dcp.load(room, storage_reader=dcp.FileSystemReader(folder), planner=LoadPlanner(), process_group=group)
    return unpacked(room[ABOUT].tensor)


def unpacked(about: Tensor) -> dict:
    """What is no tensor, from the bytes that rank 0 wrote: plain data alone, a file cannot run code."""
    return torch.load(io.BytesIO(about.numpy().tobytes()), weights_only=True)


def check_files(folder: Path) -> dict[str, md.TensorStorageMetadata]:
    """What is stored, by name. Raises ValueError if the checkpoint is not whole."""
    if not (folder / ".metadata").exists():
        why = "it does not exist" if not folder.exists() else "it has no .metadata, which is written last"
        raise ValueError(f"{folder} holds no whole checkpoint: {why}. Was the save interrupted? Take an earlier one")
    try:
        metadata = dcp.FileSystemReader(folder).read_metadata()
    except (EOFError, pickle.UnpicklingError) as error:
        raise ValueError(f"{folder}/.metadata is damaged ({error}): take an earlier checkpoint") from error
    ends: dict[str, int] = {}
    for info in metadata.storage_data.values():
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


def _check_fits(mine: LocalShards, about: dict, folder: str | os.PathLike) -> None:
    """Raise ValueError where the checkpoint is of another model or of other parameter groups."""
    here = {name: tuple(shape) for name, shape in mine.shapes.items()}
    here_whole = {name: tuple(tensor.shape) for name, tensor in mine.whole.items()}
    for own, saved in ((here, about["shapes"]), (here_whole, about["whole"])):
        for name in [*saved, *own]:
            if own.get(name) != saved.get(name):
                raise ValueError(
                    f"{folder} is a checkpoint of another model: {name} is {saved.get(name, 'not in it')} there and "
                    f"{own.get(name, 'not in it')} here. Build the model that was saved, and name parameters as then"
                )
    names = [members for _, members in about["groups"]]
    if mine.optimizer is not None and names != [members for _, members in mine.groups]:
        raise ValueError(
            f"{folder} was saved with parameter groups of {[len(n) for n in names]} parameters; this optimizer has "
            f"{[len(members) for _, members in mine.groups]}, or others in them: build the groups as then"
        )
