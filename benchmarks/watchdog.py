"""What the watchdog costs, and which patients of the zoo it gives away alone.

    python -m benchmarks.watchdog

Cost: milliseconds of the processor per step on one rank of two, in the watchdog and its hooks, over 40 steps of DDP on
the GPT of 10.7 million parameters (2 sequences of 64 tokens, one thread). The table is gathered every 10 steps. A hook
counts its own thread, since DDP's messages go on beside it; `step` counts all threads.
Zoo: each script with the watchdog in its loop, on live ranks, and under torchrun where it does not end well. A patient
is given away where the watchdog names its kind or writes down who stands where, and finds nothing in the cured script.
On a busy machine any rank may be late, so that counts for the one patient that has it.
"""

from __future__ import annotations

import faulthandler
import statistics
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.paired import write_table
from helpers.commands import broken_jobs
from helpers.observe.torchrun import torchrun
from helpers.ranks import Ranks
from tests.commands.broken_jobs.symptoms import found, run_script, watched

COMMAND = "python -m benchmarks.watchdog"
PARTS = ("step", "_after_forward", "_before_sync")
STEPS, EVERY = 40, 10


def costs() -> dict[str, list[float]]:
    """Milliseconds of each step in each part, and in the step as a whole, on this rank."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    from helpers.observe.watchdog import Watchdog
    from helpers.workloads import GPT, GPTConfig, synthetic_tokens, token_loss

    spent = dict.fromkeys(PARTS, 0.0)

    def timed(name: str):
        clock = time.process_time if name == "step" else time.thread_time

        def call(self, *arguments):
            start = clock()
            result = getattr(Watchdog, name)(self, *arguments)
            spent[name] += 1e3 * (clock() - start)
            return result

        return call

    torch.set_num_threads(1)
    model = DistributedDataParallel(GPT(GPTConfig.ten_million()))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    watchdog = type("Timed", (Watchdog,), {name: timed(name) for name in PARTS})(model, optimizer, every=EVERY)
    rows = {name: [] for name in (*PARTS, "whole")}
    for step in range(STEPS):
        tokens, targets = synthetic_tokens(2, 64, 68, seed=step)
        start, before = time.process_time(), dict(spent)
        loss = token_loss(model(tokens), targets)
        loss.backward()
        watchdog.step(loss)
        optimizer.step()
        optimizer.zero_grad()
        rows["whole"].append(1e3 * (time.process_time() - start))
        for name in PARTS:
            rows[name].append(spent[name] - before[name])
    faulthandler.cancel_dump_traceback_later()
    return rows


def cost_rows() -> list[dict[str, object]]:
    with Ranks(2, device="cpu", timeout=300, quiet=True) as ranks:
        rows = ranks.run(costs)[0]
    every = [sum(step) for step in zip(*(rows[name] for name in PARTS), strict=True)]
    whole, judged = statistics.fmean(rows["whole"]), every[EVERY - 1 :: EVERY]
    kinds = {"all": every, f"every {EVERY}th": judged, "the others": sorted(set(every) - set(judged))}
    return [
        {
            "steps": kind,
            "ms": statistics.fmean(ms),
            "share of a step": f"{statistics.fmean(ms) / whole:.1%}",
            "goal": goal,
        }
        for (kind, ms), goal in zip(kinds.items(), ("must 5, aim 2", "", ""), strict=True)
    ]


def zoo_row(one: broken_jobs.BrokenJob, ranks: Ranks) -> dict[str, object]:
    finds = on_live_ranks if one.ends == "well" else under_torchrun
    kinds = [finds(one, script, ranks) for script in (one.script, one.fixed)]
    print(one.name, *kinds, flush=True)
    ill, cured = (", ".join(sorted(some)) or "nothing" for some in kinds)
    judged = [some - ({"late"} - {one.watchdog}) for some in kinds]
    given_away = "yes" if judged == [{one.watchdog}, set()] else "no"
    return {"patient": one.title.en, "it finds": ill, "in the cured script": cured, "given away": given_away}


def on_live_ranks(one: broken_jobs.BrokenJob, script: str, ranks: Ranks) -> set[str]:
    return found(run_script(ranks[: one.ranks], watched(one, script)))


def under_torchrun(one: broken_jobs.BrokenJob, script: str, _: Ranks) -> set[str]:
    with tempfile.TemporaryDirectory() as folder:
        settings = f'every=5, patience=4, stacks=open(f"{folder}/{{rank}}", "w")'
        own = {"PYTHONPATH": str(Path(broken_jobs.__file__).parents[2])}
        job = torchrun(watched(one, script, settings), ranks=one.ranks, silence=20, env=own)
        stands = job.is_silent and all("main" in path.read_text() for path in Path(folder).iterdir())
    return found([*job.lines]) | ({"stacks"} if stands else set())


def main() -> None:
    if "zoo" not in sys.argv:
        print(write_table("watchdog", cost_rows(), COMMAND).read_text())
    if "cost" not in sys.argv:
        with Ranks(4, device="cpu", timeout=120, quiet=True) as ranks:
            rows = [zoo_row(one, ranks) for one in broken_jobs.broken_jobs()]
        total = {**dict.fromkeys(rows[0], ""), "patient": "together"}
        total["given away"] = f"{sum(row['given away'] == 'yes' for row in rows)} of {len(rows)}; must 6, aim 8"
        print(write_table("watchdog_zoo", [*rows, total], COMMAND).read_text())


if __name__ == "__main__":
    main()
