"""Parameters of which ranks hold parts, and parameters of which they hold copies: cutting, tying, counting.

Legend: N = ranks of the group. Each parameter's placement says how many ranks hold the same entries: 1 for a part of
its own, N where it is whole on every rank, between for key and value heads that are fewer than ranks. What adds up
over ranks, such as the global norm, divides by it (shared/placement.py).
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from helpers.parallel.shared.placement import Placement, place, placements_of
from helpers.parallel.tensor_parallel.conjugate import identity_all_reduce
from helpers.parallel.tensor_parallel.tensor_plan import Cut

AXIS = "tp"


def shard_parameter(parameter: nn.Parameter, cut: Cut, group: dist.ProcessGroup | None) -> nn.Parameter:
    """This rank's part, as a parameter of its own."""
    with torch.no_grad():
        shard = nn.Parameter(cut.take(parameter, dist.get_rank(group)), parameter.requires_grad)
    return place(shard, Placement.sharded(AXIS, group, copies=cut.copies), like=parameter)


def sum_over_copies(part: Tensor | None, cut: Cut, group: dist.ProcessGroup | None) -> Tensor | None:
    """`part` itself; its gradient becomes the sum over the ranks that hold the same. None stays None.

    Forward: nothing. Backward, if there are copies: all-reduce of the whole tensor, zeros where a rank holds nothing.
    """
    if part is None or cut.copies == 1:
        return part
    ((start, stop),) = cut.ranges[dist.get_rank(group)]
    edges = [0, 0] * (part.dim() - 1) + [start, cut.whole - stop]  # F.pad begins with the last dimension
    return identity_all_reduce(F.pad(part, edges), group).narrow(0, start, stop - start)


def tie_again(model: nn.Module, pairs: Iterable[tuple[nn.Module, nn.Module]]) -> None:
    """Let two modules that shared a parameter share its part. pairs: the modules of `model`, and what replaces each.

    Raises ValueError where the new ones do not cut it alike, or one of the owners is not replaced.
    """
    pairs, parts = list(pairs), {}
    for old, new in pairs:
        for name, parameter in old.named_parameters(recurse=False):
            part, cut = getattr(new, name), getattr(new, "cuts", {}).get(name)
            known, known_cut = parts.setdefault(parameter, (part, cut))
            if known_cut != cut:
                raise ValueError(_torn(model, parameter))
            setattr(new, name, known)
    replaced = {old for old, _ in pairs}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            if module not in replaced and parts.get(parameter, (parameter,))[0] is not parameter:
                raise ValueError(_torn(model, parameter))


def _torn(model: nn.Module, parameter: nn.Parameter) -> str:
    owners = [name for name, other in model.named_parameters(remove_duplicate=False) if other is parameter]
    return (
        f"{' and '.join(owners)} are one parameter, but the plan cuts them in different ways: give both the same word"
    )


def place_the_rest(model: nn.Module, group: dist.ProcessGroup | None) -> None:
    """What is no part is whole on all N ranks."""
    for parameter in model.parameters():
        if AXIS not in placements_of(parameter):
            place(parameter, Placement.replicated(AXIS, group))


@torch.no_grad()
def gather_whole(part: Tensor, cut: Cut, group: dist.ProcessGroup | None) -> Tensor:
    """The whole tensor on every rank, by an all-gather of the parts that `cut` made."""
    shards = [torch.empty_like(part) for _ in range(dist.get_world_size(group))]
    dist.all_gather(shards, part.contiguous(), group=group)
    return cut.join(shards)


@torch.no_grad()
def gather_full_state(model: nn.Module) -> dict[str, Tensor]:
    """The state dict of the model before it was cut: names, order and shapes; whole tensors, on every rank.

    Sends an all-gather for each cut parameter; every rank must call it. A tied tensor is gathered once.
    """
    state, gathered = {}, {}
    for name, tensor in model.state_dict().items():
        path, _, leaf = name.rpartition(".")
        module = model.get_submodule(path)
        cut = getattr(module, "cuts", {}).get(leaf)
        place = tensor.data_ptr() if tensor.numel() else name
        if cut is not None and place not in gathered:
            gathered[place] = gather_whole(tensor, cut, module.group)
        state[name] = tensor.clone() if cut is None else gathered[place]
    return state
