"""Who goes on after a death: the plan for the processes that are left. Arithmetic alone."""

from __future__ import annotations

from dataclasses import replace

from helpers.specs import Plan


def regroup(plan: Plan, alive: int, batch: int) -> Plan | None:
    """The nearest plan for `alive` processes: as many copies as before, or fewer; None where not even one copy fits.

    A copy (pp x tp ranks) cannot become smaller, since its cut decides what fits into a rank's memory. The number of
    copies can: the global batch of `batch` sequences stays as it is, and each copy takes a larger share of it. So the
    losses stay what they were, which is why the copies have to divide the batch; who is left over becomes a spare.
    """
    copy = plan.world_size // plan.dp
    for dp in range(min(plan.dp, alive // copy), 0, -1):
        if batch % (dp * plan.num_microbatches) == 0:
            return replace(plan, dp=dp)
    return None
