"""Predicts the seconds of a training step of a dense Llama from six lines of arithmetic, and what a training costs.

A model is a dict with "parameters", "layers", "hidden" and "seq", the tokens of a sequence. A plan is a dict with "dp",
"tp", "pp", "chunks" (model chunks per pipeline stage), "micro_batch" (sequences), "micro_batches" (per replica and
step) and "recomputed", the share of the forward pass that backward repeats. Hardware is a dict with "peak" (operations
per second of a GPU), "utilization" (the share of the peak that a run reaches while it computes), and "nvlink" and
"network", the bytes per second that a GPU sends inside its node and between nodes.
"""


def step_terms(model, plan, hardware):
    """The seconds of compute, bubble, tensor-parallel messages, and of data-parallel messages that stay exposed."""
    gpus = plan["dp"] * plan["tp"] * plan["pp"]
    tokens = plan["dp"] * plan["micro_batches"] * plan["micro_batch"] * model["seq"]
    per_token = 6 * model["parameters"] + 12 * model["layers"] * model["hidden"] * model["seq"]
    activations = 2 * plan["micro_batch"] * model["seq"] * model["hidden"]  # bytes in bf16 at the edge of a layer
    weights = 2 * model["parameters"] / (plan["tp"] * plan["pp"])  # bytes in bf16 of the layers that a GPU works on
    runs_of_layers = model["layers"] / plan["pp"] * plan["micro_batches"]

    # 1. Operations. Forward is one part, backward two, and recomputation repeats a share of forward.
    operations = tokens * per_token * (3 + plan["recomputed"]) / 3
    # 2. Every GPU computes its share at the rate that a run really reaches.
    compute = operations / (gpus * hardware["peak"] * hardware["utilization"])
    # 3. A pipeline fills and drains. Chunks shorten both.
    bubble = compute * (plan["pp"] - 1) / (plan["micro_batches"] * plan["chunks"])
    # 4. Each layer sends its activations four times in forward, four times in backward, and again where it recomputes.
    sent = (8 + 4 * plan["recomputed"]) * activations * (plan["tp"] - 1) / plan["tp"]
    tensor = runs_of_layers * sent / hardware["nvlink"]
    # 5. Weights travel twice per step and gradients once: ZeRO-3 with one micro-batch, and an upper bound with more of
    #    them if the gathered weights are kept. ZeRO-3 that frees the weights repeats this for each micro-batch.
    data = 3 * weights * (plan["dp"] - 1) / plan["dp"] / hardware["network"]
    # 6. Compute can hide these messages, so only the rest costs time.
    exposed = max(0.0, data - compute)
    return compute, bubble, tensor, exposed


def fitted_utilization(seconds, model, plan, hardware):
    """The utilization with which `step_terms` add up to a measured step, whose data-parallel messages are hidden."""
    compute, bubble, tensor, _ = step_terms(model, plan, hardware | {"utilization": 1.0})
    return (compute + bubble) / (seconds - tensor)


def training_days(model, tokens, gpus, peak, hfu, recomputed, lost):
    """Days and GPU-hours of a training. hfu: the share of the peak that computes, with what is recomputed.

    lost: the share of the whole time in which the job does not train, such as failures, restarts and saves.
    """
    per_token = 6 * model["parameters"] + 12 * model["layers"] * model["hidden"] * model["seq"]
    mfu = hfu * 3 / (3 + recomputed)
    seconds = tokens * per_token / (gpus * peak * mfu) / (1 - lost)
    return seconds / 86_400, gpus * seconds / 3600


def dollars_per_million_tokens(tokens, gpus, seconds, dollars_per_gpu_hour):
    """The price of a million trained tokens, if a step of `tokens` takes so many seconds on all GPUs."""
    return dollars_per_gpu_hour * gpus * seconds / 3600 / tokens * 1e6
