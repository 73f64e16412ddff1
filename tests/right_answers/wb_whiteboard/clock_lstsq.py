"""By torch's least squares, over a column of ones and one of seconds."""

import torch

TASK = "wb.clock"


def one_clock(mine, yours):
    since = mine - mine[0]
    columns = torch.stack([torch.ones_like(since), since], dim=1)[:, : min(2, len(mine))]
    found = torch.linalg.lstsq(columns, (yours - mine)[:, None]).solution[:, 0]
    return (*found.tolist(), 0.0)[:2]
