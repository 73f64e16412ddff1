"""What other people's calculators answer to the same questions, by name, and where their conventions differ from ours.

Ours: `model_states` and `activations` (states.py, activations.py), after the ZeRO paper and Korthikanti et al. 2022.
These functions restate other tools' formulas as their sources have them; they change with versions. What the tests
hold: DeepSpeed's against the tables that its documentation prints; Megatron-LM's against values worked
out by hand from its formulas, not against a run of the tool. All answers are bytes; the tools print GiB and MiB and
call them GB and MB.
"""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

from helpers.specs import ModelSpec, Plan
from helpers.specs.checks import check_plain


class HostAndGPU(NamedTuple):
    """Bytes of a node's host memory, and of each of its GPUs."""

    host: int
    gpu: int


def deepspeed_zero2(
    num_params: int, *, gpus_per_node: int, num_nodes: int = 1, offload: bool = False, buffer_factor: float = 1.5,
    until_2024: bool = False,
) -> HostAndGPU:  # fmt: skip
    """DeepSpeed's estimate_zero2_model_states_mem_needs: 2 bytes a parameter, and 18 shared by all GPUs.

    Ours for ZeRO-2 is 2 + 14 / N (mixed); it adds 4 for an fp32 gradient. Offloaded: 2 bytes per parameter stay.
    host: 4 bytes a parameter for each process that loads the model, or the 16 of the state, times `buffer_factor`.
    until_2024: as it was printed from April 2021 (pull request 965) until April 2024 (5099), and as its documentation
    prints it still: 4 bytes, with the 16-bit gradient whole on each GPU as in stage 1, and 16 shared.
    """
    num_gpus = gpus_per_node * num_nodes
    if offload:
        return HostAndGPU(int(num_params * max(4 * num_gpus, 16) * buffer_factor), 2 * num_params)
    host = num_params * 4 * gpus_per_node * buffer_factor
    whole, shared = (4, 16) if until_2024 else (2, 18)
    return HostAndGPU(int(host), whole * num_params + int(shared * num_params / num_gpus))


def deepspeed_zero3(
    num_params: int, largest_layer: int, *, gpus_per_node: int, num_nodes: int = 1, offload_optimizer: bool = False,
    offload_params: bool = False, zero_init: bool = True, buffer_factor: float = 1.5,
) -> HostAndGPU:  # fmt: skip
    """DeepSpeed's estimate_zero3_model_states_mem_needs: 18 bytes a parameter shared by all GPUs, and a layer whole.

    Ours for ZeRO-3 is 16 / N (mixed), and whole layers are in `temporaries`. DeepSpeed adds 2 for an fp32 gradient, and
    4 bytes a parameter of `largest_layer` (weights and gradients of the one in use). zero_init: the model is made in
    shards; else each process loads it whole in fp32 first.
    Raises ValueError for offloaded parameters with an optimizer on the GPU, which DeepSpeed does not estimate.
    """
    if offload_params and not offload_optimizer:
        raise ValueError("deepspeed_zero3: offload_params needs offload_optimizer=True, as in DeepSpeed's own estimate")
    num_gpus, layer = gpus_per_node * num_nodes, 4 * largest_layer
    loading = 4 * gpus_per_node
    if not offload_optimizer:
        host = loading * (largest_layer if zero_init else num_params)
        return HostAndGPU(int(host * buffer_factor), layer + int(18 * num_params / num_gpus))
    per_param = (18 if offload_params else 16) / num_nodes
    host = num_params * (per_param if zero_init else max(loading, per_param))
    return HostAndGPU(int(host * buffer_factor), layer + (0 if offload_params else int(2 * num_params / num_gpus)))


class MegatronReport(NamedTuple):
    """Bytes of weights, gradients and optimizer together, and of activations, on the GPU that holds most."""

    weights_and_optimizer: float
    activations: float


def megatron(model: ModelSpec, plan: Plan) -> MegatronReport:
    """Megatron-LM's report_theoretical_memory, for a dense model: the most loaded pipeline stage.

    How it differs from ours: 18 bytes a parameter (2 + 4 + 12, our `mixed_fp32_grads`), and 6 + 12 / dp with its
    distributed optimizer, here plan.zero >= 1. Linear biases and positions are not counted, the vocabulary is padded to
    a multiple of 128 tp, and one stage is thought to hold a share of the layers with the final norm, and a table. With
    sequence parallelism and selective recomputation activations are sbh/t (18 + 4 ffn/h) a layer, whatever else holds;
    otherwise sbh (10 + 24/t) and 5 % on top of everything. Never 5as/h. Full recomputation makes no difference to it.
    """
    check_plain("megatron", model, plan)
    h, t, p = model.hidden, plan.tp, plan.pp
    norm = 1 if model.norm == "rms" else 2
    feed_forward = model.ffn * (1.5 if model.gated else 1) + norm
    per_layer = 2 * h * feed_forward + 2 * h * h * (1 + model.kv_heads / model.num_heads)
    table = h * _padded_vocab(model, plan)
    most = (model.num_layers * per_layer + norm * h) / p + table
    most = (most + (table if p == 1 and not model.tied_embeddings else 0)) / t
    bytes_each = 6 + 12 / plan.dp if plan.zero >= 1 else 18
    exact = plan.sequence_parallel and plan.recompute == "selective"
    return MegatronReport(most * bytes_each, (_with_sp if exact else _without_sp)(model, plan))


def _padded_vocab(model: ModelSpec, plan: Plan) -> int:
    multiple = 128 * plan.tp
    return ceil(model.vocab / multiple) * multiple


def _in_flight(model: ModelSpec, plan: Plan, per_layer: float) -> float:
    """All layers of one micro-batch, the ids (8 bytes) and the embedding's mask (1 byte a number) of p of them."""
    tokens, p = plan.micro_batch * model.seq, plan.pp
    total = per_layer * model.num_layers + (8 + model.hidden) * tokens * p
    if plan.num_chunks > 1:
        return total * (1 + (p - 1) / (p * plan.num_chunks))
    return total * min(1, plan.num_microbatches / p)


def _with_sp(model: ModelSpec, plan: Plan) -> float:
    numbers = plan.micro_batch * model.seq * model.hidden
    total = _in_flight(model, plan, numbers * (18 + 4 * model.ffn / model.hidden))
    if plan.pp == 1:
        total += 4 * numbers * (1 + _padded_vocab(model, plan) / model.hidden)
    return total / plan.tp


def _without_sp(model: ModelSpec, plan: Plan) -> float:
    tokens = plan.micro_batch * model.seq
    total = _in_flight(model, plan, tokens * model.hidden * (10 + 24 / plan.tp))
    if plan.pp == 1:
        total += 2 * tokens * (_padded_vocab(model, plan) / plan.tp + model.hidden)
    return 1.05 * total
