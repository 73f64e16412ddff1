"""What two strategies or more use. A piece that one strategy alone needs stands in its own room.

buckets.py         gradients in buckets, each complete with its last gradient; bucket_rule.py: which is where
agreement.py       ranks that must start equal, and expect the same gradients
placement.py       how a parameter lies on each axis: which ranks have parts of it, which have copies
summed.py          sums of many tensors in few messages
clip.py            the norm of all gradients on all ranks, and clipping by it
autocast.py        each operation chooses its precision (helpers/devices/autocast_tables.py)
recompute.py       keep a block's input, compute the rest again in backward
devices.py         one process with several pretended devices; budget.py gives one a limit
freed.py           a weight whose memory is gone until it is gathered again
flat_collectives.py  all-gather and reduce-scatter of flat vectors, under the names that this torch has
"""
