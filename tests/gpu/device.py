"""What these tests call a GPU: NVIDIA's, or with `pytest --device card` a practice card, here and on two ranks."""

import torch

from helpers.devices import CARD, GPU, accelerator
from helpers.ranks.processes import limits

HAS_CARD = hasattr(torch, CARD)  # conftest.py gave this process one, as a rank's has
KIND = CARD if HAS_CARD else GPU
FIRST = f"{KIND}:0"
NUM_GPUS = 2 if HAS_CARD else limits.num_gpus()
module = torch.get_device_module(KIND)  # torch.cuda, or torch.card with the same names
here = accelerator  # this rank's
