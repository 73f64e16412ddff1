"""What the memory meter costs, and whether it counts right: `python -m benchmarks.memory`.

Goals: a metered step takes at most 1.3 times a plain one; model states of the GPT of 10 M equal the prediction to the
byte, in fp32 and mixed, on 1 to 4 ranks, after backward and after the step.

The cost is Python's, some 15 microseconds an operation, so it shows where operations are tiny. Each metered call
enters the block, steps once and leaves it. Other rows say what the ratio is made of: a dispatch mode that does nothing,
and torch's MemTracker, which also knows the kinds. Times are CPU seconds of one thread, which neighbours on the machine
do not change; with t threads in the operations the part above 1 is up to t times as large.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch.distributed._tools.mem_tracker import MemTracker
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.paired import paired_ratio, write_table
from helpers.observe.memory import record_memory
from helpers.parallel.amp import MasterWeights
from helpers.parallel.ddp import DistributedDataParallel
from helpers.predict.memory.states import model_states
from helpers.ranks import Ranks
from helpers.specs import Plan
from helpers.workloads import GPT, GPTConfig, token_loss

GOAL = 1.3
PAIRS = 9
Work = Callable[[], None]


class Nothing(TorchDispatchMode):
    """The least that a dispatch mode can do."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


class Training:
    """A GPT, AdamW and a batch; `plain()` is one step, the other methods are that step, watched."""

    def __init__(self, config: GPTConfig, num_rows: int, foreach: bool) -> None:
        torch.manual_seed(0)
        self.model = GPT(config)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), foreach=foreach)
        self.tokens = torch.randint(config.vocab_size, (num_rows, config.context))  # (B, T)

    def plain(self) -> None:
        token_loss(self.model(self.tokens), self.tokens).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def metered(self) -> None:
        with record_memory(self.model, self.optimizer):
            self.plain()

    def under_nothing(self) -> None:
        with Nothing():
            self.plain()

    def tracked(self) -> None:
        tracker = MemTracker()
        tracker.track_external(self.model, self.optimizer, self.tokens)
        with tracker:
            self.plain()


def cpu_seconds(work: Work) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def cost_row(name: str, watched: str, training: Training, goal: str = "") -> dict[str, object]:
    torch.set_num_threads(1)
    step = getattr(training, watched)
    ratio = paired_ratio(lambda: cpu_seconds(step), lambda: cpu_seconds(training.plain), pairs=PAIRS, warmup=1)
    print(name, watched, ratio, flush=True)
    return {
        "step": name,
        "watched by": {"metered": "the meter", "under_nothing": "an empty mode", "tracked": "MemTracker"}[watched],
        "watched (CPU ms)": ratio.a_seconds * 1e3,
        "plain (CPU ms)": ratio.b_seconds * 1e3,
        "watched / plain": ratio,
        "goal": goal,
    }


def cost_rows() -> list[dict[str, object]]:
    goal = f"at most {GOAL}"
    large = Training(GPTConfig.ten_million(), 8, foreach=True)
    name = "GPT 10 M, 8 x 64 tokens, foreach"
    rows = [cost_row(name, "metered", large, goal)]
    rows += [cost_row(name, watched, large) for watched in ("under_nothing", "tracked")]
    loop = Training(GPTConfig.ten_million(), 8, foreach=False)
    rows.append(cost_row("GPT 10 M, 8 x 64 tokens, for-loop", "metered", loop, goal))
    tiny = Training(GPTConfig.tiny(), 4, foreach=True)
    name = "GPT 29 k, 4 x 32 tokens, foreach: nothing but tiny operations"
    return rows + [cost_row(name, watched, tiny) for watched in ("metered", "under_nothing", "tracked")]


def states_on_a_rank(precision: str) -> list[tuple[int, int, int]]:
    """Bytes of parameters, gradients and optimizer after backward and after the step: the second step of our DDP."""
    torch.manual_seed(0)
    model = GPT(GPTConfig.ten_million())
    model = DistributedDataParallel(model if precision == "fp32" else model.to(torch.bfloat16))
    mixed = precision == "mixed"
    optimizer = MasterWeights(model.parameters(), torch.optim.AdamW) if mixed else torch.optim.AdamW(model.parameters())
    tokens = torch.arange(8).view(1, 8)
    for _ in range(2):  # after its first backward DDP builds its buckets anew, and the old ones stay until zero_grad
        optimizer.zero_grad()
        with record_memory(model, optimizer) as recorder:
            token_loss(model(tokens), tokens).backward()
            recorder.mark("after backward")
            optimizer.step()
            recorder.mark("after step")
    found = (recorder.at(name) for name in recorder.instants)
    return [(held.parameters, held.gradients, held.optimizer) for held in found]


def state_rows() -> list[dict[str, object]]:
    rows = []
    for num_ranks in (1, 2, 3, 4):
        with Ranks(num_ranks, device="cpu", timeout=300, quiet=True) as ranks:
            for precision in ("fp32", "mixed"):
                plan = Plan(dp=num_ranks, precision=precision)
                predicted = model_states(GPTConfig.ten_million().num_parameters, plan)
                expected = (predicted.parameters, predicted.gradients, predicted.optimizer)
                measured = [instant for rank in ranks.run(states_on_a_rank, precision) for instant in rank]
                worst = max(measured, key=lambda found: sum(abs(a - b) for a, b in zip(found, expected, strict=True)))
                rows.append(state_row(precision, num_ranks, expected, worst))
    return rows


def state_row(precision: str, num_ranks: int, expected: tuple, worst: tuple) -> dict[str, object]:
    """Of all ranks and both instants the one that differs most."""
    row: dict[str, object] = {"precision": precision, "ranks": num_ranks}
    for kind, predicted, measured in zip(("parameters", "gradients", "optimizer"), expected, worst, strict=True):
        row[f"{kind}: measured / predicted (bytes)"] = f"{measured:,} / {predicted:,}"
    row["equal"] = "yes" if worst == expected else "NO"
    return row


def main() -> None:
    print(write_table("memory_states", state_rows(), "python -m benchmarks.memory"))
    print(write_table("memory", cost_rows(), "python -m benchmarks.memory"))


if __name__ == "__main__":
    main()
