"""ZeRO: data parallel without the copies. Each stage shards more of what every rank would hold whole.

    Zero1   optimizer state       stage1.py
    Zero2   and gradients         stage2.py
    Zero3   and parameters        stage3.py; ShardedLayer, its idea on one screen: simple.py
After Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models".
"""

from helpers.parallel.zero.simple import ShardedLayer
from helpers.parallel.zero.stage1 import Zero1
from helpers.parallel.zero.stage2 import Zero2
from helpers.parallel.zero.stage3 import Zero3

__all__ = ["ShardedLayer", "Zero1", "Zero2", "Zero3"]
