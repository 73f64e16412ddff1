"""Floating-point operations of a training step, how busy they keep the hardware (MFU, HFU), and days of training.

Letters: B sequences a step, s tokens a sequence, h hidden, l layers, V vocabulary, N parameters, D tokens.
Counted: matrix products only, 2 m n k for (m, k) times (k, n); backward does two for each of forward's. Biases, norms,
softmax and the embedding's look-up are left out, as in every source here. Attention counts whole, s x s, although a
causal kernel may skip half of it; of a window of w tokens s x w.

For a GPT (f = 4 h, no grouped queries) the counts are the papers' closed forms:
    none       72 B l s h^2 (1 + s/(6h) + V/(12lh))    Korthikanti et al. 2022, eq. 7: "model FLOPs"
    selective  72 B l s h^2 (1 + 2s/(9h) + V/(12lh))   attention's two products once more: 4 B s^2 h a layer
               eq. 8 there has s/(3h) instead, 12 B s^2 h more a layer than eq. 7: three times what is recomputed
    full       96 B l s h^2 (1 + s/(6h) + V/(16lh))    Narayanan et al. 2021, eq. 3: each layer's forward once more
"""

from __future__ import annotations

from helpers.records.checks import check_one_of
from helpers.specs import ModelSpec, Plan

SECONDS_PER_DAY = 86_400


def forward_parts(model: ModelSpec, *, batch: int = 1) -> dict[str, int]:
    """Operations of one forward pass by part, for `batch` sequences of `model.seq` tokens.

    "projections": query, key, value and output of attention; "attention": scores and their product with the values;
    "feed-forward": of the experts that a token meets, with the router; "head": the logits.
    """
    tokens, h, kv = batch * model.seq, model.hidden, model.kv_heads * model.head_dim
    routed = model.top_k * (3 if model.gated else 2) * h * model.ffn + model.params_of_router
    return {
        "projections": model.num_layers * 2 * tokens * (2 * h * h + 2 * h * kv),
        "attention": model.num_layers * 2 * 2 * tokens * model.seen * h,
        "feed-forward": model.num_layers * 2 * tokens * routed,
        "head": 2 * tokens * h * model.vocab,
    }


def step_flops(model: ModelSpec, *, batch: int = 1, recompute: str = "none", convention: str = "counted") -> int:
    """Operations of one training step on `batch` sequences: forward once, backward twice that, and what is recomputed.

    recompute: "none" gives the model's operations, which MFU takes; "selective" and "full" what the hardware does,
    which HFU takes. The head is never recomputed. torch's checkpoint stops early and so saves the layer's last product
    if nothing after it is kept: without dropout "full" is then 16 B l s h^2 (one of the feed-forward's matrices) less.
    convention: "counted" is the sum of the products; "korthikanti" is eq. 8 for "selective".
    Raises ValueError for an unknown recompute or convention.
    """
    check_one_of("step_flops", "recompute", recompute, Plan.KNOWN["recompute"])
    check_one_of("step_flops", "convention", convention, ("counted", "korthikanti"))
    parts = forward_parts(model, batch=batch)
    again = {
        "none": 0,
        "selective": parts["attention"] * (3 if convention == "korthikanti" else 1),
        "full": sum(parts.values()) - parts["head"],
    }
    return 3 * sum(parts.values()) + again[recompute]


def six_n_d(num_params: int, num_tokens: float) -> float:
    """The rule of thumb 6 N D. Kaplan et al. 2020, section 2.1: 2 operations a parameter and token forward, 4 backward.

    It leaves out attention's products (s/(6h) of the layers: 3 % for GPT-3, 33 % at s = 2h) and counts tables that no
    product touches: learned positions always, the token table where the head has a matrix of its own.
    """
    return 6 * num_params * num_tokens


def mfu(model: ModelSpec, *, batch: int, seconds: float, peak_flops: float, num_gpus: int = 1) -> float:
    """Model FLOPs utilization, a share of 1: the model's operations of a step over what the devices could do meanwhile.

    batch: sequences of the whole step. seconds: of the step. peak_flops: operations a second of one device.
    What is recomputed does not count as useful. Chowdhery et al. 2022 (PaLM), section 4.1.
    """
    return step_flops(model, batch=batch) / _possible(seconds, peak_flops, num_gpus)


def hfu(
    model: ModelSpec, *, batch: int, seconds: float, peak_flops: float, num_gpus: int = 1,
    recompute: str = "none", convention: str = "counted",
) -> float:  # fmt: skip
    """Hardware FLOPs utilization, a share of 1: as `mfu`, with what is recomputed counted too."""
    done = step_flops(model, batch=batch, recompute=recompute, convention=convention)
    return done / _possible(seconds, peak_flops, num_gpus)


def training_days(
    num_params: int, num_tokens: float, *, num_gpus: int, flops_per_gpu: float, recompute: str = "full"
) -> float:
    """Days that training takes: 8 N D / (num_gpus * flops_per_gpu) with full recomputation, else 6 N D / (...).

    flops_per_gpu: operations a second that a GPU reaches, recomputed ones included, as the paper reports them.
    Narayanan et al. 2021, equation 4 (N is P there, D is T). Raises ValueError for an unknown recompute or no GPU.
    """
    check_one_of("training_days", "recompute", recompute, Plan.KNOWN["recompute"])
    per_token = (8 if recompute == "full" else 6) * num_params
    return per_token * num_tokens / _possible(SECONDS_PER_DAY, flops_per_gpu, num_gpus)


def _possible(seconds: float, flops_per_second: float, num_gpus: int) -> float:
    for name, value in (("seconds", seconds), ("operations a second", flops_per_second), ("num_gpus", num_gpus)):
        if not value > 0:
            raise ValueError(f"{name} is {value!r}, but it must be above 0: time a step, and give one device's rate")
    return seconds * flops_per_second * num_gpus
