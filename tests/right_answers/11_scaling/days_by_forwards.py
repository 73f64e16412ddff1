"""What the hardware computes, at the HFU: a forward of 2 N and attention, its backward, and what is done again."""

TASK = "11.days"


def training_days(model, tokens, gpus, peak, hfu, recomputed, lost):
    forward = 2 * model["parameters"] + 4 * model["layers"] * model["hidden"] * model["seq"]
    computed = tokens * forward * (1 + 2 + recomputed)
    hours = computed / (gpus * peak * hfu) / 3600
    hours += hours * lost / (1 - lost)
    return [hours / 24, hours * gpus]
