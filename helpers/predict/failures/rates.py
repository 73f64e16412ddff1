"""How often a job fails: published counts and rates, the mean time between failures, spares, GPU-hours lost.

LLAMA3: The Llama 3 Herd of Models, 2024, section 3.3.4 and table 5: unexpected interruptions in 54 days on 16,384 GPUs,
by root cause. (Its percentages do not add up; the counts do.) https://arxiv.org/abs/2407.21783
META_RSC1, META_RSC2: failures per node of 8 A100 and day in two clusters; Kokolis 2025, Revisiting Reliability in
Large-Scale Machine Learning Research Clusters, https://arxiv.org/abs/2410.21680
"""

from __future__ import annotations

from math import exp, lgamma, log

from helpers.predict.failures.checks import above_zero, finite, not_negative, share, whole

DAY = 86_400.0
MOST_AWAY = 1e6
META_RSC1, META_RSC2 = 6.50e-3, 2.34e-3
LLAMA3_GPUS, LLAMA3_SECONDS = 16_384, 54 * DAY
LLAMA3 = {
    "faulty GPU": 148,
    "GPU HBM3 memory": 72,
    "software bug": 54,
    "network switch or cable": 35,
    "host maintenance": 32,
    "GPU SRAM memory": 19,
    "GPU system processor": 17,
    "network card": 7,
    "NCCL watchdog time-out": 7,
    "silent data corruption": 6,
    "GPU thermal interface and sensor": 6,
    "SSD": 3,
    "power supply": 3,
    "server chassis": 2,
    "IO expansion board": 2,
    "dependency": 2,
    "CPU": 2,
    "system memory": 2,
}


def mtbf(*, nodes: int, per_node_day: float) -> float:
    """Mean seconds between failures of a job that any of its nodes stops. per_node_day: failures per node and day."""
    whole(nodes=nodes)
    above_zero(per_node_day=per_node_day)
    return DAY / (nodes * per_node_day)


def job_mtbf(device_mtbf: float, num_devices: int) -> float:
    """The same from one device's mean time between failures: divided by the number of devices."""
    above_zero(device_mtbf=device_mtbf, num_devices=num_devices)
    return device_mtbf / num_devices


def device_mtbf(num_failures: int, num_devices: int, seconds: float) -> float:
    """Mean seconds between failures of one device, from a job's record: device-seconds for each failure."""
    above_zero(num_failures=num_failures, num_devices=num_devices, seconds=seconds)
    return num_devices * seconds / num_failures


def expected_failures(seconds: float, mtbf: float) -> float:
    """Failures to expect in `seconds` of a job whose mean time between failures is `mtbf`."""
    above_zero(mtbf=mtbf)
    not_negative(seconds=seconds)
    return seconds / mtbf


def spares_needed(*, nodes: int, per_node_day: float, away: float, probability: float = 0.99) -> int:
    """The fewest spare nodes with which a failing node is replaced at once with this probability.

    away: seconds until a failed node is back. The nodes away at any moment are Poisson with mean away / mtbf (M/G/inf).
    """
    not_negative(away=away)
    finite(away=away, per_node_day=per_node_day)
    share(probability=probability)
    if not 0 < probability < 1:
        raise ValueError(
            f"probability is {probability!r}, but it must lie between 0 and 1; no number of spares is sure"
        )
    mean = away / mtbf(nodes=nodes, per_node_day=per_node_day)
    if mean > MOST_AWAY:
        raise ValueError(f"{mean:.3g} nodes would be away at once: give a shorter time, fewer nodes, or a lower rate")
    spares, within = 0, exp(-mean)
    while within < probability and 0 < mean and spares < 4 * mean + 1000:  # the rest is rounding
        spares += 1
        within += exp(spares * log(mean) - mean - lgamma(spares + 1))
    return spares


def lost_gpu_hours(*, gpus: int, effective: float, seconds: float) -> float:
    """GPU-hours that were paid and left nothing. effective: share of the time that was kept, 0 to 1."""
    whole(gpus=gpus)
    above_zero(seconds=seconds)
    share(effective=effective)
    return gpus * seconds / 3600 * (1 - effective)
