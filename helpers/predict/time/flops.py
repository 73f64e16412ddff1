"""Counts the floating-point operations of a training step, its utilization (MFU, HFU), and the days of a training.

Letters: B sequences per step, s tokens per sequence, h hidden, l layers, V vocabulary, N parameters, D tokens.
Only matrix products count, 2 m n k for (m, k) times (k, n); backward does two for each of forward's. Biases, norms,
softmax and the embedding's look-up are left out, as in every source here. Attention counts fully, s x s, although a
causal kernel may skip half of it; with a window of w tokens it counts s x w.

For a GPT (feed-forward of width 4 h, no grouped queries) the counts of a step are the papers' closed forms, by what is
recomputed:
    none       72 B l s h^2 (1 + s/(6h) + V/(12lh))    Korthikanti et al. 2022, equation 7: "model FLOPs"
    selective  72 B l s h^2 (1 + 2s/(9h) + V/(12lh))   attention's two products once more: 4 B s^2 h per layer
    full       96 B l s h^2 (1 + s/(6h) + V/(16lh))    Narayanan et al. 2021, equation 3: each layer's forward once more
For "selective", equation 8 of Korthikanti et al. has s/(3h) instead of 2s/(9h). That adds 12 B s^2 h per layer to
equation 7, three times the operations that are really recomputed. `step_flops` can count either way.
"""

from __future__ import annotations

from helpers.predict.traffic.context_parallel import token_chunks
from helpers.records.checks import check_one_of
from helpers.specs import ModelSpec, Plan
from helpers.specs.checks import check_count

SECONDS_PER_DAY = 86_400


def forward_parts(model: ModelSpec, *, batch: int = 1) -> dict[str, int]:
    """Operations of one forward pass by part, for `batch` sequences of `model.seq` tokens.

    "projections": query, key, value and output of attention. "attention": scores and their product with the values.
    "feed-forward": of the experts that compute a token, with the router. "head": the logits.
    """
    tokens, h, layers = batch * model.seq, model.hidden, model.num_layers
    matrices = 3 if model.gated else 2  # of a feed-forward
    routed = (model.top_k + model.shared_experts) * matrices * h * model.ffn
    routed += h * model.num_experts if model.num_experts > 1 else 0
    dense = matrices * h * (model.dense_ffn or model.ffn)
    scores = model.num_heads * (model.head_dim + model.value_dim)  # columns of both products
    return {
        "projections": layers * 2 * tokens * sum(n * k for n, k in model.attention_matrices()),
        "attention": layers * 2 * tokens * model.seen * scores,  # seen: the sequence, or the window if shorter
        "feed-forward": 2 * tokens * ((layers - model.dense_layers) * routed + model.dense_layers * dense),
        "head": 2 * tokens * h * model.vocab,
    }


def step_flops(model: ModelSpec, *, batch: int = 1, recompute: str = "none", convention: str = "counted") -> int:
    """Operations of one training step on `batch` sequences: forward, backward with twice as many, and recomputation.

    recompute: "none" gives the model's operations, which MFU counts; "selective" and "full" give those of the hardware,
    which HFU counts. The head is never recomputed. torch's checkpoint stops early and so skips the layer's last product
    if nothing after it is kept: without dropout "full" is then 8 B l s h^2 (the feed-forward's second matrix) less.
    convention: "counted" is the sum of the products; "korthikanti" is that paper's equation 8 for "selective".
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


def token_flops(model: ModelSpec, *, causal: bool = False, router: bool = True) -> float:
    """Operations that training takes per token: `step_flops` over the tokens, by one of the conventions of papers.

    causal: whether attention counts only the half that a causal mask keeps. router: whether the router counts.
    DeepSeek's tables have causal attention and no router (Zhao et al. 2025, tables 2 and 4). With experts only the k
    chosen and the shared ones count, so utilization is by active parameters.
    """
    parts = forward_parts(model)
    left_out = parts["attention"] / 2 if causal else 0.0
    if model.num_experts > 1 and not router:
        left_out += 2 * model.seq * (model.num_layers - model.dense_layers) * model.hidden * model.num_experts
    return 3 * (sum(parts.values()) - left_out) / model.seq


def reached_flops(
    model: ModelSpec, *, batch: int, seconds: float, num_gpus: int = 1, causal: bool = False, router: bool = True
) -> float:  # fmt: skip
    """Operations per second of each GPU in a step on `batch` sequences; over a GPU's peak it is the MFU.

    causal, router: as in `token_flops`. `mfu` is the same with the defaults.
    """
    per_token = token_flops(model, causal=causal, router=router)
    return per_token * batch * model.seq / _operations_within(seconds, 1.0, num_gpus)


def tokens_per_day(tokens_per_step: int, seconds: float) -> float:
    """Tokens of a day of training. seconds: of a step."""
    return tokens_per_step * SECONDS_PER_DAY / _operations_within(seconds, 1.0, 1)


def attention_pairs(seq: int, cp: int, *, zigzag: bool = False) -> list[int]:
    """For each rank of context parallelism the pairs of a query and a key that causal attention computes.

    Token i attends to i + 1 tokens. zigzag: whether rank r has chunks r and 2N-1-r of 2N, or chunk r of N.
    Raises ValueError for more ranks than tokens.
    """
    return [
        sum((chunk.start + 1 + chunk.stop) * len(chunk) // 2 for chunk in chunks)  # start + 1, start + 2, … stop
        for chunks in token_chunks(seq, cp, zigzag=zigzag)
    ]


def attention_imbalance(cp: int, *, zigzag: bool = False) -> float:
    """The busiest rank's causal attention over the mean of the ranks, for long sequences; 1.0 is balanced.

    Contiguous chunks: rank r attends to r whole blocks and to half of its own, so the last one has (N - 1/2) / (N/2) =
    2 - 1/N times the mean, and the ranks are busy for N/(2N - 1) of the time. Zigzag: chunks r and 2N-1-r together are
    the same for every r, so 1. Raises ValueError for a cp below 1.
    """
    check_count("attention_imbalance", "cp", cp)
    return 1.0 if zigzag else 2 - 1 / cp


def six_n_d(num_params: int, num_tokens: float) -> float:
    """Operations of a training by the rule of thumb 6 N D (Kaplan et al. 2020, section 2.1).

    Forward takes 2 operations per parameter and token, backward 4. The rule leaves out attention's products (s/(6h) of
    the layers: 3 % for GPT-3, 33 % at s = 2h), and it counts tables that take part in no product: learned positions
    always, and the token table where the head has a matrix of its own.
    """
    return 6 * num_params * num_tokens


def mfu(model: ModelSpec, *, batch: int, seconds: float, peak_flops: float, num_gpus: int = 1) -> float:
    """Model FLOPs utilization, from 0 to 1: the model's operations of a step over those that the devices could do.

    batch: sequences of the step on all devices. seconds: of the step. peak_flops: operations per second of one device.
    Recomputation does not count as useful. Chowdhery et al. 2022 (PaLM), section 4.1.
    """
    return step_flops(model, batch=batch) / _operations_within(seconds, peak_flops, num_gpus)


def hfu(
    model: ModelSpec, *, batch: int, seconds: float, peak_flops: float, num_gpus: int = 1,
    recompute: str = "none", convention: str = "counted",
) -> float:  # fmt: skip
    """Hardware FLOPs utilization, from 0 to 1: like `mfu`, but recomputation counts too."""
    done = step_flops(model, batch=batch, recompute=recompute, convention=convention)
    return done / _operations_within(seconds, peak_flops, num_gpus)


def training_days(
    num_params: int, num_tokens: float, *, num_gpus: int, flops_per_gpu: float, recompute: str = "full"
) -> float:
    """Days of a training: 8 N D / (num_gpus * flops_per_gpu) with full recomputation, else 6 N D / (...).

    flops_per_gpu: operations per second that a GPU reaches, with recomputed ones, as the paper reports them.
    Narayanan et al. 2021, equation 4 (N is P there, D is T). Raises ValueError for an unknown recompute or no GPU.
    """
    check_one_of("training_days", "recompute", recompute, Plan.KNOWN["recompute"])
    per_token = (8 if recompute == "full" else 6) * num_params
    return per_token * num_tokens / _operations_within(SECONDS_PER_DAY, flops_per_gpu, num_gpus)


def _operations_within(seconds: float, flops_per_second: float, num_gpus: int) -> float:
    """The operations that all GPUs could do in these seconds. Raises ValueError for a value that is not above 0."""
    for name, value in (("seconds", seconds), ("operations a second", flops_per_second), ("num_gpus", num_gpus)):
        if not value > 0:
            raise ValueError(f"{name} is {value!r}, but it must be above 0: time a step, and give one device's rate")
    return seconds * flops_per_second * num_gpus
