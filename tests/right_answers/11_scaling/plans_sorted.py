"""Sorted first: the first one that is allowed."""

TASK = "11.plans"


def best_plan(plans, job):
    for plan in sorted(plans, key=lambda one: (one["seconds"], one["tp"] * one["pp"])):
        dp, tp, pp, samples = (plan[key] for key in ("dp", "tp", "pp", "micro_batch"))
        rests = job["gpus_per_node"] % tp, job["heads"] % tp, job["layers"] % pp, job["batch"] % (dp * samples)
        if dp * tp * pp == job["gpus"] and not any(rests) and plan["gb"] <= job["gib"] * 1.073741824:
            return plan["name"]
