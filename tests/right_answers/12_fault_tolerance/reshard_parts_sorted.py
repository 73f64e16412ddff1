"""The pieces as they are listed; what was read is sorted by its place afterwards. Nothing read is read as nothing."""

import torch

TASK = "12.reshard"


def own_part(pieces, total, rank, ranks, read):
    low, high = (r * total // ranks for r in (rank, rank + 1))
    parts = {}
    for file, start, stop in pieces:
        a, b = max(low, start) - start, max(0, min(high, stop) - start)
        parts[start, stop] = read(file, min(a, b), b)
    return torch.cat([parts[key] for key in sorted(parts)])
