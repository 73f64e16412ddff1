"""The terms of a step, a page of physics each: seconds at nominal rates, which `calibrate` then moves.

products.py      matrix products: tiles, waves, depth, or bytes
attention.py     scores, softmax and values, in one kernel or written out
collectives.py   by size, kind and topology
layer.py         a layer and the two ends of a model: products, attention, bytes, exposed collectives
data.py          gradients and parameters between replicas, the optimizer
rhythm.py        the pipeline played, with chunks and unequal stages
"""
