"""Mixed precision: arithmetic in 16 bits, and what keeps small gradients and small updates from being lost.

MiniAutocast, MiniMasterWeights, MiniGradScaler, amp_step
                   the core on one screen: three parts, and a training step   mixed_precision.py
autocast           a region in which each operation chooses 16 bits or float32 (shared/autocast.py: recomputation
                   needs it too)
GradScaler         scales the loss, so that small fp16 gradients do not become zero   loss_scaler.py
StaticScaler       the same with a constant scale   loss_scaler.py
OLD_SPELLINGS      calls of mixed precision in older code, and what to write today   loss_scaler.py
MasterWeights      an optimizer on float32 copies of 16-bit weights   master_weights.py
stochastic_round   float32 to bfloat16, up or down at random   master_weights.py
matmul_fp8         a matrix product in fp8, with a scale for each block of the inputs   block_scaled_fp8.py

Begin with mixed_precision.py.
"""

from helpers.parallel.amp.block_scaled_fp8 import matmul_fp8, quantize_blocks
from helpers.parallel.amp.loss_scaler import OLD_SPELLINGS, GradScaler, StaticScaler
from helpers.parallel.amp.master_weights import MasterWeights, stochastic_round
from helpers.parallel.amp.mixed_precision import MiniAutocast, MiniGradScaler, MiniMasterWeights, amp_step
from helpers.parallel.shared.autocast import autocast

__all__ = [
    "OLD_SPELLINGS", "GradScaler", "MasterWeights", "MiniAutocast", "MiniGradScaler", "MiniMasterWeights",
    "StaticScaler", "amp_step", "autocast", "matmul_fp8", "quantize_blocks", "stochastic_round",
]  # fmt: skip
