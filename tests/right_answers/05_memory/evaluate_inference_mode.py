"""Under inference_mode, added up as it goes."""

import torch
from torch.nn import functional as F

TASK = "05.evaluate"


@torch.inference_mode()
def evaluate(model, batches):
    total = 0
    for tokens, targets in batches:
        total = total + F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
    return total / len(batches)
