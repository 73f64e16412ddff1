"""Saved-tensor hooks, as torch's use_reentrant=False: nothing is kept, the first wish recomputes all."""

import torch

TASK = "05.checkpoint"


def checkpoint(function, x, positions):
    state, kept, count = torch.get_rng_state(), [], [0]

    def pack(tensor):
        count[0] += 1
        return count[0] - 1

    def keep(tensor):
        kept.append(tensor.detach())

    def unpack(number):
        if not kept:
            with torch.random.fork_rng(devices=[]), torch.enable_grad():
                torch.set_rng_state(state)
                with torch.autograd.graph.saved_tensors_hooks(keep, lambda nothing: nothing):
                    function(x.detach().requires_grad_(), positions)
        tensor, kept[number] = kept[number], None
        if all(one is None for one in kept):
            kept.clear()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        return function(x, positions)
