"""ZeRO: data parallelism without replicas. Each stage shards more of what every rank would otherwise store in full.

    MiniFSDP       stage 3 on one screen, in plain torch                mini_fsdp.py
    Zero1          shards the optimizer state                           stage1.py
    Zero2          shards gradients, too                                stage2.py
    Zero3          shards parameters, too, as FSDP does                 stage3.py
A Trainer (helpers/compose) trains a model under any of the three stages, and saves and loads what its ranks store.
After Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models".

Begin with mini_fsdp.py.
"""

from helpers.parallel.zero.mini_fsdp import MiniFSDP
from helpers.parallel.zero.stage1 import Zero1
from helpers.parallel.zero.stage2 import Zero2
from helpers.parallel.zero.stage3 import Zero3

__all__ = ["MiniFSDP", "Zero1", "Zero2", "Zero3"]
