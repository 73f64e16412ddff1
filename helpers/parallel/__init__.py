"""One file a strategy. Each reads as a textbook: what is observed is observed from outside.

data_parallel.py  threads in one process, one replica a device, everything through the master
ddp.py            one process a rank, gradients averaged in buckets during backward
amp.py            16-bit arithmetic: autocast, loss scaling, float32 master weights
"""
