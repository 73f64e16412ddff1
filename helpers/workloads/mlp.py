"""Provides MLP, a multi-layer perceptron: the smallest model on which every idea of the course can be shown.

Legend: B = rows of the batch, C = classes.

Why it returns logits: the loss of this course is cross entropy, which takes logits, whereas old blog posts teach with a
`Classifier` that ends in Softmax and is trained with BCELoss, a mean over B x C values. With ten classes, and
probabilities that are all 1/10 at first, the gradients that the logits get from BCELoss are nine times smaller than
the gradients that they get from cross entropy, and they become noise once a probability rounds to 0 or 1.
"""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn


class MLP(nn.Module):
    """Linear layers with ReLU between them; the last one gives logits.

    `sizes` are the widths from input to output: `MLP([64, 128, 10])` has two layers. Forward: (B, sizes[0]) to
    (B, sizes[-1]). Parameters: the sum over neighbours (a, b) of a * b + b. Raises ValueError for fewer than two widths
    or a width below 1.
    """

    def __init__(self, sizes: Sequence[int]):
        super().__init__()
        given = list(sizes)
        if len(given) < 2 or min(given) < 1:
            raise ValueError(f"MLP(sizes={given}): give at least two widths, each 1 or more, such as [64, 128, 10]")
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(sizes[:-1], sizes[1:], strict=True))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = F.relu(layer(x))  # (B, width)
        return self.layers[-1](x)  # (B, C), logits
