"""How often a large job fails, how often it should write a checkpoint, and what share of the time all of it costs.

Times in seconds. d: a checkpoint stops the job that long. M: mean time between failures (MTBF) of the whole job.
    interval between checkpoints   sqrt(2 d M)                                            Young 1974
                                   sqrt(2 d M) (1 + sqrt(d/2M)/3 + (d/2M)/9) - d          Daly 2006, for d < 2M
    share of the time lost         d/t + t/2M + r/M, to first order                       Young 1974
t is the time of work between two checkpoints, r a restart: noticing, rescheduling, loading. A failure loses half an
interval on average. Failures are taken as independent, with the same rate at all times.
"""

from __future__ import annotations

from math import sqrt


def job_mtbf(device_mtbf: float, num_devices: int) -> float:
    """Mean seconds between failures of a job that any of its devices stops: one device's, divided by their number."""
    _positive(device_mtbf=device_mtbf, num_devices=num_devices)
    return device_mtbf / num_devices


def device_mtbf(num_failures: int, num_devices: int, seconds: float) -> float:
    """Mean seconds between failures of one device, from a job's record: device-seconds for each failure."""
    _positive(num_failures=num_failures, num_devices=num_devices, seconds=seconds)
    return num_devices * seconds / num_failures


def expected_failures(seconds: float, mtbf: float) -> float:
    """Failures to expect in `seconds` of a job whose mean time between failures is `mtbf`."""
    _positive(mtbf=mtbf)
    return seconds / mtbf


def young_interval(checkpoint_seconds: float, mtbf: float) -> float:
    """Seconds of work between two checkpoints that lose least, to first order."""
    _positive(checkpoint_seconds=checkpoint_seconds, mtbf=mtbf)
    return sqrt(2 * checkpoint_seconds * mtbf)


def daly_interval(checkpoint_seconds: float, mtbf: float) -> float:
    """The same to higher order; equal to the MTBF where a checkpoint takes twice as long as that, or longer."""
    _positive(checkpoint_seconds=checkpoint_seconds, mtbf=mtbf)
    ratio = checkpoint_seconds / (2 * mtbf)
    if ratio >= 1:
        return mtbf
    return young_interval(checkpoint_seconds, mtbf) * (1 + sqrt(ratio) / 3 + ratio / 9) - checkpoint_seconds


def lost_share(interval: float, checkpoint_seconds: float, mtbf: float, restart_seconds: float = 0.0) -> float:
    """Share of the time that checkpoints, repeated work and restarts take, to first order: for small shares only."""
    _positive(interval=interval, checkpoint_seconds=checkpoint_seconds, mtbf=mtbf)
    return checkpoint_seconds / interval + interval / (2 * mtbf) + restart_seconds / mtbf


def _positive(**values: float) -> None:
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
            raise ValueError(f"{name} is {value!r}, but it must be above 0 (times in seconds)")
