"""Every operator that torch has samples for, its OpInfo table: values and gradients on a card equal the CPU's."""

import re
import warnings
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from helpers.ranks import Ranks

SAMPLES = 6  # of an operator, at most
OTHERS = re.compile("jiterator|_scaled_mm|^to$|partial_views")  # CUDA's alone; bits; for the CPU; of a whole storage
REFUSED = {  # as on CUDA, or as no rehearsal can
    "sparse.sampled_addmm": "holds dense tensors only",
    "sparse.mm.reduce": "holds dense tensors only",
    "to_sparse": "holds dense tensors only",
    "tensor_split": "expected tensor_indices_or_sections to be on cpu",
}


def differing() -> tuple[int, dict[str, str]]:
    """How many operators agree, and what is wrong with each of the others."""
    from torch.testing._internal.common_methods_invocations import op_db

    same, found = 0, {}
    warnings.simplefilter("ignore")  # torch's own, of what is deprecated or young
    for op in op_db:
        name = f"{op.name}.{op.variant_test_name}".rstrip(".")
        dtype = min(op.supported_dtypes("cpu"), key=lambda one: (one is not torch.float32, str(one)), default=None)
        if dtype not in (None, torch.complex32) and not OTHERS.search(name):
            try:
                for sample in list(op.sample_inputs("cpu", dtype, requires_grad=_has_gradient(op, dtype)))[:SAMPLES]:
                    compare(op.op, (sample.input, *sample.args), sample.kwargs, "empty" in name)
                same += 1
            except Exception as error:
                found[name] = f"{type(error).__name__}: {error}"
    return same, found


def _has_gradient(op, dtype: torch.dtype) -> bool:
    return op.supports_autograd and dtype.is_floating_point


def compare(op, args: tuple, options: dict, only_shapes: bool) -> None:
    expected = results(op, args, options)
    kinds = {name: "card" if name == "device" else value for name, value in options.items()}
    for one, mine in zip(expected, results(op, *on_card((args, kinds))), strict=True):
        assert mine.device == torch.device("card", 0)
        if only_shapes or one.layout is not torch.strided or one.dtype is torch.complex32:
            assert (mine.shape, mine.dtype) == (one.shape, one.dtype)
        else:
            assert torch.allclose(mine.cpu(), one, equal_nan=True, rtol=1e-5, atol=1e-6)


def on_card(tree: Any) -> Any:
    """The same with its tensors on the card, as leaves."""
    return tree_map_only(torch.Tensor, lambda one: one.detach().to("card").requires_grad_(one.requires_grad), tree)


def results(op, args: tuple, options: dict) -> list[torch.Tensor]:
    """What comes out, then the gradients."""
    torch.manual_seed(0)
    out = [one for one in tree_leaves(op(*args, **options)) if isinstance(one, torch.Tensor)]
    inputs = [one for one in tree_leaves((args, options)) if isinstance(one, torch.Tensor) and one.requires_grad]
    losses = [one.abs().sum() if one.is_complex() else one.sum() for one in out if one.requires_grad]
    found = torch.autograd.grad(losses, inputs, allow_unused=True) if losses else ()
    return [*out, *(one for one in found if one is not None)]


@pytest.mark.slow
def test_every_operator_of_torch_computes_on_a_card_what_the_cpu_does():
    with Ranks(1, device="card", timeout=900, quiet=True) as ranks:
        same, found = ranks.run(differing)[0]
    assert set(found) == set(REFUSED) and all(REFUSED[name] in said for name, said in found.items()), found
    assert same > 600
