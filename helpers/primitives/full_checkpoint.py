"""A full checkpoint: whole tensors under the plain model's names, for one process, for another library, or to publish.

    read_full(folder)      a sharded checkpoint -> plain state_dicts; one process and no ranks
    load_full(state, …)    plain state_dicts -> shards: each rank cuts its own, and nothing is sent but the weights
Between the two, `torch.save(state, file)` makes it one file. The state_dicts are those of the plain model and of the
plain torch optimizer, so one process can go on where ranks stopped, and ranks where one process did.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn

from .shard_parts import MASTER, Owned, Part, owned
from .sharded_checkpoint import ABOUT, LoadPlanner, Range, check_files, take_over, unpacked


def read_full(folder: str | os.PathLike) -> dict:
    """{"model", "optimizer", "masters", "extra"} of a sharded checkpoint, in one process: all of it must fit in memory.

    "model": name -> tensor, as `model.load_state_dict(…, strict=False)` takes it, tied parameters once. "optimizer":
    what the plain optimizer's load_state_dict takes, parameters in the order of the groups. "masters": name -> fp32
    weights, if there were any. Raises ValueError for a folder that holds no whole checkpoint.
    """
    stored = check_files(Path(folder))
    ranges = {name: Range(torch.zeros(one.size, dtype=one.properties.dtype)) for name, one in stored.items()}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # one process is what is meant
        dcp.load(ranges, storage_reader=dcp.FileSystemReader(folder), planner=LoadPlanner(), no_dist=True)
    tensors = {name: one.tensor for name, one in ranges.items()}
    about = unpacked(tensors.pop(ABOUT))
    shapes = about["shapes"] | about["whole"]
    state = {"model": {}, "optimizer": _empty_optimizer(about["groups"]), "masters": {}, "extra": about["extra"]}
    order = [name for _, names in about["groups"] for name in names]
    for name, tensor in tensors.items():
        kind, _, rest = name.partition("/")
        if kind == "model":
            state["model"][rest] = tensor.view(shapes[rest])
            continue
        parameter, _, key = rest.rpartition("/")
        value = tensor[0].clone() if kind == "number" else tensor.view(shapes[parameter])
        if key == MASTER:
            state["masters"][parameter] = value
        else:
            state["optimizer"]["state"].setdefault(order.index(parameter), {})[key] = value
    return state


def load_full(state: Mapping, sharded: object, optimizer: object = None, *, model: nn.Module | None = None) -> object:
    """Cut whole tensors into this rank's shards; every rank calls it with the same state. Returns state["extra"].

    state: what `read_full` gave, or {"model": model.state_dict(), "optimizer": optimizer.state_dict()} of one process.
    The others as in `sharded_checkpoint.save`. Raises ValueError for another model or other parameter groups.
    """
    mine = owned(sharded, optimizer, model)
    _check_model(mine, state["model"])
    names = [name for _, members in mine.groups for name in members]
    saved = state.get("optimizer")
    if saved is not None and mine.optimizer is not None:
        _check_groups(mine, saved)
    with torch.no_grad():
        for part in mine.parts:
            part.tensor.copy_(_cut(state["model"][part.name], part))
            if part.local is not None and part.local is not part.tensor:
                part.local.copy_(_cut(state.get("masters", {}).get(part.name, state["model"][part.name]), part))
        for name, tensor in mine.whole.items():
            tensor.copy_(state["model"][name])
    if saved is not None and mine.optimizer is not None:
        place = {name: index for index, name in enumerate(names)}
        states = {id(p.local): _cut_state(saved["state"].get(place[p.name], {}), p) for p in mine.parts}
        take_over(mine, [_options(group) for group in saved["param_groups"]], states)
    if hasattr(sharded, "gather_parameters"):
        sharded.gather_parameters()
    return state.get("extra")


def _cut(whole: Tensor, part: Part) -> Tensor:
    return whole.reshape(-1)[part.start : part.stop]


def _cut_state(state: dict, part: Part) -> dict:
    """Of a part without elements nothing is kept."""
    if not part.tensor.numel():
        return {}
    return {key: value.clone() if value.dim() == 0 else _cut(value, part).clone() for key, value in state.items()}


def _options(group: dict) -> dict:
    return {key: value for key, value in group.items() if key not in ("params", "param_names")}


def _empty_optimizer(groups: list[tuple[dict, list[str]]]) -> dict:
    """torch's format: parameters are numbers, counted through the groups."""
    param_groups, count = [], 0
    for options, names in groups:
        param_groups.append(options | {"params": list(range(count, count + len(names)))})
        count += len(names)
    return {"state": {}, "param_groups": param_groups}


def _check_model(mine: Owned, saved: Mapping[str, Tensor]) -> None:
    wanted = mine.shapes | {name: tensor.shape for name, tensor in mine.whole.items()}
    for name, shape in wanted.items():
        found = tuple(saved[name].shape) if name in saved else "not in it"
        if found != tuple(shape):
            raise ValueError(
                f"this is the state of another model: {name} is {found} there and {tuple(shape)} here. Build the model "
                "that was saved, and give Zero1 model.named_parameters(), so that names are the model's"
            )


def _check_groups(mine: Owned, saved: dict) -> None:
    there = [len(group["params"]) for group in saved["param_groups"]]
    here = [len(members) for _, members in mine.groups]
    if there != here:
        raise ValueError(
            f"the optimizer's state has parameter groups of {there} parameters, this one has {here}: build the groups "
            "as then, without frozen parameters"
        )
