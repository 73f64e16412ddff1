"""Do a data loader's workers and pinned memory help? One honest measurement: `python -m benchmarks.data_loader`.

An epoch is timed with a data set whose items cost nothing, cost compute (they need a core) or cost waiting (they need a
disk or a network), with 0, 1, 2 and 4 workers, against no workers. The training step is a fixed amount of compute.
Pinned memory is measured where there is a GPU: it speeds up the copy to the device and nothing else, so on a machine
without one there is nothing to see, and the table says so.
"""

from __future__ import annotations

import time

import torch
from torch.utils.data import DataLoader, Dataset

from benchmarks.paired import paired_ratio, write_table

ITEMS, BATCH, FEATURES = 512, 32, 1024
WORK = {"nothing": (0, 0.0), "compute, 1 ms": (1, 0.0), "waiting, 1 ms": (0, 0.001)}
WORKERS = (1, 2, 4)


class Items(Dataset):
    """Rows of numbers, each of which takes some compute or some waiting to get."""

    def __init__(self, compute: int, wait_seconds: float):
        self.compute, self.wait_seconds = compute, wait_seconds

    def __len__(self) -> int:
        return ITEMS

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.wait_seconds:
            time.sleep(self.wait_seconds)
        end = time.thread_time() + 0.001 * self.compute  # a millisecond of this core, whoever else wants it
        while time.thread_time() < end:
            pass
        return torch.full((FEATURES,), float(index))


class Epoch:
    """One pass over the data with a small training step; workers are started once and kept, as in training."""

    def __init__(self, dataset: Dataset, num_workers: int, pin_memory: bool = False):
        self.loader = DataLoader(
            dataset, BATCH, num_workers=num_workers, pin_memory=pin_memory, persistent_workers=num_workers > 0
        )
        self.device = "cuda" if pin_memory else "cpu"
        self.weight = torch.randn(FEATURES, 1024, device=self.device)

    def __call__(self) -> None:
        for batch in self.loader:
            (batch.to(self.device, non_blocking=True) @ self.weight).relu_()  # (B, 1024)
        if self.device == "cuda":
            torch.cuda.synchronize()


def main() -> None:
    torch.set_num_threads(1)
    rows = []
    for name, (compute, wait_seconds) in WORK.items():
        alone = Epoch(Items(compute, wait_seconds), 0)
        for num_workers in WORKERS:
            ratio = paired_ratio(Epoch(Items(compute, wait_seconds), num_workers), alone, pairs=7, warmup=1)
            rows.append(_row(name, f"{num_workers} workers / none", ratio, ratio.a_seconds, ratio.b_seconds))
    if torch.cuda.is_available():
        data = Items(0, 0.0)
        plain = Epoch(data, 2)
        plain.device, plain.weight = "cuda", plain.weight.cuda()
        ratio = paired_ratio(Epoch(data, 2, pin_memory=True), plain, pairs=7, warmup=1)
        rows.append(_row("nothing", "pinned / pageable", ratio, ratio.a_seconds, ratio.b_seconds))
    else:
        rows.append(_row("nothing", "pinned / pageable", "no GPU here: nothing to copy to", "-", "-"))
    print(write_table("data_loader", rows, "python -m benchmarks.data_loader"))


def _row(item: str, what: str, ratio: object, first: object, second: object) -> dict[str, object]:
    print(item, what, ratio, flush=True)
    return {"an item costs": item, "what": what, "ratio": ratio, "first (s)": first, "second (s)": second}


if __name__ == "__main__":
    main()
