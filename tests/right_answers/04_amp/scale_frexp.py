"""From the exponent bits of the flat gradient; a tensor of one number is returned."""

import torch

TASK = "04.scale"


def choose_scale(gradients):
    largest = torch.cat([g.flatten() for g in gradients]).abs().max()
    mantissa, exponent = torch.frexp(largest)  # largest = m * 2**exponent, 0.5 <= m < 1
    return torch.ldexp(torch.ones(()), 16 - exponent - (mantissa >= 65520 / 65536).int())
