"""Describes training stacks (Megatron, FSDP, TorchTitan, ...): what they overlap and which kernels they have.

The step-time model (step.py) takes a `Stack`, which is a training framework as it was when its numbers were published.
An exposed collective is one that no compute hides. The figures come from the stacks' code and papers, rounded, not
fitted.
Where a paper gives no figure (which share of the traffic hides, how many bytes unfused kernels move), it was chosen so
that the published steps in data/ lie on both sides of the estimate; a calibration adjusts the rest.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from helpers.specs import Plan
from helpers.specs.checks import check_one_of, check_positive


@dataclass(frozen=True, kw_only=True)
class Stack:
    """A training stack.

    attention: "flash" or "materialized", whichever its kernels do; None: as the plan says.
    passes: bytes that norms and activations move, over those of fused kernels, because unfused ones pass over memory
    more often. flash: speed of its flash kernel over that of FlashAttention-2. selective_products: the share of matrix
    products that its selective recomputation repeats; 0 repeats only attention between its projections (Megatron).
    selective_memory: then also of the bytes that norms and activations move.
    tensor_hidden, context_hidden, data_hidden, gather_hidden: the share that compute can hide of the collectives inside
    layers, of context parallelism, of gradients and of parameters. cp_method: how its context parallelism exchanges,
    as in Plan. cp_choices: other ways that it offers. zigzag: whether its ring or all-gather balances causal attention.
    context_flash: speed of flash attention in blocks, as a ring computes it, over its speed in one call.
    tensor_backward: exposed collectives of backward over those of forward. messages: all-gathers per layer under
    ZeRO-3. nvls: whether the switch of a node adds up all-reduces.
    layer_launch: seconds of the host to launch a layer's forward. A backward takes calls_backward times as long, and
    each further tensor-parallel rank adds calls_per_collective, because a collective waits for the slowest host.
    chunk_layers: layers per chunk for a stack that always interleaves, where the plan has no chunks.
    dispatch_bytes: of an element of a token that is sent to its experts. deduplicates: whether a token goes only once
    to a node that has some of its experts. dualpipe: whether the pipeline runs in both directions and overlaps forwards
    with backwards (dualpipe.py). communication_sms: streaming multiprocessors that all-to-alls then take from compute.
    """

    name: str
    attention: str | None = None
    passes: float = 1.0
    flash: float = 1.0
    tensor_hidden: float = 0.0
    tensor_backward: float = 1.0
    context_hidden: float = 0.9
    context_flash: float = 0.85
    cp_method: str = "ring"
    cp_choices: tuple[str, ...] = ()
    zigzag: bool = True
    data_hidden: float = 0.0
    gather_hidden: float = 0.0
    selective_products: float = 0.0
    selective_memory: float = 0.0
    messages: int = 1
    nvls: bool = False
    calls_backward: float = 1.5
    calls_per_collective: float = 0.03
    layer_launch: float = 0.3e-3
    chunk_layers: int | None = None
    dispatch_bytes: float = 2
    deduplicates: bool = False
    dualpipe: bool = False
    communication_sms: int = 0

    def __post_init__(self) -> None:
        shares = (
            "tensor_hidden", "context_hidden", "data_hidden", "gather_hidden", "selective_products", "selective_memory"
        )  # fmt: skip
        for name in shares:
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"Stack: {name} is {getattr(self, name)!r}, but it is a share, from 0 to 1")
        for method in (self.cp_method, *self.cp_choices):
            check_one_of("Stack", "cp_method", method, Plan.KNOWN["cp_method"])
        for name in ("passes", "flash", "context_flash", "tensor_backward", "messages", "layer_launch"):
            check_positive("Stack", name, getattr(self, name))


MEGATRON_2020 = Stack(name="Megatron 2020", attention="materialized")
MEGATRON_2021 = Stack(name="Megatron 2021", attention="materialized")
MEGATRON_2022 = Stack(name="Megatron 2022", attention="materialized", tensor_backward=0.9)
MEGATRON_DEEPSPEED = Stack(name="Megatron-DeepSpeed", attention="materialized", layer_launch=1e-3)
DEEPSPEED_ZERO3 = Stack(name="DeepSpeed ZeRO-3", attention="materialized", messages=12)
# Its norms and activations move about twice the bytes of ideal fusion, as its published rows without tensor parallelism
# show, and the steps on 8 A100 in the paper of FlashAttention-2 (Dao 2023, table 1). Its --cp-comm-type is p2p (a ring)
# or a2a (Ulysses), among others.
MEGATRON_CORE = Stack(
    name="Megatron-Core", passes=2.0, data_hidden=0.9, gather_hidden=0.8, tensor_hidden=0.5, cp_choices=("all_to_all",)
)
# Megatron-LM of 2026 with every overlap off, as SimuMax ran it on B200: --disable-tp-comm-overlap-rs and -ag,
# --no-overlap-p2p-communication, and gradients that are reduced after the last backward.
# In backward, sequence parallelism gathers the inputs of products once more, because only a part of them was kept.
MEGATRON_CORE_NO_OVERLAP = Stack(
    name="Megatron-Core without overlap", passes=2.0, tensor_backward=1.5, context_hidden=0.0, cp_method="all_to_all"
)
MEGASCALE = Stack(name="MegaScale", data_hidden=0.95, gather_hidden=0.9, tensor_hidden=0.6)
FSDP = Stack(name="FSDP", passes=2.2, data_hidden=0.9, gather_hidden=0.9)
# MosaicML's benchmarks of 2023: the FSDP of those days, and attention in Triton, over which FlashAttention-2 is 1.3 to
# 1.5 times as fast (Dao 2023).
LLM_FOUNDRY = replace(FSDP, name="llm-foundry", flash=0.7, data_hidden=0.5, gather_hidden=0.5)
# TorchTitan's attention is PyTorch's own kernel, which reaches about 300 TFLOP/s on an H100, 0.8 of FlashAttention-2
# (github.com/pytorch/benchmark/pull/2296). Its context parallelism of 2024 gathers keys and values while it computes
# the first block, and then goes on block by block like a ring (github.com/pytorch/pytorch/pull/132820).
TORCHTITAN = Stack(
    name="TorchTitan", passes=1.2, flash=0.8, data_hidden=0.9, gather_hidden=0.9, selective_products=0.5,
    cp_method="all_gather",
)  # fmt: skip
TORCHTITAN_ASYNC_TP = replace(TORCHTITAN, name="TorchTitan AsyncTP", tensor_hidden=0.5)
# The Llama 3 Herd of Models, section 3.3.2: interleaved, with one layer fewer on the first and the last stage. With one
# layer per chunk, 126 layers are divided in this way over 16 ranks.
# Its context parallelism gathers keys and values and then computes the rank's queries in one call; nothing hides that.
LLAMA3 = Stack(
    name="Llama 3", data_hidden=0.9, gather_hidden=0.9, chunk_layers=1, context_hidden=0.0, context_flash=1.0,
    cp_method="all_gather",
)  # fmt: skip
# DeepSeek-V3 (2024), section 3.2: DualPipe; all-to-alls that send a token once to a node and take 20 SMs; dispatch in 8
# bits, with an fp32 scale for 128 elements. Section 3.2.3: it computes the up-projections of latent attention again,
# 0.09 of a layer's products, and norms and SwiGLU, by `_moved_bytes` 0.2 of its bytes. Not published are its attention
# kernels, which are taken to be as fast as FlashAttention-2, the bytes of its fused kernels, which are taken from
# TorchTitan, and how it hides the sum of gradients, which is taken to follow the last backward.
DEEPSEEK = Stack(
    name="DeepSeek", passes=1.2, selective_products=0.09, selective_memory=0.2, dispatch_bytes=1 + 4 / 128,
    deduplicates=True, dualpipe=True, communication_sms=20,
)  # fmt: skip
NANOTRON = Stack(name="nanotron", passes=1.6, layer_launch=0.6e-3)
STACKS = {
    stack.name: stack
    for stack in (
        MEGATRON_2020, MEGATRON_2021, MEGATRON_2022, MEGATRON_DEEPSPEED, DEEPSPEED_ZERO3, MEGATRON_CORE,
        MEGATRON_CORE_NO_OVERLAP, MEGASCALE, FSDP, LLM_FOUNDRY, TORCHTITAN, TORCHTITAN_ASYNC_TP, LLAMA3, DEEPSEEK,
        NANOTRON,
    )
}  # fmt: skip
