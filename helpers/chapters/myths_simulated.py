"""Refutes claims about the time of pipelines, failures and speed, by simulation and published numbers.

Each function is named like its claim and returns numbers by name. `helpers/interview/myths.yaml` has the claims in
full, names these functions by their dotted path, and says which numbers refute a claim. Every function gets a pool of
four ranks, because all myths are called alike, but those in this file do not use it; myths.py has the others.
"""

from __future__ import annotations

from helpers.predict.failures import META_RSC1, mtbf, simulate_weeks, young_interval
from helpers.predict.time.calibrate import published_steps
from helpers.predict.time.flops import mfu
from helpers.predict.time.pipeline import simulate
from helpers.ranks import Ranks
from helpers.records import Timeline
from helpers.schedules import Schedule, gpipe, one_f_one_b

Numbers = dict[str, float]
HOUR, SAVE, REPAIR = 3600.0, 60.0, 600.0  # seconds: the interval of the claim, and how long a save and a repair take


def one_f_one_b_has_a_smaller_bubble(ranks: Ranks) -> Numbers:
    """Claim: 1F1B has a smaller bubble than GPipe. Both with four stages and eight micro-batches, simulated.

    The bubble is the share of the step in which ranks idle. It is returned with messages that take no time
    ("gpipe_bubble"), and with messages that take as long as a forward ("gpipe_slow"). "gpipe_held" is the largest
    number of micro-batches whose activations stage 0 holds at one time. The same for "one_f_one_b".
    """
    numbers = {}
    for order in (gpipe, one_f_one_b):
        name, timeline = order.__name__, _simulate(order(4, 8))
        numbers[f"{name}_bubble"] = timeline.bubble_fraction
        numbers[f"{name}_slow"] = _simulate(order(4, 8), send=1.0).bubble_fraction
        numbers[f"{name}_held"] = max(timeline.holds(0, span.start).activations for span in timeline.spans)
    return numbers


def the_bubble_is_p_minus_1_over_m(ranks: Ranks) -> Numbers:
    """Claim: a pipeline idles for (p-1)/m of the time. The true share for p = 4 stages and m = 4 micro-batches."""
    return {"idle": _simulate(gpipe(4, 4)).bubble_fraction}


def speed_ups_multiply(ranks: Ranks) -> Numbers:
    """Claim: two replicas and two stages together bring the product of their speed-ups. Each speed-up, simulated.

    There are four micro-batches per step, and messages take no time. A replica gets half of the micro-batches, so its
    bubble is larger.
    """

    def duration(replicas: int, stages: int) -> float:
        timeline = _simulate(one_f_one_b(stages, 4 // replicas))
        return timeline.duration / stages  # a stage's work is 1 here, and it has 1 / stages of the layers

    one = duration(1, 1)
    return {"copies": one / duration(2, 1), "stages": one / duration(1, 2), "together": one / duration(2, 2)}


def _simulate(schedule: Schedule, send: float = 0.0) -> Timeline:
    """A simulated step, whose backward takes twice as long as its forward of 1 second. send: seconds of a message.

    A micro-batch's activations count as 1 byte, so that bytes are numbers of micro-batches.
    """
    return simulate(schedule, forward=1.0, backward_input=1.0, backward_weight=1.0, send=send, activation_bytes=1)


def a_save_every_hour_will_do(ranks: Ranks) -> Numbers:
    """Claim: a checkpoint every hour is often enough. Which share of twenty weeks on 2,048 nodes is useful work.

    It is returned for a save every hour, and for Young's interval, which is the best one for the time between failures.
    "alone" is Young's interval in hours for one node. META_RSC1 is the failures per node and day that Meta published.
    The weeks are simulated from a seed.
    """
    job = {"nodes": 2048, "per_node_day": META_RSC1, "save": SAVE, "repair": REPAIR}
    best, alone = (young_interval(SAVE, mtbf(nodes=nodes, per_node_day=META_RSC1)) for nodes in (2048, 1))
    hourly, useful = (simulate_weeks(weeks=20, interval=interval, **job) for interval in (HOUR, best))
    return {"hourly": hourly, "best": useful, "alone": alone / HOUR}


def mfu_says_how_fast(ranks: Ranks) -> Numbers:
    """Claim: the job with the higher MFU is the faster one. A published step of 70B on A100, and one on H100.

    Their MFU ("old" and "new"), and how many times as many tokens a second each H100 does ("faster"). Both are rows of
    llm-foundry's table, for sequences of the same length.
    """
    numbers, rows = {}, {row.name: row for row in published_steps()}  # a name such as "70b n=64 mbs8x4": n is GPUs
    for key, row in (("old", rows["70b n=64 mbs8x4"]), ("new", rows["70b n=128 mbs8x1"])):
        each = row.plan.micro_batch * row.plan.num_microbatches  # sequences per GPU, because each GPU is a replica
        numbers[key] = mfu(row.model, batch=each, seconds=row.seconds, peak_flops=row.cluster.gpu.flops)
        numbers[f"{key}_rate"] = each * row.model.seq / row.seconds
    return {"old": numbers["old"], "new": numbers["new"], "faster": numbers["new_rate"] / numbers["old_rate"]}
