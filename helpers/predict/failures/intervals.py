"""How often a job should save, and what share of its time is then effective.

d: a save stops the job that long. M: mean time between failures (MTBF) of the whole job. R: a repair: noticing,
replacing, loading. t: the work between two saves. All in seconds. A failure loses what was done since the last save.
    sqrt(2 d M)                                         Young 1974, https://doi.org/10.1145/361147.361115
    sqrt(2 d M) (1 + sqrt(d/2M)/3 + (d/2M)/9) - d       Daly 2006, https://doi.org/10.1016/j.future.2004.11.016 (d < 2M)
    sqrt(2 d (M + R) + d^2)                             Saxena 2024, https://arxiv.org/abs/2410.18124 (their interval
                                                        has the save in it, so it is longer by d)
    d/t + t/2M + R/M                                    the share lost, to first order, Young 1974
    t / (M exp(R/M) (exp((t + d)/M) - 1))               the share kept, Daly's complete cost function
Failures are independent, with the same rate at all times, so in saves and repairs as well.
"""

from __future__ import annotations

from math import exp, expm1, sqrt

from helpers.predict.failures.checks import above_zero, finite, not_negative

_ENDLESS = 700.0  # mean times between failures: exp of more is no float, and the share kept is 0 long before


def young_interval(save: float, mtbf: float) -> float:
    """Seconds of work between two saves that lose least, to first order. A repair makes no difference to it."""
    above_zero(save=save, mtbf=mtbf)
    return sqrt(2 * save * mtbf)


def daly_interval(save: float, mtbf: float) -> float:
    """The same to higher order; equal to the MTBF where a save takes twice as long as that, or longer."""
    above_zero(save=save, mtbf=mtbf)
    ratio = save / (2 * mtbf)
    if ratio >= 1:
        return mtbf
    return young_interval(save, mtbf) * (1 + sqrt(ratio) / 3 + ratio / 9) - save


def availability_interval(save: float, mtbf: float, repair: float) -> float:
    """The same where failures are counted by the time that the job runs, and each costs a repair as well."""
    above_zero(save=save, mtbf=mtbf)
    not_negative(repair=repair)
    return sqrt(2 * save * (mtbf + repair) + save * save)


def lost_share(interval: float, save: float, mtbf: float, repair: float = 0.0) -> float:
    """Share of the time that saves, repeated work and repairs take, to first order: for small shares only."""
    above_zero(interval=interval, save=save, mtbf=mtbf)
    not_negative(repair=repair)
    return save / interval + interval / (2 * mtbf) + repair / mtbf


def effective_time(*, interval: float, save: float, mtbf: float, repair: float = 0.0) -> float:
    """Share of the time, 0 to 1, that is work which is never done again: Daly's complete cost function."""
    above_zero(interval=interval, mtbf=mtbf)
    not_negative(save=save, repair=repair)
    finite(mtbf=mtbf)
    if (interval + save + repair) / mtbf > _ENDLESS:
        return 0.0
    return interval / (mtbf * exp(repair / mtbf) * expm1((interval + save) / mtbf))


def expected_ettr(*, interval: float, save: float, mtbf: float, repair: float = 0.0) -> float:
    """Expected effective training time ratio, to first order; best at Young's interval for short saves and repairs.

    (1 - N r (u0 + dt/2)) / (1 + w/dt), where N r = 1 / mtbf, u0 = repair, dt = interval, w = save; never below 0.
    Kokolis 2025, Revisiting Reliability in Large-Scale ML Research Clusters, https://arxiv.org/abs/2410.21680
    """
    above_zero(interval=interval, mtbf=mtbf)
    not_negative(save=save, repair=repair)
    return max(0.0, 1 - (repair + interval / 2) / mtbf) / (1 + save / interval)
