"""Element by element: for each its file is looked for."""

import torch

TASK = "12.reshard"


def own_part(pieces, total, rank, ranks, read):
    found = torch.empty(0, dtype=torch.float64)
    for at in range(rank * total // ranks, (rank + 1) * total // ranks):
        file, start, _ = next(piece for piece in pieces if piece[1] <= at < piece[2])
        found = torch.cat([found, read(file, at - start, at - start + 1)])
    return found
