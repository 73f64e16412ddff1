"""Whoever trusts autograd with a copy that it cannot see: the loss falls for no parameter."""

import torch

TASK = "02.gather"
HINT = "gather_detaches"


def gather(outputs, send):
    return torch.cat([send(output, i, 0) for i, output in enumerate(outputs)])
