"""How often a large job fails, what it loses, how often it should save, and what a save costs. All times in seconds.

rates.py       failures by kind as published, the mean time between them, spares, GPU-hours lost
intervals.py   the best time between two saves (Young, Daly, availability), and the share of time that is effective
week.py        the same job played: every node fails by its own clock
saves.py       the bytes of a checkpoint, and how long nodes take to write it
"""

from helpers.predict.failures.intervals import (
    availability_interval,
    daly_interval,
    effective_time,
    expected_ettr,
    lost_share,
    young_interval,
)
from helpers.predict.failures.rates import (
    LLAMA3,
    LLAMA3_GPUS,
    LLAMA3_SECONDS,
    META_RSC1,
    META_RSC2,
    device_mtbf,
    expected_failures,
    job_mtbf,
    lost_gpu_hours,
    mtbf,
    spares_needed,
)
from helpers.predict.failures.saves import checkpoint_bytes, save_seconds
from helpers.predict.failures.week import Week, simulate_week, simulate_weeks

__all__ = [
    "LLAMA3",
    "LLAMA3_GPUS",
    "LLAMA3_SECONDS",
    "META_RSC1",
    "META_RSC2",
    "Week",
    "availability_interval",
    "checkpoint_bytes",
    "daly_interval",
    "device_mtbf",
    "effective_time",
    "expected_ettr",
    "expected_failures",
    "job_mtbf",
    "lost_gpu_hours",
    "lost_share",
    "mtbf",
    "save_seconds",
    "simulate_week",
    "simulate_weeks",
    "spares_needed",
    "young_interval",
]
