"""Mixed precision: arithmetic in 16 bits, and what keeps small gradients and small updates from being lost.

loss_scaler.py     GradScaler and StaticScaler: a scaled loss, and the order of a step
master_weights.py  16-bit weights with float32 masters, and stochastic rounding
autocast is in shared/autocast.py, because recomputation needs it too: it enters the region again in backward.
"""

from helpers.parallel.amp.loss_scaler import OLD_SPELLINGS, GradScaler, StaticScaler
from helpers.parallel.amp.master_weights import MasterWeights, stochastic_round
from helpers.parallel.shared.autocast import autocast

__all__ = ["OLD_SPELLINGS", "GradScaler", "MasterWeights", "StaticScaler", "autocast", "stochastic_round"]
