"""What the memory explorer can start from: models by name, and settings that people have really run or tried."""

from __future__ import annotations

from helpers.specs import Plan

FREE = "free"  # the model whose shape the number boxes give
NAMES = {
    "gpt2": "GPT-2",
    "gpt2-medium": "GPT-2 medium",
    "gpt2-large": "GPT-2 large",
    "gpt2-xl": "GPT-2 XL",
    "gpt3-175b": "GPT-3 175B",
    "llama2-7b": "Llama-2 7B",
    "llama2-13b": "Llama-2 13B",
    "llama2-70b": "Llama-2 70B",
    "mistral-7b": "Mistral 7B",
    "llama3-8b": "Llama-3 8B",
    "llama3-70b": "Llama-3 70B",
    "llama3-405b": "Llama-3 405B",
}
# name -> (model, GPU, plan). The last: The Llama 3 Herd of Models, table 4, 8,192 tokens; its schedule is interleaved,
# this one is plain 1F1B.
EXAMPLES = {
    "GPT-2 on one V100": ("gpt2", "V100", Plan(precision="fp32", micro_batch=8, attention="materialized")),
    "Llama-3 8B, Adam, one H100": ("llama3-8b", "H100", Plan()),
    "Llama-3 8B, ZeRO-3 on 8 H100": ("llama3-8b", "H100", Plan(dp=8, zero=3)),
    "Llama-3 70B, plain DP on 64 H100": ("llama3-70b", "H100", Plan(dp=64)),
    "Llama-3 70B, TP 8 and PP 4 on 64 H100": (
        "llama3-70b", "H100", Plan(dp=2, tp=8, pp=4, num_microbatches=32, zero=1, sequence_parallel=True)
    ),
    "GPT-3 175B, TP 8 and PP 8 on A100": (
        "gpt3-175b", "A100", Plan(tp=8, pp=8, num_microbatches=64, attention="materialized")
    ),
    "Llama-3 405B on 16,384 H100": (
        "llama3-405b", "H100", Plan(dp=128, tp=8, pp=16, num_microbatches=16, zero=2, sequence_parallel=True)
    ),
}  # fmt: skip
