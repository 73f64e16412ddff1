"""Whoever silences the error of backward with requires_grad_(): the gradient ends on the master."""

import torch

TASK = "02.gather"
HINT = "gather_detaches"


def gather(outputs, send):
    return torch.cat([send(output, i, 0).requires_grad_() for i, output in enumerate(outputs)])
