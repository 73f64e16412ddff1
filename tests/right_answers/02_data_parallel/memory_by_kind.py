"""One list a kind; the pieces as torch.chunk cuts them."""

import torch

TASK = "02.memory"


def memory(num_devices, num_parameters, batch, input_bytes, output_bytes):
    rows = [len(piece) for piece in torch.arange(batch).chunk(num_devices)]
    rows += [0] * (num_devices - len(rows))
    gathered = batch if num_devices > 1 else 0
    return [
        {
            "parameters": 4.0 * num_parameters * (n > 0),
            "gradients": 4.0 * num_parameters * (n > 0),
            "optimizer": 8.0 * num_parameters * (i == 0),
            "input": input_bytes * (n if i else batch),
            "outputs": output_bytes * (n if i else n + gathered),
        }
        for i, n in enumerate(rows)
    ]
