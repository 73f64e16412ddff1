"""Two more runs that refute what is often said, as `myths.py` has them: of jobs that fail and begin again."""

from __future__ import annotations

from helpers.observe.myths import Found
from helpers.observe.torchrun import torchrun
from helpers.predict.failures import META_RSC1, mtbf, simulate_weeks, young_interval
from helpers.ranks import Ranks

HOUR, SAVE, REPAIR = 3600.0, 60.0, 600.0
SCRIPT = """
import os
for step in range(1, 9):
    if step == 6 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os._exit(1)
    print("rank 0: step", step, flush=True)
"""


def a_save_every_hour_will_do(ranks: Ranks) -> Found:
    """Shares of twenty weeks on 2,048 nodes that are kept, with a save every hour and every so often as Young says; and
    hours between two saves, by Young, on the eight GPUs of one node. Played by seed, on no rank."""
    job = {"nodes": 2048, "per_node_day": META_RSC1, "save": SAVE, "repair": REPAIR}
    best, alone = (young_interval(SAVE, mtbf(nodes=nodes, per_node_day=META_RSC1)) for nodes in (2048, 1))
    kept = {name: simulate_weeks(weeks=20, interval=t, **job) for name, t in (("hourly", HOUR), ("best", best))}
    return kept | {"alone": alone / HOUR}


def max_restarts_is_fault_tolerance(ranks: Ranks) -> Found:
    """A script of eight steps that saves nothing and dies in step 6 of its first start, under torchrun: with which step
    the second start begins, and how many steps are done in all."""
    seen = torchrun(SCRIPT, ranks=1, restarts=1, silence=60.0)
    done = [int(line.rpartition(" ")[2]) for line in seen.lines]
    return {"began": done[5], "done": len(done)}
