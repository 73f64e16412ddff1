"""When, and how long.

ddp.py, zero.py, pipeline.py, data_parallel.py   a step of each strategy as a Timeline
step.py          the seconds of a step under a plan on a cluster, estimated
flops.py         floating-point operations, MFU and HFU, days of training
stalls.py        how many workers load in time, and how often somebody is late
"""
