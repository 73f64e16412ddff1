"""Builds the model without memory and lets torch count."""

import torch
from torch import nn

TASK = "05.count"


def num_params(num_layers, hidden, vocab, seq):
    with torch.device("meta"):
        layer = nn.ModuleList(
            [
                nn.LayerNorm(hidden),
                nn.Linear(hidden, 3 * hidden),
                nn.Linear(hidden, hidden),
                nn.LayerNorm(hidden),
                nn.Linear(hidden, 4 * hidden),
                nn.Linear(4 * hidden, hidden),
            ]
        )
        rest = nn.ModuleList([nn.Embedding(vocab, hidden), nn.Embedding(seq, hidden), nn.LayerNorm(hidden)])
    layer, rest = (sum(p.numel() for p in part.parameters()) for part in (layer, rest))
    return num_layers * layer + rest
