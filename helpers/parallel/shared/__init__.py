"""Provides what two or more parallelism strategies use, such as buckets of gradients, autocast and recomputation.

A part that only one strategy needs is in that strategy's package.

buckets.py         flat buffers for gradients, each sent when its last gradient is there
bucket_rule.py     which gradients share a bucket
collectives.py     broadcasts, sums in few messages, and checks that ranks agree
placement.py       on which ranks a parameter lies, for each axis: shards and replicas
clip.py            the norm of all gradients on all ranks, and clipping by it
autocast.py        a region in which each operation chooses its precision (helpers/devices/autocast_tables.py)
recompute.py       stores a block's input and computes the rest again in backward
virtual_devices.py several simulated devices in one process, and one with a memory limit

Begin with buckets.py.
"""
